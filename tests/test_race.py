"""The app's engine without Gradio: the clocks of a race, what it remembers, the line, the form and the link."""

import base64
import io
import itertools
import json
import threading
from functools import partial
from urllib.parse import parse_qsl

import numpy as np
import pytest
import torch
from fakes import FakeBackbone, random_heads
from PIL import Image

from ssd_core import session
from ssd_core.app import recordings
from ssd_core.app.race import DRAFTED, Lane, Race, live, mosaic, palette, percent, recording, replay, title
from ssd_core.app.runs import Sweep, completed, new_race, run_race
from ssd_core.app.settings import CUSTOM, config_of, default_form, from_query, knobs_of, settings_of, to_query
from ssd_core.app.studio import NO_HEADS, SHIPPED, Model, Studio
from ssd_core.app.turnstile import Stopped, Turnstile
from ssd_core.decoders import DECODERS, DecodeConfig
from ssd_core.decoders.lossless import WindowOptions
from ssd_core.generate import generate
from ssd_core.heads import save_heads
from ssd_core.sampling import SamplingConfig
from ssd_core.schedule import Schedule
from ssd_core.session import FINAL
from ssd_core.speeds import SPEEDS, at_speed

AR, SSD, LOSSLESS = DecodeConfig("ar"), DecodeConfig(schedule=Schedule(b=2, k_h=3)), DecodeConfig("lossless", window=8)


@pytest.fixture(scope="module")
def model():
    backbone = FakeBackbone()
    return Model(backbone, random_heads(backbone), palette(backbone), negative=True)


def start(model, left=AR, right=SSD, images=1):
    lanes = (
        Lane(model.backbone, config, "abc", list(range(images)), heads=model.heads, sampling=SamplingConfig())
        for config in (left, right)
    )
    return Race(*lanes)


def finish(race):
    run_race(race, threading.Event())
    return race


class Ticking:
    """An event stream on a made-up clock: one event every `pace` seconds."""

    def __init__(self, pace, count):
        self.pace, self.left, self.seconds, self.finished = pace, count, 0.0, False

    def step(self):
        if not self.left:
            self.finished = True
            return
        self.left -= 1
        self.seconds += self.pace


def test_whoever_is_behind_moves():
    slow, fast = Ticking(1.0, 10), Ticking(0.25, 12)
    race = Race(slow, fast)
    while race.advance():
        if not fast.finished:
            assert abs(slow.seconds - fast.seconds) <= 1.0  # never apart by more than one step of the slower one
    assert (slow.seconds, fast.seconds) == (10.0, 3.0)
    assert slow.finished and fast.finished


@pytest.mark.parametrize("right", [SSD, LOSSLESS, DecodeConfig("ssd", Schedule(b=2, i=1, k_h=2, k_v=2))])
def test_a_race_draws_what_each_decoder_draws_alone(model, right):
    race = finish(start(model, AR, right))
    for lane, config in zip(race.lanes, (AR, right), strict=True):
        alone = generate(model.backbone, ["abc"], [0], config, SamplingConfig(), heads=model.heads)
        assert np.array_equal(lane.snapshot.tokens, alone.tokens.flatten())
        assert lane.snapshot.passes == alone.nfe == lane.result().nfe
        assert lane.result().acceptance == alone.acceptance


def test_the_record_knows_when_every_cell_became_final(model):
    race = finish(start(model))
    for lane in race.lanes:
        assert np.isfinite(lane.final_at).all()
        assert lane.final_at.max() <= lane.seconds
        assert lane.times == sorted(lane.times)
        assert lane.drawn_at(0) == 0
        assert lane.drawn_at(lane.seconds) == 1
    ar = race.lanes[0]
    assert (np.diff(ar.final_at) > 0).all()  # token by token
    assert ar.drawn_at(ar.final_at[11]) == pytest.approx(12 / 30)


def test_the_verdict_counts_and_compares(model):
    race = finish(start(model, AR, LOSSLESS))
    fast, slow = sorted(race.lanes, key=lambda lane: lane.seconds)
    assert race.equal == 1
    verdict = race.verdict()
    assert verdict.startswith(f"{fast.title} {fast.seconds:.1f} s, {slow.title} {slow.seconds:.1f} s: ")
    assert f"when {fast.title} finished, {slow.title} had drawn {percent(slow.drawn_at(fast.seconds))}" in verdict
    assert verdict.endswith("100 % of cells equal")


