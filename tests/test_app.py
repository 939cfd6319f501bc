"""The app's page and its public endpoint, without a browser."""

import time

import pytest

pytest.importorskip("gradio")

import gradio as gr
from gradio_client import Client
from gradio_client.exceptions import AppError
from paced import paced_studio
from PIL import Image

import app
from ssd_core.app import settings
from ssd_core.app.studio import Studio
from ssd_core.decoders import DECODERS
from ssd_core.schedule import Schedule
from ssd_core.speeds import SPEEDS, at_speed, stops


class Visitor:
    """What a handler sees of a browser."""

    def __init__(self, name):
        self.session_hash, self.query_params = name, {}


@pytest.fixture(scope="module")
def page():
    page = app.Page(paced_studio(0.002))
    yield page
    page.turnstile.stop_all()


@pytest.fixture(scope="module")
def url(page):
    page.demo.queue(max_size=app.VISITORS)
    _, url, _ = page.demo.launch(prevent_thread_lock=True, quiet=True, **app.launch_options())
    yield url
    page.demo.close()


@pytest.fixture
def client(url):
    return Client(url, verbose=False)


def values(page, **form):
    """A filled-in page, as its race handler receives it."""
    form = settings.default_form("builtin", page.studio.defaults) | {"prompt": "a fox on snow"} | form
    form["speed"] = {"speed": form["speed"], "stops": [], "note": ""}
    return [*form.values(), False]


def test_a_race_from_the_first_frame_to_the_verdict(page):
    frames = list(page.race(Visitor("a"), *values(page, speed="fastest", seed=3)))
    assert frames[0][page.go]["interactive"] is False
    assert frames[0][page.fields["seed"]] == 3
    modes = [frame[page.race_view]["mode"] for frame in frames]
    assert modes[0] == "waiting"
    assert modes[-2:] == ["live", "final"]
    drawn = [frame[page.race_view]["lanes"][0]["drawn"] for frame in frames if "lanes" in frame[page.race_view]]
    assert drawn == sorted(drawn)
    run, last = frames[-1][page.race_view], frames[-1]
    assert last[page.compare_view] == last[page.inside_view] == run
    assert run["link"] == "prompt=a+fox+on+snow&seed=3&speed=fastest"
    assert [lane["passes"] for lane in run["lanes"]] == [576, 34]
    assert last[page.go]["interactive"] is True
    assert last[page.halt]["interactive"] is False
    assert not page.stops


def test_lossless_is_the_picture_of_ar_also_with_the_builtin_model():
    page = app.Page(Studio())
    *_, last = page.race(Visitor("a"), *values(page, speed="lossless"))
    run = last[page.race_view]
    assert run["verdict"].endswith("100 % of cells equal")
    assert run["lanes"][1]["passes"] < run["lanes"][0]["passes"]
    assert "heads" not in run["status"]


@pytest.mark.parametrize("left", [name for name in DECODERS if name != "ssd"])
def test_any_decoder_races_from_the_left(page, left):
    *_, last = page.race(Visitor("a"), *values(page, left_decoder=left, speed="fastest"))
    run = last[page.race_view]
    assert run["mode"] == "final", run
    assert run["lanes"][0]["drawn"] == 576


def test_stop_ends_the_race_within_a_moment_and_keeps_the_cells(page):
    visitor, began = Visitor("a"), 0.0
    for frame in page.race(visitor, *values(page)):
        shown = frame[page.race_view]
        if shown["mode"] == "live" and not began and shown["lanes"][0]["drawn"] > 20:
            page.stop(visitor)
            began = time.perf_counter()
    assert time.perf_counter() - began < 10
    assert shown["mode"] == "stopped"
    assert 20 < shown["lanes"][0]["drawn"] < 576
    assert frame[page.go]["interactive"] is True
    assert page.compare_view not in frame


