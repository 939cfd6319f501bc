const root = find(element, "sweep"), cards = find(root, "cards"), svg = root.querySelector("svg");
const DASHES = ["", "6 4", "2 4"];
let shown = "";

function make(name, attributes, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
    if (text !== undefined) node.textContent = text;
    return node;
}

/* Speed-up over AR to the right, cells equal to AR's upwards; one line per k_v. */
function curve(all) {
    const points = all.filter((card) => card.k_v);
    svg.parentNode.hidden = points.length < 2;
    if (points.length < 2) return;
    const [left, right, top, bottom] = [56, 620, 16, 252];
    const most = Math.max(2, Math.ceil(Math.max(...points.map((card) => card.speedup))));
    const x = (value) => left + ((right - left) * value) / most;
    const y = (value) => bottom - (bottom - top) * value;
    const nodes = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => [
        make("line", { x1: left, x2: right, y1: y(share), y2: y(share), class: "ssd-grid" }),
        make("text", { x: left - 8, y: y(share) + 4, "text-anchor": "end" }, percent(share)),
    ]);
    for (let value = 0; value <= most; value += Math.ceil(most / 10)) {
        nodes.push(make("text", { x: x(value), y: bottom + 20, "text-anchor": "middle" }, value + "x"));
    }
    nodes.push(make("text", { x: (left + right) / 2, y: bottom + 42, "text-anchor": "middle" }, "speed-up over AR"));
    for (const rows of new Set(points.map((card) => card.k_v))) {
        const line = points.filter((card) => card.k_v === rows);
        const path = line.map((card) => x(card.speedup) + "," + y(card.equal)).join(" ");
        nodes.push(make("polyline", { points: path, class: "ssd-line", "stroke-dasharray": DASHES[rows - 1] || "" }));
        line.forEach((card) => {
            const spot = make("circle", { cx: x(card.speedup), cy: y(card.equal), r: 5, class: "ssd-spot" });
            spot.append(make("title", {}, card.title + ": " + card.lines.join(", ")));
            nodes.push(spot, make("text", { x: x(card.speedup) + 8, y: y(card.equal) - 8 }, card.title));
        });
    }
    svg.replaceChildren(...nodes);
    svg.setAttribute("aria-label", points.map((card) => card.title + ": " + card.lines.join(", ")).join("; "));
    svg.parentNode.querySelector("figcaption").textContent = "Cells equal to AR\u2019s picture against speed-up";
}

function show() {
    const value = props.value || {};
    if (value.status) write(find(root, "status"), value.status);
    root.dataset.mode = value.mode || "empty";
    if (!value.cards) {
        svg.parentNode.hidden = !cards.children.length;
        find(root, "bar").hidden = true;
        return;
    }
    find(root, "bar").hidden = value.mode !== "live";
    root.querySelector(".ssd-bar i").style.width = 100 * value.progress + "%";
    const save = find(root, "save");
    save.hidden = !value.sheet;
    if (value.sheet) Object.assign(save, { href: value.sheet, download: value.file });
    const now = JSON.stringify(value.cards.map((card) => card.lines));
    if (now === shown) return;
    shown = now;
    root.dataset.cards = value.cards.length;
    cards.replaceChildren(
        ...value.cards.map((card) => {
            const figure = document.createElement("figure"), caption = document.createElement("figcaption");
            const title = document.createElement("strong");
            title.textContent = card.title;
            caption.append(title, ...card.lines.map((line) => Object.assign(document.createElement("span"), { textContent: line })));
            figure.append(Object.assign(new Image(), { src: card.picture, alt: card.title }), caption);
            return figure;
        }),
    );
    curve(value.cards);
}

watch("value", show);
show();
