"""The nodes in the real ComfyUI: a server on the CPU, driven over HTTP and websocket."""

import io
import json
import shutil
from dataclasses import fields

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("websocket", reason="websocket-client is not installed")
import comfyui_host as host

from ssd_core.decoders import OPTIONS, SCHEDULED
from ssd_core.heads import HeadSet, save_heads

pytestmark = pytest.mark.skipif(host.missing() is not None, reason=str(host.missing()))
ROWS = 24  # of the builtin model's grid
NODES = {
    "LoadBackbone": ["SSD_BACKBONE"],
    "LoadSSDHeads": ["SSD_HEADS"],
    "SaveSSDHeads": ["STRING"],
    "SSDSchedule": ["SSD_SCHEDULE", "STRING"],
    "PeerDecoder": ["SSD_SCHEDULE"],
    "SSDSampler": ["IMAGE", "MASK", "STRING"],
    "ARSampler": ["IMAGE", "STRING"],
    "SSDCompare": ["IMAGE", "IMAGE", "IMAGE", "STRING"],
    "SSDSweep": ["IMAGE", "IMAGE", "STRING"],
    "TrainSSDHeads": ["SSD_HEADS", "IMAGE", "STRING"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = host.Server(tmp_path_factory.mktemp("comfyui") / "base")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def definitions(server):
    return server.get("/object_info")


@pytest.fixture
def client(server):
    client = host.Client(server)
    yield client
    client.close()


def graph(definitions, sampler="SSDSampler", loader=None, heads="shipped", **values):
    """The API form of loader (1), heads (2), a sampler (3) and what shows its picture (4) and words (5)."""

    def node(kind, **inputs):
        own = {name: _default(options, spec) for name, spec, options in host.widgets(definitions[kind])}
        return {"class_type": kind, "inputs": own | inputs}

    takes = {**definitions[sampler]["input"]["required"], **definitions[sampler]["input"].get("optional", {})}
    connected = {"backbone": ["1", 0]} | ({"heads": ["2", 0]} if heads and "heads" in takes else {})
    words = definitions[sampler]["output"].index("STRING")
    prompt = {
        "1": node("LoadBackbone", **(loader or {})),
        "2": node("LoadSSDHeads", backbone=["1", 0], heads=heads),
        "3": node(sampler, **connected, **values),
        "4": node("SaveImage", images=["3", definitions[sampler]["output"].index("IMAGE")]),
        "5": node("PreviewAny", source=["3", words]),
    }
    if "heads" not in connected:
        del prompt["2"]
    return prompt


def _default(options, kind):
    choices = options.get("options") or [None]
    return options.get("default", choices[0] if kind == "COMBO" else "")


def pictures(server, run, node="4"):
    """The saved pictures of a run, uint8 [B, H, W, 3]."""
    files = [server.base / image["type"] / image["filename"] for image in run.output(node)["images"]]
    return np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])


def words(run, node="5"):
    return run.output(node)["text"][0]


# --------------------------------------------------------------------------------------------- the pack itself


def test_the_pack_loads_with_its_nodes(server, definitions):
    log = server.text()
    assert host.PACK in log
    assert not [line for line in log.splitlines() if host.PACK in line and ("FAILED" in line or "Cannot" in line)]
    for node, outputs in NODES.items():
        assert definitions[node]["category"] == "SSD"
        assert definitions[node]["output"] == outputs


@pytest.mark.parametrize("node", NODES)
def test_every_input_and_output_has_a_tooltip_and_every_number_a_range(definitions, node):
    definition = definitions[node]
    assert definition["description"]
    assert all(definition["output_tooltips"])
    for group in ("required", "optional"):
        for name, (kind, *options) in definition["input"].get(group, {}).items():
            assert options[0]["tooltip"], name
            if kind in ("INT", "FLOAT"):
                assert options[0]["min"] <= options[0]["default"] <= options[0]["max"], name


