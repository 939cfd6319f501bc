"""The nodes without ComfyUI: settings, words, previews, texts, workflows."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def pack():
    """The repository as ComfyUI imports it: a package whose name is a path."""
    name = str(ROOT).replace(".", "_x_")
    spec = importlib.util.spec_from_file_location(name, ROOT / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)

    class Pack:
        root = module

        def __getattr__(self, inside: str):
            return importlib.import_module(f"{name}.{inside.replace('__', '.')}")

    return Pack()


def test_importing_the_pack_needs_no_comfyui(pack):
    assert pack.root.WEB_DIRECTORY == "./web"
    assert callable(pack.root.comfy_entrypoint)
    assert (ROOT / "web").is_dir()


def test_pytest_collects_in_a_folder_whose_name_is_no_identifier(tmp_path):
    folder = tmp_path / "ComfyUI-SSD"
    (folder / "tests").mkdir(parents=True)
    for name in ("__init__.py", "pyproject.toml"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "tests" / "test_one.py").write_text("def test_one():\n    pass\n", encoding="utf-8")
    ran = subprocess.run([sys.executable, "-m", "pytest"], cwd=folder, capture_output=True, text=True)
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


# ---------------------------------------------------------------------------------------------- settings


def test_r_counts_where_rows_come_one_at_a_time_and_b_and_i_where_they_do_not(pack):
    one = pack.nodes__settings.schedule_of(r=3, k_v=1, b=5, i=4, k_h=2)
    assert (one.b, one.i, one.k_v, one.k_h, one.settle) == (3, 0, 1, 2, False)
    two = pack.nodes__settings.schedule_of(r=3, k_v=2, b=5, i=4, k_h=2, settle=True)
    assert (two.b, two.i, two.k_v, two.k_h, two.settle) == (5, 4, 2, 2, True)


def test_a_connected_schedule_overrules_decoder_and_knobs_but_not_rule_and_window(pack):
    settings = pack.nodes__settings
    fastest = settings.scheduled(settings.SLIDER, 4, "janus-pro")
    knobs = settings.schedule_of(3, 1, 0, 0, 5)
    config = settings.decode_config(fastest, decoder="lossless", schedule=knobs, rule="greedy", window=7)
    assert (config.decoder, config.schedule.b, config.rule, config.window) == ("ssd", 0, "greedy", 7)
    lossless = settings.scheduled(settings.SLIDER, 0, "janus-pro")
    assert settings.decode_config(lossless, decoder="ssd").decoder == "lossless"
    for number, name in enumerate(pack.ssd_core__speeds.SPEEDS):
        stop = settings.scheduled(settings.SLIDER, number, "builtin")
        assert settings.decode_config(stop) == stop == pack.ssd_core__speeds.at_speed(name, "builtin")


def test_a_peers_knobs_are_picked_from_those_of_all(pack):
    settings = pack.nodes__settings
    fields = pack.ssd_core__decoders.option_fields()
    every = {name: field.default for name, (field, _) in fields.items()} | {"window": 0}
    for decoder, options in pack.ssd_core__decoders.OPTIONS.items():
        config = settings.peer_config(decoder, 3, **every)
        assert (config.knobs, config.schedule.k_h) == (options(), 3)
    config = settings.peer_config("gsd", **every | {"window": 9, "group": 2, "drafts": "left", "tolerance": 5})
    assert str(config) == "gsd window=9 drafts=left group=2 gap=0.15 distance=0.5"
    assert settings.decode_config(config, decoder="ssd", rule="greedy", window=7).options == config.options
    with pytest.raises(ValueError, match="factor must be above 1"):
        settings.peer_config("lantern", **every | {"factor": 0.5})
    with pytest.raises(ValueError, match='"ssd" has no knobs of its own: choose one of window, mtp'):
        settings.peer_config("ssd")


def test_every_number_among_the_peers_knobs_has_a_range_with_its_default(pack):
    settings = pack.nodes__settings
    for name, (field, _) in pack.ssd_core__decoders.option_fields().items():
        if field.type in (int, float):
            low, high = settings.PEER_RANGES[name]
            assert low <= field.default <= high, name


def test_a_named_preset_ignores_the_slider(pack):
    settings = pack.nodes__settings
    config = settings.scheduled("lumina-mgpt", 4, "builtin")
    assert (config.decoder, config.schedule.k_v) == ("ssd", 2)


def test_zero_stands_for_the_models_own_sampling(pack):
    own = pack.ssd_core__sampling.SamplingConfig(cfg=3.0, temperature=0.9, top_k=50, top_p=0.8)
    assert pack.nodes__settings.sampling_config(own, 0.0, 0.0, 0, 0.0) == own
    changed = pack.nodes__settings.sampling_config(own, 1.0, 0.5, 10**6, 1.0)
    assert (changed.cfg, changed.temperature, changed.top_k, changed.top_p) == (1.0, 0.5, 10**6, 1.0)


def test_the_seeds_of_a_batch_run_on_at_zero(pack):
    largest = pack.ssd_core__sampling.MAX_SEED
    assert pack.nodes__settings.consecutive(largest - 1, 3) == [largest - 1, largest, 0]


@pytest.mark.parametrize("text", ["", "1; 2", "65", "-1", "two", "1.5", "²"])
def test_lists_of_numbers_are_checked(pack, text):
    with pytest.raises(ValueError, match="r is a list of whole numbers from 0 to 64"):
        pack.nodes__settings.numbers(text, "r", 0, 64)


def test_a_sweep_goes_over_r_for_every_k_v(pack):
    settings = pack.nodes__settings
    base = pack.ssd_core__decoders.DecodeConfig(rule="greedy")
    configs = settings.sweep(settings.numbers(" 0, 2,2 ", "r", 0, 64), [1, 2], base, True)
    assert [(c.decoder, c.schedule.b, c.schedule.i, c.schedule.k_v) for c in configs[1:]] == [
        ("ssd", 0, 0, 1),
        ("ssd", 2, 0, 1),
        ("ssd", 0, 0, 2),
        ("ssd", 2, 1, 2),
    ]
    assert configs[0].decoder == "ar"
    assert {c.rule for c in configs} == {"greedy"}


def test_plans_of_every_decoder_are_put_into_words(pack):
    grid = pack.ssd_core__grid.TokenGrid(24, 24)
    for decoder in pack.ssd_core__decoders.DECODERS:
        words = pack.nodes__settings.plan(pack.ssd_core__decoders.DecodeConfig(decoder), grid)
        assert "passes" in words
    config, settling = (
        pack.ssd_core__decoders.DecodeConfig(schedule=pack.ssd_core__schedule.Schedule(b=2, settle=settle))
        for settle in (False, True)
    )
    assert pack.nodes__settings.plan(config, grid) == (
        "80 passes instead of AR's 576: 7.2 times fewer, at best 7.2 times as fast."
    )
    assert pack.nodes__settings.plan(settling, grid) == (
        "At most 80 passes instead of AR's 576: at least 7.2 times fewer."
    )
    assert pack.nodes__settings.plan(settling, grid, "zh").startswith("最多 80 次前向")
    assert pack.nodes__settings.plan(settling, grid, "fr") == pack.nodes__settings.plan(settling, grid)


# ------------------------------------------------------------------------------- what a viewer gets to see


@pytest.fixture(scope="module")
def backbone(pack):
    return pack.ssd_core__backbones.load_builtin()


def watch(pack, backbone, config, seeds=(7,)):
    """Statistics and what was seen of a run on a few rows; the events' live tensors are cloned."""
    guesses, events = pack.nodes__watching.FirstGuesses(), []
    grid = pack.ssd_core__grid.TokenGrid(3, 24)

    def look(event):
        guesses.see(event)
        events.append((event.phase, guesses.cells(event)))
        look.last = event

    generate = pack.ssd_core__generate.generate
    result = generate(backbone, ["a cat"] * len(seeds), list(seeds), config, grid=grid, on_event=look)
    return result, guesses, events, look.last


