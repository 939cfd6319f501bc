const DRAFTED = 1 << 15;
const COLORS = ["#2b83ba", "#abdda4", "#fee08b", "#fdae61", "#d7191c"]; // kept, 1, 2, 3, later
const root = find(element, "inside"), canvas = root.querySelector("canvas"), fade = root.querySelector("input");
const [chooser, legend, cellText] = ["chooser", "legend", "cell"].map((name) => find(root, name));
let side = 1, at = null, player = null, finalAt = [];

const rounds = (bits) => [...Array(15).keys()].filter((r) => bits & (1 << r)).map((r) => r + 1);
const level = (bits) => (bits & DRAFTED ? Math.min(4, rounds(bits).pop() || 0) : -1);

function describe() {
    const run = props.value, lane = run.lanes[side];
    if (at === null) {
        cellText.textContent = "Point at a cell, or focus the picture and use the arrow keys.";
        return;
    }
    const bits = corrections()[at], row = Math.floor(at / run.cols), column = at % run.cols;
    const corrected = rounds(bits);
    const fate = !(bits & DRAFTED)
        ? "sampled, never drafted"
        : corrected.length
          ? "draft replaced in round " + corrected.join(", ").replace(/, (\d+)$/, " and $1")
          : "draft kept in every round";
    cellText.textContent =
        "Row " + (row + 1) + ", column " + (column + 1) + ": " + fate + "; final at " + finalAt[at].toFixed(2) + " s.";
}

function corrections() {
    return new Uint16Array(bytes(props.value.lanes[side].corrections).buffer);
}

function draw() {
    const run = props.value, map = corrections(), px = 20, pen = canvas.getContext("2d");
    canvas.width = run.cols * px;
    canvas.height = run.rows * px;
    map.forEach((bits, i) => {
        const which = level(bits);
        if (which < 0) return;
        pen.globalAlpha = fade.value / 100;
        pen.fillStyle = COLORS[which];
        pen.fillRect((i % run.cols) * px, Math.floor(i / run.cols) * px, px, px);
    });
    pen.globalAlpha = 1;
    if (at !== null) {
        pen.lineWidth = 4;
        pen.strokeStyle = "#fff";
        pen.strokeRect((at % run.cols) * px, Math.floor(at / run.cols) * px, px, px);
        pen.lineWidth = 2;
        pen.strokeStyle = "#000";
        pen.strokeRect((at % run.cols) * px, Math.floor(at / run.cols) * px, px, px);
    }
    describe();
}

function show() {
    const run = props.value || {};
    root.dataset.mode = run.mode || "empty";
    if (!run.lanes) return;
    find(root, "status").textContent =
        "\u201c" + run.prompt + "\u201d, seed " + run.seed + ": where drafting was easy, and where passes had to repair it.";
    const lane = run.lanes[side], map = corrections(), counts = [0, 0, 0, 0, 0];
    let sampled = 0;
    map.forEach((bits) => (level(bits) < 0 ? sampled++ : counts[level(bits)]++));
    player = new Player(lane);
    finalAt = new Float64Array(lane.cells);
    lane.times.forEach((time, k) => {
        player.seek(time);
        player.state.forEach((state, i) => state === 2 && !finalAt[i] && (finalAt[i] = time));
    });
    hang(find(root, "pictures"), lane.pictures, lane.title + ": " + run.prompt);
    const names = ["kept as drafted", "settled in round 1", "settled in round 2", "settled in round 3", "settled later"];
    legend.replaceChildren(
        ...names
            .map((name, i) => [name, counts[i], COLORS[i]])
            .concat([["sampled, never drafted", sampled, "transparent"]])
            .filter(([, count]) => count)
            .map(([name, count, color]) => {
                const item = document.createElement("li"), swatch = document.createElement("i");
                swatch.style.background = color;
                item.append(swatch, name + ": " + (count === 1 ? "1 cell" : percent(count / map.length)));
                return item;
            }),
    );
    canvas.setAttribute("aria-label", "Map of corrections, " + lane.title);
    chooser.replaceChildren(
        ...run.lanes.map((other, i) => {
            const button = document.createElement("button");
            Object.assign(button, { type: "button", className: "ssd-button", textContent: other.title });
            button.setAttribute("aria-pressed", i === side);
            button.addEventListener("click", () => {
                side = i;
                show();
            });
            return button;
        }),
    );
    if (at !== null && at >= lane.cells) at = null;
    draw();
}

canvas.addEventListener("pointermove", (event) => {
    const run = props.value, box = canvas.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * run.cols);
    const y = Math.floor(((event.clientY - box.top) / box.height) * run.rows);
    if (x < 0 || y < 0 || x >= run.cols || y >= run.rows) return;
    at = y * run.cols + x;
    draw();
});
canvas.addEventListener("keydown", (event) => {
    const { rows, cols } = props.value;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -cols, ArrowDown: cols }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = at === null ? 0 : at + step;
    if (next >= 0 && next < rows * cols) at = next;
    draw();
});
fade.addEventListener("input", draw);
watch("value", show);
show();