def test_corrections_are_the_tests_that_replaced_a_draft(model):
    """Token by token from the outside: a draft counts as corrected in the rounds in which its token changed."""
    race = start(model, AR, SSD)
    lane, replaced, rounds = race.lanes[1], np.zeros(30, int), np.zeros(30, int)
    while not lane.finished:
        before, length = lane.snapshot, len(lane.times)
        lane.step()
        if len(lane.times) > length and lane.session.grid.rows:
            changed = (before.tokens != lane.snapshot.tokens) & (before.status == 1)
            replaced += changed
            rounds[changed] = 1
    bits = lane.corrections
    assert not bits[0] & DRAFTED  # the first cell is sampled
    assert (bits[1:] & DRAFTED).all()
    assert [bin(int(cell) & ~DRAFTED).count("1") for cell in bits] == replaced.tolist()
    assert replaced.sum() > 10  # random heads are mostly wrong


@pytest.mark.parametrize("eol", [False, True])
def test_the_lossless_window_says_which_cells_it_tested(eol):
    backbone = FakeBackbone(eol=eol)
    lane = Lane(backbone, LOSSLESS, "abc", [0, 1, 2, 3], sampling=SamplingConfig())
    while not lane.finished:
        lane.step()
    bits = lane.corrections.reshape(4, 30)
    assert (bits[:, 1:] & DRAFTED).all()
    replaced = [bin(int(cell) & ~DRAFTED).count("1") for cell in bits[:, 1:].flatten()]
    assert sum(count > 0 for count in replaced) > 40  # drafts without heads are mostly wrong at first
    assert sum(count > 1 for count in replaced) > 4  # and some take several tests


@pytest.mark.parametrize("images", [1, 4])
def test_a_recording_replays_to_the_last_frame(model, images):
    race = finish(start(model, images=images))
    run = json.loads(json.dumps(recording(race, model.colors)))
    assert (run["rows"], run["cols"]) == ((5, 6) if images == 1 else (10, 12))
    order = mosaic(images, 5, 6)
    for lane, record in zip(race.lanes, run["lanes"], strict=True):
        *_, (seconds, passes, rgb, status) = replay(record)
        assert (status == FINAL).all()
        assert passes == record["passes"] == lane.snapshot.passes
        assert seconds <= record["seconds"]
        assert np.array_equal(rgb[order], model.colors[lane.snapshot.tokens])


def test_a_replay_stops_where_the_verdict_says(model, monkeypatch):
    ticks = itertools.count()  # a clock that says the same on every machine
    monkeypatch.setattr(session.time, "perf_counter", lambda: next(ticks))
    race = finish(start(model))
    fast, slow = sorted(race.lanes, key=lambda lane: lane.seconds)
    record = recording(race, model.colors)["lanes"][race.lanes.index(slow)]
    drawn = [(status == FINAL).mean() for seconds, _, _, status in replay(record) if seconds <= fast.seconds][-1]
    assert drawn == slow.drawn_at(fast.seconds)
    assert 0 < drawn < 1


def test_a_live_frame_is_small_and_tells_drafts_from_final_cells(model):
    race = start(model)
    seen = set()
    while race.advance():
        frame = live(race, model.colors)
        seen |= set(base64.b64decode(frame["lanes"][1]["state"]))
    assert seen == {0, 1, 2}
    assert len(json.dumps(frame)) < 2000
    assert base64.b64decode(frame["lanes"][0]["rgb"]) == model.colors[race.lanes[0].snapshot.tokens].tobytes()


def test_several_pictures_are_laid_out_as_a_square():
    assert mosaic(4, 1, 2).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert mosaic(4, 2, 1).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    with pytest.raises(ValueError, match="1, 4 or 9"):
        mosaic(3, 2, 2)


def test_stop_keeps_what_is_there(model):
    race, stop = start(model), threading.Event()
    for _ in range(8):
        race.advance()
    stop.set()
    run_race(race, stop)
    settings = settings_of(default_form("builtin", SamplingConfig()) | {"prompt": "abc"}, "builtin")
    run = completed(race, model, settings)
    assert run["mode"] == "stopped"
    assert run["verdict"].startswith("Stopped: AR had drawn ")
    assert 0 < run["lanes"][0]["drawn"] < 30
    assert "pictures" not in run["lanes"][0]


def test_saved_pictures_carry_what_it_takes_to_draw_them_again(model):
    form = default_form("builtin", SamplingConfig()) | {"prompt": "abc", "seed": 5, "images": 4, "left_decoder": "ssd"}
    form |= {"left_k_h": 3, "right_decoder": "ssd", "right_k_h": 3, "speed": CUSTOM}
    settings = settings_of(form, "builtin")
    race = finish(new_race(model, settings))
    run = completed(race, model, settings)
    lane = run["lanes"][1]
    assert lane["files"] == [f"ssd-{seed}-ssd.png" for seed in (5, 6, 7, 8)]
    with Image.open(io.BytesIO(base64.b64decode(lane["pictures"][2].split(",")[1]))) as image:
        assert image.text["prompt"] == "abc"
        assert image.text["seed"] == "7"
        assert image.text["decoder"] == str(settings.right)
        assert image.text["nfe"] == str(lane["passes"])