def test_stop_ends_only_the_visitors_own_race(page):
    frames = page.race(Visitor("a"), *values(page, speed="fastest"))
    next(frames)
    page.stop(Visitor("b"))
    assert list(frames)[-1][page.race_view]["mode"] == "final"


def test_a_closed_tab_ends_the_work(page):
    frames = page.race(Visitor("a"), *values(page))
    while next(frames)[page.race_view]["mode"] != "live":
        pass
    began = time.perf_counter()
    frames.close()
    assert time.perf_counter() - began < 10
    assert not page.stops
    *_, last = page.race(Visitor("b"), *values(page, speed="fastest"))
    assert last[page.race_view]["mode"] == "final"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"prompt": " "}, "There is no prompt yet"),
        ({"prompt": "a unicorn"}, 'does not know "unicorn"'),
        ({"speed": "custom", "right_decoder": "ssd", "right_k_h": 40}, "lower k_h or k_v"),
        ({"negative": "ugly"}, "has no negative prompt"),
        ({"temperature": -1}, "temperature must be above 0"),
    ],
)
def test_a_mistake_is_one_sentence_and_the_buttons_work_again(page, form, message):
    *_, last = page.race(Visitor("a"), *values(page, **form))
    assert last[page.race_view]["mode"] == "error"
    assert message in last[page.race_view]["status"]
    assert last[page.go]["interactive"] is True
    assert last[page.halt]["interactive"] is False


