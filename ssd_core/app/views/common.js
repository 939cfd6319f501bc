// Shared by all views: each runs as the body of a function (element, trigger, props, watch).

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const percent = (share) => (100 * share).toFixed(0) + " %";
const find = (root, name) => root.querySelector(".ssd-" + name);

/* The same text again would be read aloud again. */
function write(node, text) {
    if (node.textContent !== text) node.textContent = text;
}

/* Cells of a canvas: nothing where unknown, a dot on a faint ground for a draft, a full square when final. */
function paint(canvas, rows, cols, rgb, state) {
    const side = Math.max(4, Math.round(480 / cols));
    if (canvas.width !== cols * side || canvas.height !== rows * side) {
        canvas.width = cols * side;
        canvas.height = rows * side;
    }
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, canvas.width, canvas.height);
    const inset = Math.max(1, Math.round(side * 0.27));
    for (let i = 0; i < rows * cols; i++) {
        if (!state[i]) continue;
        const x = (i % cols) * side, y = Math.floor(i / cols) * side;
        const color = rgb[3 * i] + "," + rgb[3 * i + 1] + "," + rgb[3 * i + 2];
        if (state[i] === 1) {
            pen.fillStyle = "rgba(" + color + ",.3)";
            pen.fillRect(x, y, side, side);
            pen.fillStyle = "rgb(" + color + ")";
            pen.fillRect(x + inset, y + inset, side - 2 * inset, side - 2 * inset);
        } else {
            pen.fillStyle = "rgb(" + color + ")";
            pen.fillRect(x, y, side, side);
        }
    }
}

/* Real pixels of one picture or of several, laid out as a square, in place of what `box` held. */
function hang(box, pictures, label) {
    const wanted = pictures || [];
    const shown = [...box.children].map((image) => image.src);
    if (shown.length === wanted.length && shown.every((source, i) => source === wanted[i])) return;
    box.style.gridTemplateColumns = "repeat(" + Math.max(1, Math.sqrt(wanted.length)) + ", 1fr)";
    box.replaceChildren(...wanted.map((source) => Object.assign(new Image(), { src: source, alt: label })));
}

/* One side of a recording at any moment. */
class Player {
    constructor(lane) {
        this.lane = lane;
        this.cell = new Uint32Array(bytes(lane.cell).buffer);
        this.colors = bytes(lane.rgb);
        this.states = bytes(lane.state);
        this.reset();
    }

    reset() {
        this.rgb = new Uint8Array(3 * this.lane.cells);
        this.state = new Uint8Array(this.lane.cells);
        this.event = this.change = this.drawn = this.time = 0;
    }

    seek(time) {
        if (time < this.time) this.reset();
        this.time = time;
        const { times, counts } = this.lane;
        while (this.event < times.length && times[this.event] <= time) {
            for (const end = this.change + counts[this.event]; this.change < end; this.change++) {
                const i = this.cell[this.change], k = this.change;
                this.drawn += (this.states[k] === 2) - (this.state[i] === 2);
                this.state[i] = this.states[k];
                this.rgb.set(this.colors.subarray(3 * k, 3 * k + 3), 3 * i);
            }
            this.event++;
        }
    }

    get passes() {
        return this.event ? this.lane.nfe[this.event - 1] : 0;
    }

    get over() {
        return this.lane.finished && this.time >= this.lane.seconds;
    }
}
