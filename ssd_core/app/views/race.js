const root = find(element, "race");
const sides = [...root.querySelectorAll(".ssd-lane")].map((lane) => ({
    lane,
    canvas: lane.querySelector("canvas"),
    pictures: find(lane, "pictures"),
    bar: lane.querySelector(".ssd-bar i"),
    text: (name, value) => write(find(lane, name), String(value)),
}));
const [play, seek, mark, clock] = ["play", "seek", "mark", "clock"].map((name) => find(root, name));
const rate = root.querySelector("select");
const still = window.matchMedia("(prefers-reduced-motion: reduce)");
let run = {}, players = [], now = 0, total = 0, finish = 0, playing = false, before = 0;

function heading(side, lane) {
    side.text("title", lane.title);
    side.text("detail", lane.detail);
}

function numbers(side, lane, seconds, passes, drawn, over) {
    side.text("seconds", seconds.toFixed(seconds < 10 ? 2 : 1));
    side.text("passes", passes);
    side.text("drawn", drawn + " (" + percent(drawn / lane.cells) + ")");
    side.bar.style.width = percent(drawn / lane.cells).replace(" ", "");
    side.lane.dataset.drawn = drawn;
    side.lane.dataset.over = over;
    side.canvas.setAttribute("aria-label", lane.title + ": " + percent(drawn / lane.cells) + " drawn");
}

function live() {
    run.lanes.forEach((lane, i) => {
        heading(sides[i], lane);
        hang(sides[i].pictures, []);
        paint(sides[i].canvas, run.rows, run.cols, bytes(lane.rgb), bytes(lane.state));
        numbers(sides[i], lane, lane.seconds, lane.passes, lane.drawn, lane.finished);
    });
}

function replay() {
    run.lanes.forEach((lane, i) => {
        const player = players[i];
        player.seek(now);
        paint(sides[i].canvas, run.rows, run.cols, player.rgb, player.state);
        hang(sides[i].pictures, player.over ? lane.pictures : [], lane.title + ": " + (run.prompt || "the picture"));
        const passes = player.over ? lane.passes : player.passes;
        numbers(sides[i], lane, Math.min(now, lane.seconds), passes, player.drawn, player.over);
    });
    seek.value = total ? Math.round((1000 * now) / total) : 0;
    seek.setAttribute("aria-valuetext", now.toFixed(2) + " of " + total.toFixed(2) + " seconds");
    clock.textContent = now.toFixed(1) + " / " + total.toFixed(1) + " s";
    play.textContent = playing ? "Pause" : now >= total ? "Replay" : "Play";
    root.dataset.playing = playing;
}

function tick(stamp) {
    if (!playing || !root.isConnected) return;
    now = Math.min(total, now + ((stamp - before) / 1000) * rate.value);
    before = stamp;
    if (now >= total) playing = false;
    replay();
    if (playing) requestAnimationFrame(tick);
}

function start(from) {
    now = from;
    playing = true;
    requestAnimationFrame((stamp) => {
        before = stamp;
        tick(stamp);
    });
    replay();
}

function pauseAt(time) {
    playing = false;
    now = time;
    replay();
}

function load() {
    run.lanes.forEach((lane, i) => heading(sides[i], lane));
    players = run.lanes.map((lane) => new Player(lane));
    const ends = run.lanes.map((lane) => lane.seconds);
    total = Math.max(...ends);
    finish = Math.min(...ends);
    const first = run.lanes[ends.indexOf(finish)].title;
    mark.style.left = (total ? (100 * finish) / total : 0) + "%";
    mark.classList.toggle("ssd-mark-right", finish > 0.6 * total);
    mark.firstChild.textContent = first + " finishes here";
    mark.hidden = !run.lanes.every((lane) => lane.finished);
    if (run.mode === "recording" && !still.matches) start(0);
    else pauseAt(total);
}

function clear() {
    playing = false;
    find(root, "verdict").textContent = "";
    for (const side of sides) {
        side.canvas.getContext("2d").clearRect(0, 0, side.canvas.width, side.canvas.height);
        hang(side.pictures, []);
        side.text("seconds", "0.00");
        side.text("passes", "0");
        side.text("drawn", "0");
        side.bar.style.width = 0;
    }
}

function show() {
    const value = props.value || {};
    write(find(root, "status"), value.status || "");
    root.dataset.notice = value.lanes ? "" : value.mode;
    if (value.mode === "waiting") clear();
    if (value.lanes || value.mode === "waiting") root.dataset.mode = value.mode;
    if (!value.lanes) return; // a message: what is on the canvases stays
    run = value;
    write(find(root, "verdict"), run.verdict || "");
    playing = false;
    if (run.mode === "live") live();
    else load();
}

play.addEventListener("click", () => (playing ? pauseAt(now) : start(now >= total ? 0 : now)));
seek.addEventListener("input", () => pauseAt((total * seek.value) / 1000));
mark.addEventListener("click", () => pauseAt(finish));
find(root, "replay").addEventListener("keydown", (event) => {
    if (event.key === " " && event.target === seek) {
        event.preventDefault();
        play.click();
    }
});
watch("value", show);
show();
