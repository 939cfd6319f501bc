// A panel on SSD Sampler and SSD Schedule: planned passes as the knobs move, the map of cells while a run goes on,
// the numbers afterwards. Progress and previews are ComfyUI's own. Peer Decoder shows its decoder's knobs alone.

import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";
import { isConnected, nodeByExecutionId, sourceOf, valueOf, valuesOf } from "./graph.js";
import { Panel } from "./panel.js";
import { language, loadWords, say } from "./words.js";

const KNOBS = ["decoder", "r", "k_v", "b", "i", "k_h", "commits", "settle", "window", "width", "height"];
const HEIGHTS = { SSDSampler: 320, SSDSchedule: 66 };
const LOOK_EVERY = 250; // ms
const EVERY = "every"; // Nodes 2.0 does not notice that a widget is hidden, so it shows the knobs of every decoder

const panels = new Map(); // node -> { panel, asked, spoken }
const peers = new Map(); // node -> the decoder whose knobs it shows

function kindOf(node) {
  return node.comfyClass ?? node.type; // a node that is being created has no type yet
}

/** What the server is asked about a node; a string instead is the sentence that says why nothing can be asked. */
function questionOf(node) {
  const loader = sourceOf(app, node, "backbone");
  const backbone = loader && kindOf(loader) === "LoadBackbone" ? valueOf(loader, "name") : undefined;
  if (backbone === undefined) return "connect";
  if (kindOf(node) === "SSDSchedule") return { backbone, preset: valueOf(node, "preset"), speed: valueOf(node, "speed") };
  const size = { width: valueOf(node, "width"), height: valueOf(node, "height") };
  if (isConnected(node, "schedule")) {
    const schedule = sourceOf(app, node, "schedule");
    if (schedule && kindOf(schedule) === "PeerDecoder") return { backbone, ...size, peer: valuesOf(schedule) };
    if (!schedule || kindOf(schedule) !== "SSDSchedule") return "decided";
    return { backbone, ...size, preset: valueOf(schedule, "preset"), speed: valueOf(schedule, "speed") };
  }
  return { backbone, ...Object.fromEntries(KNOBS.map((name) => [name, valueOf(node, name)])) };
}

async function ask(question) {
  const response = await api.fetchApi("/ssd/plan", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(question),
  });
  return response.json();
}

// Looking is simpler than listening: a plan depends on widgets of other nodes, on links, and on undo.
async function look() {
  if (document.hidden) return;
  for (const [node, shown] of peers) {
    const decoder = LiteGraph.vueNodesMode ? EVERY : valueOf(node, "decoder");
    if (decoder !== shown) showKnobs(node, decoder);
  }
  const spoken = language();
  for (const [node, entry] of panels) {
    if (entry.spoken !== spoken) entry.panel.translate();
    entry.spoken = spoken;
    const question = questionOf(node);
    const asked = JSON.stringify([question, spoken]);
    if (asked === entry.asked) continue;
    entry.asked = asked;
    if (typeof question === "string") {
      entry.panel.showPlan({ text: say(question) });
      continue;
    }
    try {
      const plan = await ask({ ...question, language: spoken });
      if (entry.asked === asked) entry.panel.showPlan(plan);
    } catch (error) {
      entry.asked = undefined;
      entry.panel.showPlan({ error: say("silent", { message: error.message }) });
    }
  }
}

/** Hides the knobs that a decoder does not have. */
function showKnobs(node, decoder) {
  peers.set(node, decoder);
  const inputs = node.constructor.nodeData.input.required;
  for (const widget of node.widgets) {
    const { decoders } = inputs[widget.name]?.[1] ?? {};
    if (decoders) widget.hidden = decoder !== EVERY && !decoders.includes(decoder) && !isConnected(node, widget.name);
  }
  if (decoder !== EVERY) node.setSize([node.size[0], node.computeSize()[1]]);
  node.graph?.setDirtyCanvas(true, true);
}

function forgetWhenRemoved(node, map) {
  const removed = node.onRemoved;
  node.onRemoved = function (...args) {
    map.delete(this);
    return removed?.apply(this, args);
  };
}

function addPanel(node) {
  const height = HEIGHTS[kindOf(node)];
  const panel = new Panel({ map: kindOf(node) === "SSDSampler", height });
  const widget = node.addDOMWidget("ssd_panel", "ssd_panel", panel.element, {
    serialize: false, // not a value of the prompt
    hideOnZoom: true,
    getMinHeight: () => height,
    getMaxHeight: () => (panel.canvas ? undefined : height),
  });
  widget.serialize = false; // nor of the saved workflow
  panels.set(node, { panel });
  forgetWhenRemoved(node, panels);
}

function panelOf(id) {
  return panels.get(nodeByExecutionId(app, id))?.panel;
}

app.registerExtension({
  name: "SSD.Panel",

  async setup() {
    await loadWords();
    api.addEventListener("ssd.run", ({ detail }) => panelOf(detail.node)?.showRun?.(detail));
    for (const event of ["execution_interrupted", "execution_error"]) {
      api.addEventListener(event, ({ detail }) => panelOf(detail.node_id)?.showStopped());
    }
    setInterval(look, LOOK_EVERY);
  },

  nodeCreated(node) {
    if (kindOf(node) in HEIGHTS) addPanel(node);
    if (kindOf(node) !== "PeerDecoder") return;
    peers.set(node, undefined);
    forgetWhenRemoved(node, peers);
  },
});
