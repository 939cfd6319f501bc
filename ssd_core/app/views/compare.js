const root = find(element, "compare"), range = root.querySelector("input[type=range]");
const [under, over, handle, chooser, copy, link] = ["under", "over", "handle", "chooser", "copy", "link"].map((name) =>
    find(root, name),
);
const saves = root.querySelectorAll(".ssd-save");
let picture = 0;

function split() {
    over.style.clipPath = "inset(0 " + (100 - range.value) + "% 0 0)";
    handle.style.left = range.value + "%";
    range.setAttribute("aria-valuetext", range.value + " % of the left picture");
}

function show() {
    const run = props.value || {};
    root.dataset.mode = run.mode || "empty";
    find(root, "status").textContent = run.prompt ? "\u201c" + run.prompt + "\u201d, seed " + (run.seed + picture) : "";
    if (!run.lanes) return;
    picture = Math.min(picture, run.images - 1);
    find(root, "verdict").textContent = run.verdict;
    const [left, right] = run.lanes;
    over.src = left.pictures[picture];
    under.src = right.pictures[picture];
    over.alt = left.title + ": " + run.prompt;
    under.alt = right.title + ": " + run.prompt;
    find(root, "tag-left").textContent = left.title;
    find(root, "tag-right").textContent = right.title;
    run.lanes.forEach((lane, i) => {
        saves[i].hidden = !lane.files;
        if (!lane.files) return;
        saves[i].textContent = "Save " + lane.title + " as PNG";
        saves[i].href = lane.pictures[picture];
        saves[i].download = lane.files[picture];
    });
    link.value = run.link ? location.origin + location.pathname + "?" + run.link : "";
    link.hidden = copy.hidden = !run.link;
    chooser.replaceChildren(
        ...(run.images > 1 ? [...Array(run.images).keys()] : []).map((i) => {
            const button = document.createElement("button");
            Object.assign(button, { type: "button", className: "ssd-button", textContent: i + 1 });
            button.setAttribute("aria-pressed", i === picture);
            button.addEventListener("click", () => {
                picture = i;
                show();
            });
            return button;
        }),
    );
    split();
}

range.addEventListener("input", split);
copy.addEventListener("click", async () => {
    link.select();
    try {
        await navigator.clipboard.writeText(link.value);
    } catch {
        document.execCommand("copy"); // pages without https have no clipboard
    }
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy link to this run"), 1500);
});
watch("value", show);
show();