def test_the_map_tells_guesses_from_final_cells_and_kept_from_corrected(pack, backbone):
    config = pack.ssd_core__decoders.DecodeConfig(schedule=pack.ssd_core__schedule.Schedule(b=2))
    result, guesses, events, last = watch(pack, backbone, config)
    maps = dict(events)
    assert maps["prefill"] == "2" + "0" * 71
    assert {"0", "1", "2"} <= {letter for _, cells in events for letter in cells}
    assert set(events[-1][1]) == {"2", "3"}  # a run without any correction would be no test
    assert events[-1][1].count("2") == int(guesses.kept(last).sum())
    words = pack.nodes__settings.statistics(result, pack.ssd_core__grid.TokenGrid(3, 24), 0.5)
    assert f"{result.nfe} passes (planned {result.planned_nfe}), AR takes 72" in words
    assert "first guesses that stayed: 50%" in words
    assert "seed 7" in words
    translated = pack.nodes__settings.statistics(result, pack.ssd_core__grid.TokenGrid(3, 24), 0.5, "zh")
    assert f"计划 {result.planned_nfe} 次" in translated
    assert len(translated.splitlines()) == len(words.splitlines())


def test_the_statistics_of_a_settling_run_say_what_it_could_have_taken(pack, backbone):
    schedule = pack.ssd_core__schedule.Schedule(b=4, settle=True)
    result, *_ = watch(pack, backbone, pack.ssd_core__decoders.DecodeConfig(schedule=schedule, rule="greedy"))
    grid = pack.ssd_core__grid.TokenGrid(3, 24)
    assert result.nfe < schedule.planned_nfe(grid)
    words = pack.nodes__settings.statistics(result, grid)
    assert f"{result.nfe} passes (at most {schedule.planned_nfe(grid)}), AR takes 72" in words