def test_help_locales_templates_and_scripts_are_served(server):
    extension = f"/extensions/{host.PACK}"
    assert f"{extension}/js/ssd.js" in server.get("/extensions")
    for node in NODES:
        with host.urllib.request.urlopen(f"{server.url}{extension}/docs/{node}.md") as page:
            assert page.read().startswith(b"# ")
    names = server.get("/workflow_templates")[host.PACK]
    assert len(names) == 7
    for name in names:
        for suffix in ("json", "jpg"):
            with host.urllib.request.urlopen(
                f"{server.url}/api/workflow_templates/{host.PACK}/{name}.{suffix}"
            ) as file:
                assert file.status == 200
    translations = server.get("/i18n")
    for language in ("en", "zh"):
        assert set(NODES) <= set(translations[language]["nodeDefs"])
        assert translations[language]["ssd"]["panel"]


def test_planned_passes_are_answered(server):
    knobs = {"decoder": "ssd", "r": 2, "k_v": 1, "b": 0, "i": 0, "k_h": 5, "commits": "own", "window": 24}
    assert server.post("/ssd/plan", {"backbone": "builtin", **knobs})[1]["passes"] == 80
    assert server.post("/ssd/plan", {"backbone": "builtin", **knobs, "commits": "early"})[1]["passes"] == 57
    settling = server.post("/ssd/plan", {"backbone": "builtin", **knobs, "settle": True})[1]
    assert (settling["passes"], settling["most"]) == (None, 80)
    assert "At most 80 passes" in settling["text"]
    chinese = server.post("/ssd/plan", {"backbone": "builtin", **knobs, "settle": True, "language": "zh"})[1]
    assert "最多 80 次前向" in chinese["text"]
    for peer, passes in (({"decoder": "zipar", "window": 4}, 1 + 24 + 23 * 4), ({"decoder": "mtp", "k_h": 5}, 232)):
        assert server.post("/ssd/plan", {"backbone": "builtin", "peer": peer})[1]["passes"] == passes
    slow = server.post("/ssd/plan", {"backbone": "builtin", "preset": "speed slider", "speed": 0})[1]
    assert slow["passes"] is None
    assert slow["ar"] == 576
    for question in (
        {},
        {"backbone": "nobody", "preset": "emu3", "speed": 0},
        {"backbone": "builtin", **knobs, "k_v": 0},
        {"backbone": "builtin", "peer": {"decoder": "ssd"}},
        {"backbone": "builtin", "peer": {"decoder": "lantern", "factor": 0.5}},
    ):
        status, answer = server.post("/ssd/plan", question)
        assert status == 400
        assert answer["error"]


def test_the_peers_have_their_knobs_and_the_browser_learns_whose_they_are(definitions):
    inputs = definitions["PeerDecoder"]["input"]["required"]
    assert inputs["decoder"][1]["options"] == list(OPTIONS)
    for decoder, options in OPTIONS.items():
        own = {field.name for field in fields(options)} | ({"k_h"} if decoder in SCHEDULED else set())
        assert own == {name for name, (_, given) in inputs.items() if decoder in given.get("decoders", ())}
    for name, (kind, given) in inputs.items():
        if name not in ("decoder", "window"):
            values = [getattr(options(), name, None) for options in OPTIONS.values()]
            assert given["default"] in values or name == "k_h", name
            assert kind == {bool: "BOOLEAN", int: "INT", float: "FLOAT", str: "COMBO"}[type(given["default"])]


# ----------------------------------------------------------------------------------------------- the workflows


def test_text_to_image_shows_rows_as_they_arrive(server, client, definitions):
    prompt = host.api_form(host.load_workflow("1-text-to-image"), definitions)
    sampler = next(id for id, node in prompt.items() if node["class_type"] == "SSDSampler")
    run = client.run(prompt)
    assert not run.error

    progress = [data for data in run.of("progress") if data["node"] == sampler]
    values = [data["value"] for data in progress]
    assert values == sorted(values)
    assert {data["max"] for data in progress} == {80}  # passes
    assert values[-1] == 80

    previews = [data for data in run.of("preview") if data[0]["node_id"] == sampler]
    assert len(previews) >= ROWS - 1
    known = []
    for metadata, jpeg in previews:
        assert metadata["image_type"] == "image/jpeg"
        image = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")).astype(int)
        assert image.shape == (192, 192, 3)
        known.append(int((abs(image - 38).max((1, 2)) > 8).sum()))  # pixel rows that are not all grey
    assert known == sorted(known)
    assert known[0] <= 3 * 8
    assert known[-1] == 192

    messages = [data for data in run.of("ssd.run") if data["node"] == sampler]
    passes = [data["passes"] for data in messages]
    assert passes == sorted(passes)
    assert all(len(data["cells"]) == 576 for data in messages)
    assert "0" not in messages[-1]["cells"] + "1"[1:]
    assert messages[-1]["planned"] == messages[-1]["passes"] == 80
    statistics = messages[-1]["statistics"]
    assert "80 passes (planned 80), AR takes 576: 7.2 times fewer" in statistics["en"]
    assert "计划 80 次" in statistics["zh"]
    assert run.output(sampler)["ssd"] == [statistics["en"]]


