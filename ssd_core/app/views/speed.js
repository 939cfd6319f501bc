const root = find(element, "speed"), range = root.querySelector("input");
const detail = find(root, "detail"), stops = find(root, "stops");

function show() {
    const { speed, stops: all, note } = props.value;
    const chosen = all.findIndex((stop) => stop.name === speed);
    range.max = all.length - 1;
    if (chosen >= 0) range.value = chosen;
    root.dataset.speed = speed;
    const text = chosen >= 0 ? all[chosen].detail : note;
    detail.textContent = text;
    range.setAttribute("aria-valuetext", (chosen >= 0 ? all[chosen].label : "Custom") + ": " + text);
    if (stops.children.length !== all.length) {
        stops.replaceChildren(...all.map(() => document.createElement("span")));
    }
    all.forEach((stop, i) => {
        stops.children[i].textContent = stop.label;
        stops.children[i].classList.toggle("ssd-chosen", i === chosen);
    });
}

function choose(i) {
    const speed = props.value.stops[i].name;
    if (speed === props.value.speed) return;
    props.value = { ...props.value, speed };
    show();
    trigger("input");
}

range.addEventListener("input", () => choose(Number(range.value)));
stops.addEventListener("click", (event) => {
    const i = [...stops.children].indexOf(event.target);
    if (i >= 0) choose(i);
});
watch("value", show);
show();