def test_every_first_guess_of_ar_stays(pack, backbone):
    result, guesses, events, last = watch(pack, backbone, pack.ssd_core__decoders.DecodeConfig("ar"), (1, 2))
    assert guesses.kept(last).all()
    assert events[-1][1] == "2" * 72
    assert "kept" not in pack.nodes__settings.statistics(result, pack.ssd_core__grid.TokenGrid(3, 24), 1.0)


def test_masks_have_the_size_of_the_picture(pack):
    kept = torch.tensor([[[True, False], [False, True]]])
    expected = torch.eye(2).repeat_interleave(3, 0).repeat_interleave(3, 1)
    assert torch.equal(pack.nodes__watching.mask(kept, 6, 6)[0], expected)


@pytest.mark.parametrize(("mode", "size"), [("pixels", (2 * 192, 2 * 24)), ("colours", (2 * 384, 2 * 48))])
def test_previews_show_known_cells_guesses_paler_and_the_rest_grey(pack, backbone, mode, size):
    tokens = torch.full((3, 3, 24), 5)
    status = torch.zeros(3, 3, 24, dtype=torch.uint8)
    status[:, 0], status[:, 1] = 2, 1
    event = pack.ssd_core__session.DecodeEvent("draft", range(1, 2), 1, 0.5, 0.1, tokens, status)
    shown = np.asarray(pack.nodes__watching.picture(backbone, event, mode)).astype(int)
    assert shown.shape == (size[1], size[0], 3)
    grey, row = round(0.15 * 255), size[1] // 6
    final, guess, unknown = shown[:row, : size[0] // 2], shown[row : 2 * row, : size[0] // 2], shown[2 * row : 3 * row]
    assert (unknown == grey).all()
    assert abs(final - grey).mean() > abs(guess - grey).mean() > 0
    assert (shown[3 * row :, size[0] // 2 :] == grey).all()  # three pictures leave one place of four free


# ------------------------------------------------------------------------------------------------- training


def test_the_loss_curve_is_read_from_the_log_and_drawn(pack, tmp_path):
    log = tmp_path / "log.jsonl"
    records = [{"step": 1, "h1": 2.0, "v1": 1.0, "seconds": 1}, {"step": 2, "h1": 0.5, "v1": 0.25, "seconds": 2}]
    records.append({"step": 2, "evaluation": {"h1_loss": 0.1}})
    log.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    points = pack.nodes__curves.read_log(log)
    assert points == [(1, 3.0), (2, 0.75)]
    drawn = np.asarray(pack.nodes__curves.loss_curve(points))
    empty = np.asarray(pack.nodes__curves.loss_curve([]))
    assert drawn.shape == empty.shape
    assert (drawn != empty).any()


# --------------------------------------------------------------------------------- texts, help and workflows

NODE_IDS = [
    *("LoadBackbone", "LoadSSDHeads", "SSDSampler", "SSDSchedule", "ARSampler", "SSDCompare", "SSDSweep"),
    *("TrainSSDHeads", "SaveSSDHeads", "PeerDecoder"),
]
WORKFLOWS = sorted((ROOT / "workflows").glob("*.json"))


def texts(language):
    return json.loads((ROOT / "locales" / language / "nodeDefs.json").read_text(encoding="utf-8"))


def test_both_languages_say_something_about_everything():
    english, chinese = texts("en"), texts("zh")
    assert list(english) == list(chinese)
    assert set(english) == set(NODE_IDS)
    for node in english:
        for part in ("inputs", "outputs"):
            assert list(english[node][part]) == list(chinese[node][part]), node
            for name, entry in chinese[node][part].items():
                assert entry["name"], (node, name)
                assert entry["tooltip"] != english[node][part][name].get("tooltip"), (node, name)


def test_both_languages_have_the_same_sentences_with_the_same_values():
    english, chinese = (
        json.loads((ROOT / "locales" / language / "main.json").read_text(encoding="utf-8"))["ssd"]
        for language in ("en", "zh")
    )
    script = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "web" / "js").glob("*.js"))
    assert list(english) == list(chinese)
    for group, sentences in english.items():
        assert list(sentences) == list(chinese[group]), group
        for name, sentence in sentences.items():
            values = [set(re.findall(r"\{(\w+)\}", text)) for text in (sentence, chinese[group][name])]
            assert values[0] == values[1], (group, name)
            assert group != "panel" or f'"{name}"' in script, name


@pytest.mark.parametrize("language", ["en", "zh"])
def test_tooltips_name_the_defaults_that_the_models_and_decoders_have(pack, language):
    inputs = texts(language)
    sampler, window = inputs["SSDSampler"]["inputs"], inputs["PeerDecoder"]["inputs"]["window"]["tooltip"]
    for preset in pack.ssd_core__schedule.PRESETS.values():
        assert f"{preset.sampling.cfg:g}" in sampler["cfg"]["tooltip"]
        assert f"{preset.sampling.temperature:g}" in sampler["temperature"]["tooltip"]
        assert f"{preset.sampling.top_k:g}" in sampler["top_k"]["tooltip"]
    for options in pack.ssd_core__decoders.OPTIONS.values():
        assert str(getattr(options(), "window", 0)) in window


@pytest.mark.parametrize("node", NODE_IDS)
def test_every_node_has_a_help_page_that_names_its_inputs_and_outputs(node):
    page = (ROOT / "web" / "docs" / f"{node}.md").read_text(encoding="utf-8")
    english = texts("en")[node]
    for part in ("inputs", "outputs"):
        for entry in english[part].values():
            assert f"**{entry['name']}**" in page, entry["name"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_are_whole_and_have_a_thumbnail(path):
    workflow = json.loads(path.read_text(encoding="utf-8"))
    nodes = {node["id"]: node for node in workflow["nodes"]}
    assert len(nodes) == len(workflow["nodes"])
    for number, origin, origin_slot, target, slot, kind in workflow["links"]:
        assert number in nodes[origin]["outputs"][origin_slot]["links"]
        assert nodes[target]["inputs"][slot]["link"] == number
        assert nodes[origin]["outputs"][origin_slot]["type"] == kind
    used = {node["type"] for node in workflow["nodes"]}
    assert used & set(NODE_IDS)
    thumbnail = path.with_suffix(".jpg")
    assert thumbnail.read_bytes()[:2] == b"\xff\xd8"


def test_there_are_seven_workflows():
    assert [path.stem[0] for path in WORKFLOWS] == list("1234567")


def test_nothing_is_printed_monkey_patched_or_put_on_the_path():
    for path in [ROOT / "__init__.py", *(ROOT / "nodes").glob("*.py")]:
        code = path.read_text(encoding="utf-8")
        for word in ("print(", "sys.path", ".cuda()", "manual_seed", "eval(", "exec(", "except Exception", "except:"):
            assert word not in code.replace(".eval()", ""), (path.name, word)