def test_a_settling_schedule_takes_no_more_than_its_plan(client, definitions):
    run = client.run(graph(definitions, seed=7, r=2, settle=True, preview="off"))
    assert not run.error
    last = run.of("ssd.run")[-1]
    assert last["planned"] is None
    assert last["passes"] < last["most"] == 80
    assert f"{last['passes']} passes (at most 80)" in words(run)
    assert " settle " in words(run).splitlines()[0]


def test_prompts_from_before_settle_still_run(client, definitions):
    prompt = graph(definitions, seed=8, r=0, preview="off")
    del prompt["3"]["inputs"]["settle"]
    run = client.run(prompt)
    assert not run.error
    assert "34 passes (planned 34)" in words(run)


def test_ar_against_ssd_equals_ar_losslessly(server, client, definitions):
    prompt = host.api_form(host.load_workflow("2-ar-against-ssd"), definitions)
    compare = next(id for id, node in prompt.items() if node["class_type"] == "SSDCompare")
    run = client.run(prompt)
    assert not run.error
    first, ssd, lossless = run.output(compare)["ssd"][0].split("\n\n")
    assert first.startswith("ar\n576 passes")
    assert "80 passes" in ssd
    assert lossless.startswith("lossless")
    assert "100% of the cells equal AR's" in lossless
    values = [data["value"] for data in run.of("progress") if data["node"] == compare]
    assert values == sorted(values)


def test_the_sweep_draws_a_contact_sheet(server, client, definitions):
    prompt = host.api_form(host.load_workflow("3-speed-sweep"), definitions)
    sweep = next(id for id, node in prompt.items() if node["class_type"] == "SSDSweep")
    save = next(id for id, node in prompt.items() if node["class_type"] == "SaveImage")
    prompt[sweep]["inputs"] |= {"rounds": "0, 1", "rows": "1,2", "reference": False}
    run = client.run(prompt)
    assert not run.error
    assert run.output(sweep)["ssd"][0].count("passes") == 4
    sheet = pictures(server, run, save)
    assert sheet.shape[2] > 2 * 320  # two columns

    prompt[sweep]["inputs"]["rounds"] = "0, many"
    status, answer = client.queue(prompt)
    assert status == 400
    assert "r is a list of whole numbers" in str(answer["node_errors"][sweep])


def test_heads_are_trained_saved_and_used(server, client, definitions):
    prompt = host.api_form(host.load_workflow("7-train-heads"), definitions)
    train, save = (
        next(id for id, node in prompt.items() if node["class_type"] == kind)
        for kind in ("TrainSSDHeads", "SaveSSDHeads")
    )
    prompt[train]["inputs"] |= {"pictures": 4, "steps": 3, "batch_size": 2, "k_h": 5, "k_v": 1, "run": "short"}
    prompt[save]["inputs"]["name"] = "trained here"
    run = client.run(prompt)
    assert not run.error
    assert [data for data in run.of("preview") if data[0]["node_id"] == train]
    assert "Held-out pictures" in run.output(train)["text"][0]
    path = server.base / "models" / "ssd_heads" / "trained here.safetensors"
    assert run.output(save)["text"] == [str(path)]
    assert path.is_file()

    assert "trained here.safetensors" in _heads_offered(server)
    again = client.run(graph(server.get("/object_info"), heads="trained here.safetensors", seed=1, r=0))
    assert not again.error
    assert "heads: trained" in words(again)


