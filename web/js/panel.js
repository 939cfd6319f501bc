// The element on a node: what its settings plan, the map of cells while it runs, the numbers afterwards.

import { inLanguage, say } from "./words.js";

const COLOURS = [
  [34, 38, 46], // unknown
  [138, 143, 152], // a guess
  [59, 157, 221], // final, and what was guessed first
  [240, 160, 48], // final, after a correction
];
const LEGEND = ["", "guess", "kept", "corrected"]; // keys of sentences

const STYLE = `
.ssd-panel { display: flex; flex-direction: column; gap: 4px; width: 100%; height: 100%; overflow: hidden;
  box-sizing: border-box; padding: 4px 8px; font: 11px/1.35 sans-serif; color: var(--input-text, #ddd); }
.ssd-panel div { flex: none; white-space: pre-wrap; overflow-wrap: anywhere; }
.ssd-panel .ssd-error { color: var(--error-text, #ff6b6b); }
.ssd-panel canvas { flex: 1 1 0; min-height: 120px; max-width: 100%; object-fit: contain; image-rendering: pixelated; }
.ssd-panel [hidden] { display: none; }
.ssd-panel i { display: inline-block; width: 8px; height: 8px; margin: 0 3px 0 8px; }
`;

let styled = false;

function addStyle() {
  if (styled) return;
  styled = true;
  const style = document.createElement("style");
  style.textContent = STYLE;
  document.head.append(style);
}

function line(parent, name) {
  const element = document.createElement("div");
  element.className = name;
  parent.append(element);
  return element;
}

export class Panel {
  constructor({ map, height }) {
    addStyle();
    this.element = document.createElement("div");
    this.element.style.minHeight = `${height}px`; // Nodes 2.0 does not ask the widget for its height
    this.element.className = "ssd-panel";
    this.plan = line(this.element, "ssd-plan");
    if (!map) return;
    this.canvas = document.createElement("canvas");
    this.canvas.hidden = true;
    this.element.append(this.canvas);
    this.legend = line(this.element, "ssd-legend");
    this.legend.hidden = true;
    this.run = line(this.element, "ssd-run");
    this.translate();
  }

  /** Says what there is to say in the language of the moment; the plan comes from the server. */
  translate() {
    if (!this.canvas) return;
    this.legend.replaceChildren();
    for (const [state, key] of LEGEND.entries()) {
      if (!key) continue;
      const swatch = document.createElement("i");
      swatch.style.background = `rgb(${COLOURS[state].join()})`;
      this.legend.append(swatch, say(key));
    }
    if (this.last) this.tellRun(this.last);
  }

  /** Shows what the settings plan, or why they cannot be. */
  showPlan({ text, error }) {
    this.plan.textContent = error ?? text;
    this.plan.classList.toggle("ssd-error", Boolean(error));
  }

  /** Shows a message of the run: its cells and its numbers so far, or its statistics when it is over. */
  showRun(run) {
    this.last = run;
    this.canvas.hidden = this.legend.hidden = false;
    this.drawCells(run);
    this.tellRun(run);
  }

  /** Says that the run was stopped. */
  showStopped() {
    if (!this.last || this.last.statistics) return;
    this.last.stopped = true;
    this.tellRun(this.last);
  }

  tellRun(run) {
    const { title, passes, planned, most, seconds, progress, ar, statistics, stopped } = run;
    if (statistics) {
      this.run.textContent = inLanguage(statistics);
    } else if (stopped) {
      this.run.textContent = say("stopped", { passes });
    } else {
      this.run.textContent = say("running", {
        title,
        passes: say(planned ? "planned" : "most", { passes, most }),
        seconds: seconds.toFixed(1),
        percent: Math.round(100 * progress),
        ratio: (progress > 0 ? (ar * progress) / passes : 1).toFixed(1),
      });
    }
  }

  drawCells({ rows, cols, cells }) {
    this.canvas.width = cols;
    this.canvas.height = rows;
    const context = this.canvas.getContext("2d");
    const image = context.createImageData(cols, rows);
    for (let cell = 0; cell < cells.length; cell++) {
      image.data.set([...COLOURS[Number(cells[cell])], 255], 4 * cell);
    }
    context.putImageData(image, 0, 0);
  }
}