def test_lanes_say_what_runs_in_them():
    titles = {
        "AR": AR,
        "SSD r=2": SSD,
        "SSD b=5 i=4 k_v=2": DecodeConfig(schedule=Schedule(b=5, i=4, k_v=2)),
        "SSD r=1, early commits, settling": DecodeConfig(schedule=Schedule(b=1, commits="early", settle=True)),
        "Lossless": LOSSLESS,
        "Window, tolerance 3": DecodeConfig("window", options=WindowOptions(tolerance=3)),
        "Window of 48, tolerance 3": DecodeConfig("window", options=WindowOptions(48, 3)),
    }
    for words, config in titles.items():
        assert title(config) == words


def test_a_sweep_compares_every_schedule_with_ar(model):
    form = default_form("builtin", SamplingConfig()) | {"prompt": "abc", "right_k_h": 3, "speed": CUSTOM}
    sweep = Sweep(model, settings_of(form, "builtin"), [1, 2], "shared-noise")
    sweep.run(threading.Event())
    assert [card["title"] for card in sweep.cards[:3]] == ["AR", "r = 0", "r = 1"]
    assert len(sweep.cards) == 11
    assert [card["k_v"] for card in sweep.cards] == [0] + [1] * 5 + [2] * 5
    assert sweep.progress == 1
    assert sweep.cards[5]["equal"] >= sweep.cards[1]["equal"]
    passes = [int(card["lines"][0].split()[0]) for card in sweep.cards]
    expected = [Schedule(b=b, k_h=3, k_v=k_v).planned_nfe(model.backbone.grid()) for k_v in (1, 2) for b in range(5)]
    assert passes == [model.backbone.grid().size, *expected]
    with Image.open(io.BytesIO(base64.b64decode(sweep.sheet().split(",")[1]))) as image:
        assert "r = 2" in image.text["decoder"]
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        Sweep(model, settings_of(form, "builtin"), [1], "greedy").run(stop)


# --------------------------------------------------------------------------------------------- the line


def finished(job):
    """The value of a generator, after all that it yields."""
    while True:
        try:
            next(job)
        except StopIteration as done:
            return done.value


def attend(turnstile, work):
    return finished(turnstile.run(work, threading.Event(), 0.01))


def test_work_is_done_in_the_order_of_arrival():
    turnstile, order, gate = Turnstile(), [], threading.Event()

    def work(name):
        gate.wait(60)
        order.append(name)
        return name

    jobs = {name: turnstile.run(partial(work, name), threading.Event(), 0.01) for name in "abc"}
    assert {name: next(job) for name, job in jobs.items()} == {"a": 0, "b": 1, "c": 2}
    gate.set()
    assert {name: finished(job) for name, job in jobs.items()} == {"a": "a", "b": "b", "c": "c"}
    assert order == ["a", "b", "c"]


def test_leaving_ends_the_work_and_lets_the_next_one_in():
    turnstile, stop, ended = Turnstile(), threading.Event(), threading.Event()

    def work():
        stop.wait(60)
        ended.set()

    job = turnstile.run(work, stop, 0.01)
    assert next(job) == 0
    job.close()  # what a closed browser tab does
    assert ended.is_set()
    assert attend(turnstile, lambda: "next") == "next"


def test_stopping_in_line_never_starts_the_work():
    turnstile, first, second, started = Turnstile(), threading.Event(), threading.Event(), []
    front = turnstile.run(lambda: first.wait(60), first, 0.01)
    next(front)
    behind = turnstile.run(lambda: started.append(1), second, 0.01)
    assert next(behind) == 1
    second.set()
    with pytest.raises(Stopped):
        next(behind)
    front.close()
    assert attend(turnstile, lambda: "ok") == "ok"
    assert not started


def test_what_work_raises_reaches_the_visitor():
    def work():
        raise ValueError("no")

    turnstile = Turnstile()
    with pytest.raises(ValueError, match="no"):
        attend(turnstile, work)
    assert attend(turnstile, lambda: 1) == 1


# ----------------------------------------------------------------------------------- the form and the link

DEFAULTS = default_form("builtin", SamplingConfig(cfg=1.5, top_k=50))


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_survives_the_form(decoder):
    schedule = Schedule(b=3, i=1, k_h=2, k_v=2, commits="early", settle=True)
    options = WindowOptions(window=7, tolerance=5) if decoder == "window" else None
    config = DecodeConfig(decoder, schedule, "greedy", options=options)
    assert config_of(knobs_of(config)) == config


