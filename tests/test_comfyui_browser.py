"""The browser side in ComfyUI's real frontend: workflows load and round-trip, the panel works everywhere."""

import pytest

pytest.importorskip("websocket", reason="websocket-client is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")
import comfyui_browser as browser
import comfyui_host as host

pytestmark = [
    pytest.mark.skipif(host.missing() is not None, reason=str(host.missing())),
    pytest.mark.skipif(browser.CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
]
WORKFLOWS = sorted(path.stem for path in (host.ROOT / "workflows").glob("*.json"))
RENDERERS = pytest.mark.parametrize("vue", [False, True], ids=["litegraph", "nodes2"])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = host.Server(tmp_path_factory.mktemp("comfyui") / "base")
    yield server
    server.stop()


@RENDERERS
def test_every_workflow_loads_and_round_trips(server, vue):
    definitions = server.get("/object_info")
    with browser.frontend(server, vue=vue) as (page, errors):
        for name in WORKFLOWS:
            workflow = host.load_workflow(name)
            browser.open_workflow(page, workflow)
            assert page.evaluate("ssdTest.missing()") == [], name
            made = page.evaluate("app.graphToPrompt().then(({ output }) => output)")
            for node in made.values():
                node.pop("_meta", None)
                if node["class_type"] == "PreviewAny":  # its frontend adds a widget that is not sent for
                    node["inputs"].pop("preview", None)
            assert made == host.api_form(workflow, definitions), name
            saved = page.evaluate("app.graph.serialize()")
            for before, after in zip(by_id(workflow), by_id(saved), strict=True):
                assert before["type"] == after["type"]
                if after["type"] in definitions:
                    assert values_of(before) == values_of(after), (name, before["type"])
        assert not errors


@RENDERERS
def test_workflows_from_before_settle_load_with_it_off(server, vue):
    workflow = host.load_workflow("1-text-to-image")
    sampler = next(node for node in workflow["nodes"] if node["type"] == "SSDSampler")
    sampler["inputs"] = [given for given in sampler["inputs"] if given["name"] != "settle"]
    assert sampler["widgets_values"].pop() is False
    with browser.frontend(server, vue=vue) as (page, errors):
        browser.open_workflow(page, workflow)
        made = page.evaluate("app.graphToPrompt().then(({ output }) => output)")[str(sampler["id"])]["inputs"]
        assert made["settle"] is False
        assert [made[name] for name in ("commits", "rule", "preview", "preview_every")] == [
            *("own", "accept-reject", "pixels", 1)
        ]
        assert not errors


def values_of(node):
    return node.get("widgets_values") or []  # newer frontends leave out those of nodes without widgets


def by_id(workflow):
    return sorted(workflow["nodes"], key=lambda node: int(node["id"]))


@RENDERERS
def test_the_panel_plans_maps_and_reports(server, vue):
    with browser.frontend(server, vue=vue) as (page, errors):
        browser.open_workflow(page, host.load_workflow("1-text-to-image"))
        browser.wait_for_panel(page, "SSDSampler", "80 passes instead of AR's 576: 7.2 times fewer")
        page.evaluate(f"ssdTest.set('SSDSampler', 'seed', {100 + vue})")  # or the second run is a cached one
        page.evaluate("ssdTest.set('SSDSampler', 'r', 0)")
        browser.wait_for_panel(page, "SSDSampler", "34 passes")
        page.evaluate("ssdTest.set('SSDSampler', 'decoder', 'lossless')")
        browser.wait_for_panel(page, "SSDSampler", "As many passes as the picture needs")
        page.evaluate("ssdTest.set('SSDSampler', 'decoder', 'ssd')")
        page.evaluate("ssdTest.set('SSDSampler', 'settle', true)")
        browser.wait_for_panel(page, "SSDSampler", "At most 34 passes instead of AR's 576")
        page.evaluate("ssdTest.set('SSDSampler', 'settle', false)")
        assert min(page.evaluate("ssdTest.room('SSDSampler')")) > 20  # on the node, whatever the zoom

        browser.run(page)
        browser.wait_for_panel(page, "SSDSampler", "34 passes (planned 34)")
        colours = page.evaluate(
            """() => {
              const canvas = ssdTest.panel("SSDSampler").querySelector("canvas");
              const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
              const seen = new Set();
              for (let i = 0; i < data.length; i += 4) seen.add(data.slice(i, i + 3).join());
              return [canvas.width, canvas.height, [...seen]];
            }"""
        )
        assert colours[:2] == [24, 24]
        assert set(colours[2]) <= {"59,157,221", "240,160,48"}  # all cells are final
        assert not errors


@RENDERERS
def test_the_schedule_node_plans_for_itself_and_for_the_sampler(server, vue):
    workflow = host.load_workflow("4-janus-pro-7b")
    for node in workflow["nodes"]:
        if node["type"] == "LoadBackbone":
            node["widgets_values"][0] = "builtin"
    with browser.frontend(server, vue=vue) as (page, errors):
        browser.open_workflow(page, workflow)
        for kind in ("SSDSchedule", "SSDSampler"):
            browser.wait_for_panel(page, kind, "As many passes as the picture needs")
        page.evaluate("ssdTest.set('SSDSchedule', 'speed', 4)")
        for kind in ("SSDSchedule", "SSDSampler"):
            browser.wait_for_panel(page, kind, "34 passes")
        assert not errors


@RENDERERS
def test_a_peer_shows_its_knobs_and_the_sampler_plans_with_them(server, vue):
    with browser.frontend(server, vue=vue) as (page, errors):
        browser.open_workflow(page, host.load_workflow("1-text-to-image"))
        page.evaluate(
            """() => {
              const peer = LiteGraph.createNode("PeerDecoder");
              app.graph.add(peer);
              peer.pos = [-400, 80];
              const sampler = ssdTest.nodes("SSDSampler")[0];
              peer.connect(0, sampler, sampler.inputs.findIndex((input) => input.name === "schedule"));
              ssdTest.fit();
            }"""
        )
        for decoder, shown, plan in (
            ("lantern", {"neighbors", "delta", "factor", "k_h"}, "As many passes as the picture needs"),
            ("zipar", {"window", "adaptive"}, "209 passes"),
        ):
            page.evaluate(f"ssdTest.set('PeerDecoder', 'decoder', '{decoder}')")
            browser.wait_for_panel(page, "SSDSampler", plan)
            knobs = set(page.evaluate("ssdTest.shown('PeerDecoder')")) - {"decoder"}
            assert knobs > shown if vue else knobs == shown
        page.evaluate("ssdTest.set('PeerDecoder', 'window', 4)")
        browser.wait_for_panel(page, "SSDSampler", "117 passes")
        assert not errors


@RENDERERS
def test_the_panel_works_inside_a_subgraph(server, vue):
    with browser.frontend(server, vue=vue) as (page, errors):
        browser.open_workflow(page, host.load_workflow("1-text-to-image"))
        page.evaluate(
            """() => {
              const node = ssdTest.nodes("SSDSampler")[0];
              app.graph.convertToSubgraph(new Set([node]));
            }"""
        )
        assert page.evaluate("app.graph.nodes.every((node) => node.type !== 'SSDSampler')")
        browser.wait_for_panel(page, "SSDSampler", "80 passes instead of AR's 576")
        rounds, passes = (3, 103) if vue else (1, 57)  # or the second run is a cached one
        page.evaluate(f"ssdTest.set('SSDSampler', 'r', {rounds})")
        browser.wait_for_panel(page, "SSDSampler", f"{passes} passes")
        browser.run(page)
        browser.wait_for_panel(page, "SSDSampler", f"{passes} passes (planned {passes})")
        assert not errors


def test_the_panel_speaks_the_language_of_the_frontend(server):
    with browser.frontend(server, language="zh") as (page, errors):
        browser.open_workflow(page, host.load_workflow("1-text-to-image"))
        browser.wait_for_panel(page, "SSDSampler", "AR 需要 576 次")
        page.evaluate("ssdTest.set('SSDSampler', 'r', 0)")
        page.evaluate("ssdTest.set('SSDSampler', 'seed', 120)")
        page.evaluate("ssdTest.set('SSDSampler', 'preview', 'off')")
        browser.run(page)
        for text in ("计划 34 次", "猜测保留修正"):
            browser.wait_for_panel(page, "SSDSampler", text)
        page.evaluate("app.extensionManager.setting.set('Comfy.Locale', 'en')")  # the workflow is loaded anew
        for text in ("passes instead of AR's 576", "guesskeptcorrected"):
            browser.wait_for_panel(page, "SSDSampler", text)
        assert not errors


def test_cancel_is_said_on_the_panel(server):
    with browser.frontend(server) as (page, errors):
        workflow = host.load_workflow("1-text-to-image")
        browser.open_workflow(page, workflow)
        page.evaluate("ssdTest.set('SSDSampler', 'decoder', 'ar')")
        page.evaluate("app.queuePrompt(0)")
        browser.wait_for_panel(page, "SSDSampler", "fewer than AR so far")
        page.evaluate("app.api.interrupt(null)")
        browser.wait_for_panel(page, "SSDSampler", "Stopped after")
        assert not errors