def _heads_offered(server):
    return server.get("/object_info/LoadSSDHeads")["LoadSSDHeads"]["input"]["required"]["heads"][1]["options"]


def test_heads_learn_from_a_captioned_folder(server, client, definitions):
    folder = server.base / "input" / "stars"
    folder.mkdir()
    for number, colour in enumerate(("red", "white", "blue")):
        Image.new("RGB", (300, 200), colour).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text("a star", encoding="utf-8")
    prompt = graph(definitions, "TrainSSDHeads", source="captioned folder", folder="stars", steps=1, k_h=1, k_v=1)
    prompt["3"]["inputs"]["run"] = "stars"
    run = client.run(prompt)
    assert not run.error
    assert "1 below" in words(run)


# ------------------------------------------------------------------------------------------ caching and Cancel


def test_only_what_a_knob_changes_runs_again(client, definitions):
    prompt = graph(definitions, seed=21, r=0)
    assert set(client.run(prompt).executed()) >= {"3", "4", "5"}
    assert not {"1", "2", "3"} & set(client.run(prompt).executed())  # cached
    prompt["3"]["inputs"]["r"] = 1
    changed = client.run(prompt)
    assert "3" in changed.executed()
    assert not {"1", "2"} & set(changed.executed())


def test_cancel_stops_within_a_pass_and_the_next_run_works(server, client, definitions):
    passes = []

    def interrupt(kind, data):
        if kind == "progress" and data["node"] == "3":
            passes.append(data["value"])
            if len(passes) == 10:
                server.post("/interrupt", {})
                passes.append("cancelled")

    run = client.run(graph(definitions, "ARSampler", seed=22, preview="off"), interrupt)
    assert run.of("execution_interrupted")
    assert not run.of("execution_error")
    after = passes[passes.index("cancelled") + 1 :]
    assert len(after) < 100  # of 576; messages of passes before the click may still have been on their way
    assert not client.run(graph(definitions, seed=22, r=0)).error


def test_cancelled_training_keeps_its_checkpoint_and_goes_on(server, client, definitions):
    values = {"pictures": 2, "steps": 40, "batch_size": 1, "k_h": 1, "k_v": 1, "run": "cancelled"}
    prompt = graph(definitions, "TrainSSDHeads", heads=None, **values)
    clicked = []

    def interrupt(kind, data):
        if kind == "progress" and data["value"] > 1050 and not clicked:
            clicked.append(data["value"])
            server.post("/interrupt", {})

    run = client.run(prompt, interrupt)
    assert run.of("execution_interrupted")
    folder = server.base / "output" / "ssd_heads" / "cancelled"
    steps = torch.load(folder / "checkpoint.pt", weights_only=True)["step"]
    assert 0 < steps < 40
    again = client.run(prompt)
    assert not again.error
    logged = [json.loads(line).get("step") for line in (folder / "log.jsonl").read_text().splitlines()]
    assert logged == [*range(1, steps + 1), *range(steps + 1, 41), 40]  # gone on where it stopped; the last: validation


# --------------------------------------------------------------------------------------------- several at once


def test_a_batch_draws_the_pictures_of_its_seeds(server, client, definitions):
    batch = pictures(server, client.run(graph(definitions, seed=30, r=1, batch_size=2)))
    single = pictures(server, client.run(graph(definitions, seed=31, r=1)))
    assert batch.shape == (2, 192, 192, 3)
    assert (batch[0] != batch[1]).any()
    assert abs(batch[1].astype(int) - single[0]).max() <= 2


def test_two_samplers_share_a_graph_and_lossless_draws_ars_picture(server, client, definitions):
    prompt = graph(definitions, seed=33, decoder="lossless", preview="colours")
    slow = graph(definitions, "ARSampler", seed=33, preview="off")
    prompt |= {"6": slow["3"], "7": slow["4"] | {"inputs": {"images": ["6", 0], "filename_prefix": "ar"}}}
    run = client.run(prompt)
    assert not run.error
    assert {"3", "6"} <= set(run.executed())
    assert (pictures(server, run, "4") == pictures(server, run, "7")).all()