@pytest.mark.parametrize("speed", SPEEDS)
def test_a_named_speed_decides_the_right_decoder(speed):
    form = DEFAULTS | {"prompt": "a fox", "speed": speed, "right_b": 9, "right_rule": "shared-noise"}
    settings = settings_of(form, "builtin")
    assert settings.left.decoder == "ar"
    assert settings.right == at_speed(speed, "builtin")
    by_hand = DEFAULTS | {"prompt": "a fox", "speed": CUSTOM}
    by_hand |= {f"right_{name}": value for name, value in knobs_of(settings.right).items()}
    assert settings_of(by_hand, "builtin").right == settings.right


def test_a_link_brings_the_same_run_back():
    form = DEFAULTS | {"prompt": "a fox & an owl", "seed": 12, "speed": CUSTOM, "right_b": 4, "cfg": 2.0, "images": 4}
    form |= {"right_commits": "early", "right_settle": True}
    query = to_query(form, DEFAULTS)
    assert "right_rule" not in query  # the default
    again = from_query(dict(parse_qsl(query)), DEFAULTS)
    assert again == form
    assert settings_of(again, "builtin") == settings_of(form, "builtin")
    short = to_query(DEFAULTS | {"prompt": "a fox", "speed": "fast", "right_b": 99}, DEFAULTS)
    assert short == "prompt=a+fox&seed=7&speed=fast"


def test_a_link_with_nonsense_falls_back_to_the_defaults():
    form = from_query({"seed": "many", "speed": "ludicrous", "theme": "dark", "prompt": "a fox"}, DEFAULTS)
    assert form == DEFAULTS | {"prompt": "a fox"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prompt": "  "}, "no prompt yet"),
        ({"seed": None}, "seed must be a number, got None"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"images": 3}, "1, 4 or 9 pictures, got 3"),
        ({"left_decoder": "magic"}, 'Unknown decoder "magic"'),
        ({"left_k_v": 0}, "k_v must be at least 1"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"speed": "warp"}, 'Unknown speed "warp"'),
    ],
)
def test_a_wrong_form_is_one_sentence(wrong, message):
    with pytest.raises(ValueError, match=message):
        settings_of(DEFAULTS | {"prompt": "a fox"} | wrong, "builtin")


# ------------------------------------------------------------------------------------------- the model


def test_missing_or_foreign_heads_are_explained_and_the_page_goes_on(tmp_path):
    studio = Studio(heads=str(tmp_path / "none.safetensors"), models=tmp_path)
    model = studio.model()
    assert model.heads is None
    assert model.notice.startswith("No heads file at ")
    assert model.notice.endswith("Until then drafts are training-free.")
    other = FakeBackbone()
    foreign = save_heads(random_heads(other), tmp_path / "foreign.safetensors")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    assert studio.heads_files() == [SHIPPED, NO_HEADS, str(tmp_path / "none.safetensors"), str(foreign)]
    assert "was trained for backbone" in studio.choose("builtin", str(foreign)).notice
    assert studio.choose("builtin", SHIPPED).heads is not None
    assert studio.model().backbone is model.backbone  # choosing heads does not load the backbone again


def test_checkpoints_on_disk_can_be_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name, config in (("Janus", '{"model_type": "janus"}'), ("Llama", '{"model_type": "llama"}'), ("Broken", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config, encoding="utf-8")
    studio = Studio(models=tmp_path)
    assert studio.backbones() == ["builtin", str(tmp_path / "Janus")]
    with pytest.raises(ValueError, match="Janus"):  # there are no weights in it
        studio.choose(str(tmp_path / "Janus"), SHIPPED)
    assert (studio.name, studio.loading) == ("builtin", False)


# ---------------------------------------------------------------------------------------- recordings


def test_the_shipped_gallery_plays():
    gallery = recordings.shipped()
    assert len(gallery) == len(recordings.GALLERY)
    for run in gallery.values():
        assert run["mode"] == "recording"
        for lane in run["lanes"]:
            *_, (_, _, _, status) = replay(lane)
            assert (status == FINAL).all()
            assert len(lane["pictures"]) == 1


def test_a_recording_becomes_an_animation(model, tmp_path):
    settings = settings_of(DEFAULTS | {"prompt": "abc", "right_k_h": 3, "speed": CUSTOM}, "builtin")
    race = finish(new_race(model, settings))
    path = recordings.save(completed(race, model, settings, "webp"), tmp_path / "race.json")
    run = recordings.load(path)
    for name in ("race.webp", "race.gif"):
        with Image.open(recordings.animate(run, tmp_path / name, per_second=200, hold=0.5)) as image:
            assert image.n_frames > 2
    with pytest.raises(ValueError, match=r"WebP or GIF"):
        recordings.animate(run, tmp_path / "race.png")
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="no recorded race"):
        recordings.load(path)


def test_previews_have_a_colour_for_every_code(model):
    assert model.colors.dtype == np.uint8
    assert model.colors.shape == (len(model.backbone.preview_colors()), 3)
    assert torch.is_tensor(model.backbone.preview_colors())