def test_what_nobody_foresaw_is_logged_and_not_shown(page, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("secret path")

    monkeypatch.setattr(app, "new_race", broken)
    *_, last = page.race(Visitor("a"), *values(page))
    assert last[page.race_view]["status"].startswith("Something went wrong")
    assert "secret path" not in last[page.race_view]["status"]
    assert "secret path" in caplog.text
    assert last[page.go]["interactive"] is True


def test_a_sweep_grows_card_by_card_and_can_be_stopped(page):
    visitor, seen = Visitor("a"), []
    for frame in page.sweep(visitor, *values(page)[:-1], [2], "shared-noise"):
        shown = frame[page.sweep_view]
        seen.append(len(shown.get("cards", ())))
        if seen[-1] == 3:
            page.stop(visitor)
    assert seen == sorted(seen)
    assert shown["mode"] == "stopped"
    assert [card["title"] for card in shown["cards"]][:3] == ["AR", "r = 0, k_v = 2", "r = 1, k_v = 2"]
    assert frame[page.sweep_go]["interactive"] is True


def test_the_slider_fills_the_fields_and_the_fields_turn_the_slider_to_custom(page):
    scale = page._speed("balanced")["stops"]
    assert [stop["name"] for stop in scale] == list(SPEEDS)
    for stop, config in zip(scale, stops("builtin").values(), strict=True):
        assert stop["detail"].startswith(app.title(config))
    assert page._described(app.DecodeConfig()) == "SSD r=2, 80 passes instead of 576"
    settling = app.DecodeConfig(schedule=Schedule(b=2, settle=True))
    assert page._described(settling) == "SSD r=2, settling, at most 80 passes instead of 576"
    for name in SPEEDS:
        knobs = dict(zip(settings.KNOBS, page.speed_chosen({"speed": name}), strict=True))
        assert settings.config_of(knobs) == at_speed(name, "builtin")
    knobs = settings.knobs_of(app.DecodeConfig()) | {"b": 7}
    custom = page.set_by_hand(*knobs.values())
    assert custom["speed"] == "custom"
    assert custom["note"] == "Custom: ssd b=7 i=0 k_h=5 k_v=1 rule=accept-reject, 195 passes"
    assert "b must be at least 0" in page.set_by_hand(*(knobs | {"b": -1}).values())["note"]


def test_a_link_fills_the_page(page):
    visitor = Visitor("a")
    visitor.request = type("Request", (), {"base_url": "http://127.0.0.1:1/"})
    assert list(page.open(visitor)) == [page.api_help]
    by_hand = {"right_decoder": "ssd", "right_b": "3", "right_settle": "True"}
    visitor.query_params = {"prompt": "a cat", "seed": "5", "speed": "custom", **by_hand}
    changed = page.open(visitor)
    assert changed[page.fields["prompt"]] == "a cat"
    assert changed[page.fields["right_b"]] == 3
    assert changed[page.fields["right_settle"]] is True
    assert changed[page.randomize] is False
    assert changed[page.fields["speed"]]["note"].startswith("Custom: ssd b=3")


def test_another_model_is_loaded_or_its_absence_explained():
    page = app.Page(Studio())
    *_, last = page.load_model("builtin", "none")
    assert "training-free" in last[page.facts]
    *_, last = page.load_model("builtin", "elsewhere.safetensors")
    assert "no longer on this machine" in last[page.facts]
    *_, last = page.load_model("builtin", "shipped")
    assert "trained, 5 columns and 3 rows ahead" in last[page.facts]
    assert last[page.load]["interactive"] is True


# -------------------------------------------------------------------------------------------- endpoint


def test_one_endpoint_is_public(client):
    assert list(client.view_api(return_format="dict")["named_endpoints"]) == ["/generate"]


def test_the_endpoint_returns_a_picture_with_its_settings_and_what_it_took(client):
    path, metrics = client.predict("a fox on snow", 7, "fastest", api_name="/generate")
    assert metrics["decoder"] == str(at_speed("fastest", "builtin"))
    assert metrics["passes"] == metrics["planned_passes"] == 34
    assert metrics["seconds"] > 0
    assert metrics["kept_per_round"] == []
    with Image.open(path) as image:
        assert image.size == (192, 192)
        assert (image.text["prompt"], image.text["seed"]) == ("a fox on snow", "7")


@pytest.mark.parametrize(
    ("prompt", "seed", "speed", "message"),
    [
        ("a unicorn", 7, "fast", "does not know"),
        ("", 7, "fast", "no prompt yet"),
        ("a fox", -1, "fast", "minimum"),
        ("a fox", 7, "warp", "choices"),
    ],
)
def test_the_endpoint_explains_a_mistake(client, prompt, seed, speed, message):
    with pytest.raises(AppError, match=message):
        client.predict(prompt, seed, speed, api_name="/generate")


@pytest.fixture
def slowly(page):
    """Time to look: a pass takes 20 ms."""
    backbone = page.studio.current.backbone
    backbone.pace, before = 0.02, backbone.pace
    yield
    backbone.pace = before


def test_a_cancelled_call_lets_the_next_one_in(client, slowly):
    job = client.submit("a fox on snow", 7, "quality", api_name="/generate")
    wait_for(lambda: job.outputs())
    job.cancel()
    began = time.perf_counter()
    _, metrics = client.predict("a fox", 7, "fastest", api_name="/generate")
    assert metrics["passes"] == 34
    assert time.perf_counter() - began < 30


def test_two_clients_wait_in_one_line(url, slowly):
    first = Client(url, verbose=False).submit("a fox on snow", 1, "quality", api_name="/generate")
    wait_for(lambda: first.outputs())
    second = Client(url, verbose=False).submit("a cat on snow", 2, "fastest", api_name="/generate")
    (_, metrics), (_, other) = first.result(), second.result()
    assert [metrics["decoder"], other["decoder"]] == [str(at_speed(name, "builtin")) for name in ("quality", "fastest")]
    states = [output[1] for output in second.outputs()]
    assert {"state": "in line", "ahead": 1} in states


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_nothing_leaves_the_machine_unless_asked(page):
    options = app.launch_options()
    assert (options["run_history"], options["show_error"], options["enable_monitoring"]) == (False, False, False)
    assert page.demo.analytics_enabled is False
    assert "share" not in options
    assert isinstance(options["theme"], gr.themes.Base)