def test_a_node_in_a_subgraph_reports_under_its_execution_id(client, definitions):
    prompt = graph(definitions, seed=34, r=0)
    prompt["9:3"] = prompt.pop("3")
    prompt["4"]["inputs"]["images"], prompt["5"]["inputs"]["source"] = ["9:3", 0], ["9:3", 2]
    run = client.run(prompt)
    assert not run.error
    assert {data["node"] for data in run.of("ssd.run")} == {"9:3"}


def test_old_clients_get_previews_too(server, definitions):
    client = host.Client(server, metadata=False)
    run = client.run(graph(definitions, seed=35, r=0, preview="colours", preview_every=8))
    client.close()
    assert 3 <= len(run.of("preview")) <= 5
    assert run.of("preview")[0][1][:2] == b"\xff\xd8"


# ------------------------------------------------------------------------------------------------- bad requests


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"r": 65}, "value_bigger_than_max"),
        ({"k_v": 0}, "value_smaller_than_min"),
        ({"seed": 2**31}, "value_bigger_than_max"),
        ({"top_p": 1.1}, "value_bigger_than_max"),
        ({"batch_size": 0}, "value_smaller_than_min"),
        ({"decoder": "magic"}, "custom_validation_failed"),
    ],
)
def test_bad_values_are_stopped_before_anything_runs(client, definitions, values, kind):
    status, answer = client.queue(graph(definitions, **values))
    assert status == 400
    assert answer["node_errors"]["3"]["errors"][0]["type"] == kind


def test_missing_heads_and_packed_builtin_weights_are_refused(client, definitions):
    status, answer = client.queue(graph(definitions, heads="not there.safetensors"))
    assert status == 400
    assert 'heads is "not there.safetensors", but the choices are shipped, none' in str(answer["node_errors"]["2"])
    status, answer = client.queue(graph(definitions, loader={"quantization": "4 bits"}))
    assert status == 400
    assert "no packed weights" in str(answer["node_errors"]["1"])


def test_knobs_that_no_peer_can_have_are_refused(client, definitions):
    for wrong, said in (
        ({"decoder": "lantern", "factor": 0.5}, "factor must be above 1"),
        ({"decoder": "ssd"}, 'decoder is "ssd", but the choices are window, mtp'),
        ({"gap": 1.5}, "bigger than max"),
    ):
        knobs = {name: _default(options, kind) for name, kind, options in host.widgets(definitions["PeerDecoder"])}
        prompt = graph(definitions, schedule=["6", 0])
        prompt["6"] = {"class_type": "PeerDecoder", "inputs": knobs | wrong}
        status, answer = client.queue(prompt)
        assert status == 400
        assert said in str(answer["node_errors"]["6"])


@pytest.mark.parametrize("name", ["../outside", "", "a/b", ".hidden", "c:d"])
def test_heads_are_written_nowhere_else(client, definitions, name):
    prompt = graph(definitions)
    prompt["8"] = {"class_type": "SaveSSDHeads", "inputs": {"heads": ["2", 0], "name": name}}
    _, answer = client.queue(prompt)
    assert "is no file name" in str(answer["node_errors"]["8"])


def test_heads_of_another_backbone_are_refused_in_one_sentence(server, client, definitions):
    path = server.base / "models" / "ssd_heads" / "foreign.safetensors"
    save_heads(HeadSet(16, "janus-pro-16-0123", 2, 1), path)
    run = client.run(graph(definitions, heads="foreign.safetensors"))
    assert "was trained for backbone janus-pro-16-0123" in run.error
    assert run.of("execution_error")[0]["node_type"] == "LoadSSDHeads"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"prompt": "a zebra"}, "zebra"),
        ({"negative_prompt": "blur", "seed": 40}, "no negative prompt"),
        ({"width": 256}, "192 x 192 pixels only"),
        ({"k_v": 9, "b": 0, "i": 0}, "reach only"),
    ],
)
def test_what_the_model_cannot_do_is_said(client, definitions, values, said):
    assert said in client.run(graph(definitions, **values)).error


# --------------------------------------------------------------------------------------------- other backbones


