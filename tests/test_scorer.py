"""The scorer: judging, prompts, Frechet distance, file errors, and the shipped weights on held-out scenes."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ssd_core.bench import train_scorer as training
from ssd_core.bench.scorer import (
    BACKGROUNDS,
    NOTHING,
    WEIGHTS,
    Background,
    Detection,
    Found,
    Prediction,
    PromptSpec,
    SceneScorer,
    evaluate,
    frechet_distance,
    held_out_prompts,
    judge,
    load_scorer,
)
from ssd_core.builtin import scenes
from ssd_core.builtin.words import OBJECTS

NIGHT = Background(ground="grass", sky="night")


def seen(*objects: tuple, background: Background = NIGHT) -> Detection:
    """A detection from (name, x, y) or (name, x, y, probability)."""
    return Detection(tuple(Found(*item) if len(item) == 4 else Found(*item, 0.9) for item in objects), background)


# ------------------------------------------------------------------------------------------- judging


@pytest.mark.parametrize(
    ("objects", "passed"),
    [
        ([("cat", 12, 12)], True),
        ([], False),
        ([("dog", 12, 12)], False),
        ([("cat", 5, 12), ("cat", 18, 12)], False),
        ([("cat", 5, 12), ("dog", 18, 12)], False),
    ],
)
def test_single_is_that_object_once_and_nothing_else(objects, passed):
    assert judge(PromptSpec("single", {"cat": 1}), seen(*objects)) == {"single": passed}


@pytest.mark.parametrize(
    ("objects", "passed"),
    [
        ([("cat", 5, 12), ("dog", 18, 12)], True),
        ([("dog", 5, 12), ("cat", 18, 12)], True),
        ([("cat", 5, 12)], False),
        ([("cat", 5, 12), ("cat", 18, 12)], False),
        ([("cat", 5, 12), ("dog", 12, 12), ("dog", 20, 12)], False),
    ],
)
def test_two_needs_each_object_once(objects, passed):
    assert judge(PromptSpec("two", {"cat": 1, "dog": 1}), seen(*objects)) == {"two": passed}


@pytest.mark.parametrize(
    ("objects", "passed"),
    [
        ([("bus", 4, 12), ("bus", 12, 12), ("bus", 20, 12)], True),
        ([("bus", 4, 12), ("bus", 20, 12)], False),
        ([("bus", 4, 12), ("bus", 12, 12), ("car", 20, 12)], False),
        ([("bus", 4, 12), ("bus", 12, 12), ("bus", 20, 12), ("car", 12, 4)], False),
    ],
)
def test_counting_is_exact(objects, passed):
    assert judge(PromptSpec("counting", {"bus": 3}), seen(*objects)) == {"counting": passed}


@pytest.mark.parametrize(
    ("position", "first", "second", "passed"),
    [
        ("left", (5, 12), (18, 14), True),
        ("left", (18, 12), (5, 12), False),
        ("right", (18, 12), (5, 12), True),
        ("above", (12, 5), (13, 18), True),
        ("above", (12, 18), (13, 5), False),
        ("below", (12, 18), (13, 5), True),
        ("left", (5, 2), (10, 18), False),  # more above than left
        ("left", (5, 5), (10, 10), False),  # a diagonal is neither
    ],
)
def test_position_compares_the_centres(position, first, second, passed):
    spec = PromptSpec("position", {"cat": 1, "dog": 1}, position)
    assert judge(spec, seen(("cat", *first), ("dog", *second))) == {"position": passed}


def test_position_needs_both_and_takes_the_most_probable_of_each():
    spec = PromptSpec("position", {"cat": 1, "dog": 1}, "left")
    assert judge(spec, seen(("cat", 5, 12))) == {"position": False}
    doubled = seen(("cat", 22, 12, 0.6), ("cat", 3, 12, 0.9), ("dog", 14, 12, 0.9))
    assert judge(spec, doubled) == {"position": True}


def test_background_is_judged_as_far_as_it_was_named():
    def verdict(**said: str) -> dict[str, bool]:
        return judge(PromptSpec("single", {"cat": 1}, background=Background(**said)), seen(("cat", 12, 12)))

    assert "background" not in verdict()
    assert verdict(sky="night")["background"]
    assert verdict(ground="grass", sky="night")["background"]
    assert not verdict(ground="grass", sky="day")["background"]
    assert not verdict(color="blue")["background"]


def test_unknown_kind_is_an_error():
    with pytest.raises(ValueError, match="texture"):
        judge(PromptSpec("texture", {"cat": 1}), seen())


# ------------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize(
    ("caption", "background"),
    [
        ("a cat", Background()),
        ("a cat on the beach at night", Background(sky="night")),  # scenes never say "beach": not understood
        ("in the desert by night, a cat", Background(ground="sand", sky="night")),
        ("a picture of a cat on sand", Background(ground="sand")),
        ("A cat, at night.", Background(sky="night")),
    ],
)
def test_spec_takes_only_what_a_landscape_caption_says(caption, background):
    scene = scenes.Scene("single", (scenes.Placed("cat", 6, 8, 12),), ground="sand", sky="night")
    assert PromptSpec.from_scene(scene, caption) == PromptSpec("single", {"cat": 1}, None, background)


def test_spec_of_colours_counts_and_positions():
    pair = (scenes.Placed("orange", 14, 8, 9), scenes.Placed("snowman", 1, 8, 9))
    scene = scenes.Scene("position", pair, "right", color="white")
    spec = PromptSpec.from_scene(scene, "an orange to the right of a snowman on white")
    assert spec == PromptSpec("position", {"orange": 1, "snowman": 1}, "right", Background(color="white"))
    assert list(spec.counts) == ["orange", "snowman"]
    assert not PromptSpec.from_scene(scene, "an orange right of a snowman").background
    three = scenes.Scene("counting", tuple(scenes.Placed("bus", x, 8, 7) for x in (0, 8, 16)), color="pink")
    assert PromptSpec.from_scene(three, "three buses").counts == {"bus": 3}


def test_specs_accept_their_own_scenes():
    for i in range(200):
        scene, caption, _ = scenes.example(11, i)
        truth = seen(*((p.name, *p.center) for p in scene.objects), background=training.background_of(scene))
        assert all(judge(PromptSpec.from_scene(scene, caption), truth).values()), (scene, caption)


def test_held_out_prompts_are_deterministic_balanced_and_held_out():
    prompts = held_out_prompts(40)
    assert prompts == held_out_prompts(40)
    assert prompts[:8] == held_out_prompts(8)
    assert prompts != held_out_prompts(40, seed=99)
    assert len({caption for caption, _ in prompts}) > 30
    for kind in scenes.KINDS:
        assert sum(spec.kind == kind for _, spec in prompts) == 10
    for caption, spec in prompts:
        # The spec holds what the caption says: that alone must be a combination training never saw.
        objects = tuple(scenes.Placed(name, 0, 0, 7) for name, n in spec.counts.items() for _ in range(n))
        said = spec.background
        scene = scenes.Scene(spec.kind, objects, spec.position, said.color, said.ground, said.sky)
        assert scenes.held_out(scene), caption


@pytest.mark.parametrize("n", [0, -4, 10])
def test_held_out_prompts_refuse_unequal_shares(n):
    with pytest.raises(ValueError, match="multiple of 4"):
        held_out_prompts(n)


# ------------------------------------------------------------------------------------------ detector


def test_the_scorer_is_small():
    assert sum(p.numel() for p in SceneScorer().parameters()) * 2 < 1 << 20


def test_detect_merges_neighbours_and_keeps_separate_objects(monkeypatch):
    logits = torch.zeros(1, NOTHING + 1, 24, 24)
    logits[:, NOTHING] = 10
    for x, y, name, height in [(4, 12, "cat", 20), (5, 12, "cat", 18), (11, 12, "cat", 40), (20, 3, "bus", 16)]:
        logits[0, OBJECTS.index(name), y, x] = height
    logits[0, OBJECTS.index("car"), 20, 20] = 9  # below the threshold
    background = torch.zeros(1, len(BACKGROUNDS))
    background[0, BACKGROUNDS.index(NIGHT)] = 1
    scorer = SceneScorer()
    monkeypatch.setattr(scorer, "forward", lambda _: Prediction(logits, background, torch.zeros(1), torch.zeros(1)))
    (found,) = scorer.detect(torch.zeros(1, 192, 192, 3))
    assert found.background == NIGHT
    assert sorted(item[:3] for item in found.objects) == [("bus", 20.5, 3.5), ("cat", 4.5, 12.5), ("cat", 11.5, 12.5)]
    assert found.objects[0].x == 11.5  # the most probable first
    assert all(0.5 <= item.probability <= 1 for item in found.objects)


@pytest.mark.parametrize(
    "images", [torch.zeros(2, 3, 192, 192), torch.zeros(192, 192, 3), torch.zeros(1, 192, 192, 3, dtype=torch.uint8)]
)
def test_detect_refuses_other_shapes_and_dtypes(images):
    with pytest.raises(ValueError, match="192, 192, 3"):
        SceneScorer().detect(images)


def test_evaluate_needs_one_picture_for_each_prompt():
    with pytest.raises(ValueError, match="1 pictures and 0 prompts"):
        evaluate(SceneScorer(), torch.zeros(1, 192, 192, 3), [])


def test_evaluate_averages_each_category(monkeypatch):
    scorer = SceneScorer()
    answers = [seen(("cat", 5, 12)), seen(), seen(("dog", 3, 5), ("cat", 15, 5)), seen()]
    monkeypatch.setattr(scorer, "detect", lambda images: answers)
    specs = [PromptSpec("single", {"cat": 1}, background=NIGHT), PromptSpec("single", {"cat": 1})]
    specs += [PromptSpec("two", {"cat": 1, "dog": 1}), PromptSpec("two", {"cat": 1, "dog": 1})]
    scores = evaluate(scorer, torch.zeros(4, 1), specs)
    assert scores == {"single": (0.5, 2), "two": (0.5, 2), "background": (1.0, 1), "overall": (pytest.approx(2 / 3), 4)}


# -------------------------------------------------------------------------------------------- Frechet


def test_frechet_distance_of_equal_sets_is_zero_and_never_negative():
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(300, 64, generator=generator)
    few = torch.randn(10, 64, generator=generator)  # singular covariance
    for x in (full, few, full * 1e3, torch.ones(5, 3)):
        scale = max(1.0, float(x.square().sum(1).mean()))
        assert 0 <= frechet_distance(x, x) < 1e-9 * scale
        assert 0 <= frechet_distance(x, x.flip(0)) < 1e-9 * scale


def test_frechet_distance_of_shifted_and_scaled_gaussians():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 8))
    shift = np.arange(8) / 4
    assert frechet_distance(x, x + shift) == pytest.approx((shift**2).sum(), rel=1e-9)
    assert frechet_distance(x, rng.standard_normal((4000, 8)) + shift) == pytest.approx((shift**2).sum(), rel=0.05)
    # Same mean, covariance times 9: tr(C + 9 C - 2 * 3 C) = 4 tr C.
    centred = x - x.mean(0)
    assert frechet_distance(centred, 3 * centred) == pytest.approx(4 * np.cov(x.T).trace(), rel=1e-9)
    other = rng.standard_normal((500, 8)) @ rng.standard_normal((8, 8))
    assert frechet_distance(x, other) == pytest.approx(frechet_distance(other, x), rel=1e-9)


@pytest.mark.parametrize(
    ("a", "b"), [((5, 3), (5, 4)), ((1, 3), (5, 3)), ((5,), (5,))], ids=["width", "one row", "no matrix"]
)
def test_frechet_distance_refuses_bad_shapes(a, b):
    with pytest.raises(ValueError, match="feature matrices"):
        frechet_distance(torch.zeros(a), torch.zeros(b))


def test_frechet_distance_refuses_nan():
    with pytest.raises(ValueError, match="NaN"):
        frechet_distance(torch.full((4, 2), float("nan")), torch.zeros(4, 2))


# --------------------------------------------------------------------------------------- weights file


def test_missing_weights_say_how_to_get_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing.*python -m ssd_core\.builtin\.train scorer"):
        load_scorer(tmp_path / "scorer.safetensors")


def test_damaged_or_foreign_weights_say_so(tmp_path):
    path = tmp_path / "scorer.safetensors"
    save_file({name: value.bfloat16() for name, value in SceneScorer().state_dict().items()}, path)
    load_scorer(path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[:-1000], b"version https://git-lfs.github.com/spec/v1\n"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"truncated or damaged.*python -m ssd_core"):
            load_scorer(path)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"weights of another version.*python -m ssd_core"):
        load_scorer(path)


# ------------------------------------------------------------------------------------------- training


def test_free_scenes_fit_and_keep_their_objects_visible():
    numbers = set()
    for i in range(100):
        scene = training.free_scene(np.random.default_rng((5, i)))
        numbers.add(len(scene.objects))
        assert not scenes.held_out(scene)
        assert all(min(p.x, p.y) >= 0 and max(p.x, p.y) + p.size <= scenes.GRID for p in scene.objects)
        cells = training.target_map(scene)
        assert (cells != NOTHING).sum() == len(scene.objects)
        assert all(cells[int(p.center[1]), int(p.center[0])] == OBJECTS.index(p.name) for p in scene.objects)
    assert numbers == {0, 1, 2, 3, 4}


def test_training_writes_loadable_bf16_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "EVALUATION_PICTURES", 16)
    path = tmp_path / "scorer.safetensors"
    args = argparse.Namespace(steps=2, batch=2, out=tmp_path, weights=tmp_path, compile=False, scorer_weights=path)
    with pytest.warns(UserWarning, match="no tokenizer.safetensors"):
        training.train_scorer(args)
    assert {value.dtype for value in load_file(path).values()} == {torch.bfloat16}
    assert {p.dtype for p in load_scorer(path).parameters()} == {torch.float32}
    last = json.loads((tmp_path / "scorer" / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert {f"real_{kind}" for kind in scenes.KINDS} < set(last["evaluation"])


# ------------------------------------------------------------------------------------ shipped weights


def test_shipped_scorer_is_right_on_held_out_scenes():
    assert Path(WEIGHTS).stat().st_size <= 1 << 20
    scorer = load_scorer()
    examples = [scenes.example(21, i, held=True, kind=scenes.KINDS[i % 4]) for i in range(64)]
    images = torch.from_numpy(np.stack([picture for _, _, picture in examples])).float() / 255
    specs = [PromptSpec.from_scene(scene, caption) for scene, caption, _ in examples]
    scores = evaluate(scorer, images, specs)
    assert set(scores) == {*scenes.KINDS, "background", "overall"}
    assert all(share >= 0.95 for share, _ in scores.values()), scores
    # A judge that lets everything pass is worthless: other prompts must fail on the same pictures.
    swapped = evaluate(scorer, images, specs[4:] + specs[:4])
    assert max(swapped[kind][0] for kind in scenes.KINDS) <= 0.1, swapped
    features = scorer.features(images)
    assert features.shape == (64, 128) and features.dtype == torch.float64
    assert frechet_distance(features, features) < 1e-9 < frechet_distance(features[:32], 0.5 * features[32:])
