"""ComfyUI's real frontend in a real Chromium, for the tests of web/ and for the pictures of the README."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from comfyui_host import PATIENCE, Server
from playwright.sync_api import Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZE = {"width": 1600, "height": 1000}
HARMLESS = ("api.comfy.org", "huggingface.co", "Failed to load resource")  # what the frontend asks others for, in vain

SETTINGS = {"Comfy.TutorialCompleted": True, "Comfy.Minimap.Visible": False, "Comfy.Graph.CanvasInfo": False}

# What the tests ask of the page.
SCRIPT = """
window.ssdTest = {
  missing() {
    const known = (node) => node.comfyClass || node.isVirtualNode;
    return app.graph.nodes.filter((node) => node.has_errors || !known(node)).map((node) => node.type);
  },
  room(type) {
    const { width, height } = this.panel(type).getBoundingClientRect();
    return [width, height];
  },
  nodes(type, graph = app.rootGraph ?? app.graph) {
    const found = [];
    for (const node of graph.nodes) {
      if (node.type === type) found.push(node);
      if (node.subgraph) found.push(...this.nodes(type, node.subgraph));
    }
    return found;
  },
  panel(type) {
    return this.nodes(type)[0].widgets.find((widget) => widget.name === "ssd_panel").element;
  },
  shown(type) {
    const node = this.nodes(type)[0];
    const element = document.querySelector(`[data-node-id="${node.id}"]`);  // Nodes 2.0
    const lines = element?.innerText.split("\\n");
    const visible = (widget) => lines?.includes(widget.label ?? widget.name) ?? node.isWidgetVisible(widget);
    return node.widgets.filter(visible).map((widget) => widget.name);
  },
  set(type, name, value) {
    const node = this.nodes(type)[0];
    const widget = node.widgets.find((each) => each.name === name);
    widget.value = value;
    widget.callback?.(value, app.canvas, node);
  },
  fit() {
    const canvas = app.canvas;
    const area = canvas.graph.nodes.map((node) => [...node.getBounding()]);
    const left = Math.min(...area.map((a) => a[0])) - 30, top = Math.min(...area.map((a) => a[1])) - 30;
    const right = Math.max(...area.map((a) => a[0] + a[2])) + 30;
    const bottom = Math.max(...area.map((a) => a[1] + a[3])) + 30;
    const box = canvas.canvas.getBoundingClientRect();
    const [x, y] = [90, 110];  // the frontend's own bars
    const scale = Math.min((box.width - x) / (right - left), (box.height - y) / (bottom - top));
    canvas.ds.scale = scale;
    canvas.ds.offset = [x / scale - left, y / scale - top];
    canvas.setDirty(true, true);
  },
};
"""


@contextmanager
def frontend(server: Server, *, vue: bool = False, language: str = "en") -> Iterator[tuple[Page, list[str]]]:
    """The open frontend and the errors of the page so far; vue: Nodes 2.0 instead of LiteGraph."""
    for name, value in {**SETTINGS, "Comfy.VueNodes.Enabled": vue, "Comfy.Locale": language}.items():
        server.post_raw(f"/settings/{name}", value)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=SIZE)
        page.set_default_timeout(PATIENCE * 1000)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if _is_error(message) else None)
        page.route("**/*", lambda route: route.continue_() if server.url in route.request.url else route.abort())
        page.goto(server.url)
        page.wait_for_function("window.app?.graph && window.app.extensionManager && window.app.ui")
        page.wait_for_function("window.LiteGraph?.registered_node_types?.SSDSampler !== undefined")
        page.evaluate(SCRIPT)
        errors.clear()  # of the frontend's own start
        yield page, errors
        browser.close()


def _is_error(message) -> bool:
    return message.type == "error" and not any(word in message.text for word in HARMLESS)


def open_workflow(page: Page, workflow: dict) -> None:
    """Loads a workflow as if its file had been dropped onto the page."""
    page.evaluate("(workflow) => app.loadGraphData(workflow)", workflow)
    page.wait_for_timeout(500)
    page.evaluate("ssdTest.fit()")


def panel_text(page: Page, kind: str) -> str:
    """What the panel on the first node of a type says."""
    return page.evaluate("(kind) => ssdTest.panel(kind).innerText || ssdTest.panel(kind).textContent", kind)


def wait_for_panel(page: Page, kind: str, text: str) -> None:
    """Waits until the panel says something."""
    page.wait_for_function("([kind, text]) => ssdTest.panel(kind).textContent.includes(text)", arg=[kind, text])


def run(page: Page) -> None:
    """Queues the present workflow and waits until the server has done it."""
    page.evaluate(
        """() => new Promise((done, fail) => {
          const failed = ({ detail }) => fail(new Error(detail.exception_message));
          app.api.addEventListener("execution_success", () => done(), { once: true });
          app.api.addEventListener("execution_error", failed, { once: true });
          app.queuePrompt(0);
        })"""
    )