def test_checkpoints_are_found_where_people_keep_them_and_draw_without_heads(server, client, janus, emu3):
    shutil.copytree(janus.folder, server.base / "models" / "LLM" / "deepseek-ai" / "Janus-Pro-tiny")
    shutil.copytree(emu3.folder, server.base / "models" / "ssd" / "Emu3-Gen-tiny")
    definitions = server.get("/object_info")
    names = definitions["LoadBackbone"]["input"]["required"]["name"][1]["options"]
    assert names == ["builtin", "deepseek-ai/Janus-Pro-tiny", "Emu3-Gen-tiny"]

    plan = server.post("/ssd/plan", {"backbone": names[1], "preset": "speed slider", "speed": 4})[1]
    assert plan["ar"] == 16
    loader = {"name": names[1], "dtype": "float32"}
    slow = client.run(graph(definitions, "ARSampler", loader=loader, prompt="a cat", seed=3))
    fast = client.run(graph(definitions, loader=loader, heads="none", prompt="a cat", seed=3, decoder="lossless"))
    assert not slow.error + fast.error
    assert (pictures(server, slow) == pictures(server, fast)).all()
    assert "heads: none" in words(fast)
    shipped = client.run(graph(definitions, loader=loader, heads="shipped", prompt="a cat"))
    assert "No heads come with" in shipped.error

    loader = {"name": names[2], "dtype": "float32"}
    wide = {"prompt": "a cat", "width": 12, "height": 8, "cfg": 3.0, "negative_prompt": "blur", "k_h": 2}
    run = client.run(graph(definitions, loader=loader, heads=None, **wide))
    assert not run.error
    assert pictures(server, run).shape == (1, 8, 12, 3)


def test_a_connected_peer_decodes_with_its_knobs(server, client, janus):
    shutil.copytree(janus.folder, server.base / "models" / "ssd" / "small")  # 4 x 4 cells
    definitions = server.get("/object_info")
    loader = {"name": "small", "dtype": "float32"}
    common = {"loader": loader, "heads": None, "prompt": "a cat", "seed": 36, "schedule": ["6", 0]}
    knobs = {name: _default(options, kind) for name, kind, options in host.widgets(definitions["PeerDecoder"])}

    def decoded(sampler, **changed):
        peer = {"class_type": "PeerDecoder", "inputs": knobs | changed}
        run = client.run(graph(definitions, sampler, **common) | {"6": peer})
        assert not run.error
        return words(run)

    zipar = decoded("SSDSampler", decoder="zipar", window=2)
    assert zipar.startswith("zipar window=2\n11 passes (planned 11), AR takes 16")
    sjd = decoded("SSDSampler", decoder="sjd", drafts="above", coupled=True)
    assert sjd.startswith("sjd window=16 drafts=above coupled\n")
    ar, peer, exact = decoded("SSDCompare", decoder="window", window=3, tolerance=1).split("\n\n")
    assert ar.startswith("ar\n16 passes")
    assert peer.startswith("window window=3 tolerance=1\n")
    assert "100% of the cells equal AR's" in exact


def test_packed_weights_draw_again_and_again_and_are_read_anew_after_they_were_freed(server, client, janus):
    pytest.importorskip("bitsandbytes")
    shutil.copytree(janus.folder, server.base / "models" / "ssd" / "packed")
    loader = {"name": "packed", "quantization": "8 bits"}
    values = {"prompt": "a cat", "preview": "off", "decoder": "lossless"}
    for seed in (1, 2):
        assert not client.run(graph(server.get("/object_info"), loader=loader, heads=None, seed=seed, **values)).error
    server.post_raw("/free", {"unload_models": True})
    assert not client.run(graph(server.get("/object_info"), loader=loader, heads=None, seed=3, **values)).error


def test_a_replaced_checkpoint_is_read_again(server, client, janus):
    folder = server.base / "models" / "ssd" / "changing"
    shutil.copytree(janus.folder, folder)
    definitions = server.get("/object_info")
    prompt = graph(definitions, loader={"name": "changing"}, heads=None, prompt="a cat", decoder="lossless", seed=5)
    first = client.run(prompt)
    assert "1" in first.executed()
    (folder / "config.json").touch()
    assert "1" in client.run(prompt).executed()
    assert "1" not in client.run(prompt).executed()
