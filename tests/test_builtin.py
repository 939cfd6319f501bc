"""The shipped weights: each test would notice if they broke."""

import numpy as np
import pytest
import torch
from PIL import Image

from ssd_core import __main__ as cli
from ssd_core.backbones import load_backbone, load_builtin
from ssd_core.bench.scorer import evaluate, held_out_prompts, load_scorer
from ssd_core.builtin import scenes
from ssd_core.builtin.weights import WEIGHTS
from ssd_core.decoders import DecodeConfig
from ssd_core.generate import generate
from ssd_core.sampling import SamplingConfig
from ssd_core.schedule import Schedule


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("builtin")


@pytest.fixture(scope="module")
def heads(backbone):
    return backbone.shipped_heads()


def test_all_weights_together_stay_below_40_mb():
    files = list(WEIGHTS.parent.rglob("*.safetensors"))
    assert len(files) == 4
    assert sum(file.stat().st_size for file in files) < 40e6


def test_held_out_reconstructions_reach_28_db(backbone):
    pictures = np.stack([scenes.example(2, i, held=True)[2] for i in range(32)])
    rgb = torch.from_numpy(pictures).float() / 255
    again = backbone.decode_image(backbone.encode_image(rgb))
    psnr = -10 * torch.log10((again - rgb).square().flatten(1).mean(1))
    assert psnr.mean() >= 28


def test_the_preview_shows_the_colours_of_the_picture(backbone):
    rgb = torch.from_numpy(scenes.example(2, 0, held=True)[2])[None].float() / 255
    codes = backbone.encode_image(rgb)
    cells = rgb.view(24, 8, 24, 8, 3).mean((1, 3))
    assert (backbone.preview_colors()[codes[0]] - cells).abs().mean() < 0.06


@pytest.mark.parametrize("decoder", ["ar", "ssd"])
def test_pictures_show_what_was_asked_for(backbone, heads, decoder):
    """The backgrounds and the objects of 16 held-out captions: broken weights would be right for one in 18, or none."""
    prompts = held_out_prompts(16)
    config = DecodeConfig(decoder, schedule=Schedule(b=2))
    result = generate(backbone, [text for text, _ in prompts], list(range(16)), config, heads=heads)
    scores = evaluate(load_scorer(), backbone.decode_image(result.tokens), [spec for _, spec in prompts])
    assert scores["background"][0] >= 0.9
    assert np.mean([scores[kind][0] for kind in scenes.KINDS]) >= 0.5


@pytest.mark.parametrize(
    ("sampling", "ratio"),  # AR's passes to lossless ones, at least
    [(None, 3), (SamplingConfig(cfg=3.0), 1.2), (SamplingConfig(cfg=1.0, top_p=0.95), 3)],
    ids=["defaults, top-k", "guided", "unguided, top-p"],
)
def test_lossless_equals_ar_cell_for_cell(backbone, heads, sampling, ratio):
    prompts = ["a fox left of a rocket, at night", "three apples on grass", "a cat", "a bus above a star on pink"]
    seeds = [7, 11, 0, 2**31 - 1]
    expected = generate(backbone, prompts, seeds, DecodeConfig("ar"), sampling)
    for drafts in (heads, None):
        got = generate(backbone, prompts, seeds, DecodeConfig("lossless", window=24), sampling, heads=drafts)
        assert torch.equal(got.tokens, expected.tokens)
        assert got.nfe < expected.nfe / ratio


def test_trained_heads_draft_better_than_none(backbone, heads):
    """Cells that unverified drafts (r = 0, rule D) share with AR's picture of the same seed."""
    prompts, seeds = ["a cat by day", "a castle on snow", "two buses on green", "an owl above a car"], [0, 1, 2, 3]
    ar = generate(backbone, prompts, seeds, DecodeConfig("ar"))
    config = DecodeConfig(schedule=Schedule(b=0), rule="shared-noise")
    trained, none = (generate(backbone, prompts, seeds, config, heads=each) for each in (heads, None))
    assert (trained.tokens == ar.tokens).float().mean() > (none.tokens == ar.tokens).float().mean()


def test_broken_weights_are_explained(tmp_path):
    with pytest.raises(FileNotFoundError, match="Restore it with git"):
        load_builtin(folder=tmp_path)
    whole = (WEIGHTS / "transformer.safetensors").read_bytes()
    (tmp_path / "transformer.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="truncated or damaged"):
        load_builtin(folder=tmp_path)


# ---------------------------------------------------------------------------------- the command line


def test_generate_writes_a_png_that_tells_how_it_was_made(tmp_path, capsys):
    out = tmp_path / "füchse" / "fox.png"
    assert cli.main(["generate", "a fox left of a rocket", "--r", "1", "--seed", "7", "--out", str(out)]) == 0
    with Image.open(out) as image:
        image.load()
        assert image.size == (192, 192)
        assert image.info["prompt"] == "a fox left of a rocket"
        assert image.info["seed"] == "7"
        assert image.info["nfe"] == "57"
        assert image.info["decoder"] == "ssd b=1 i=0 k_h=5 k_v=1 rule=accept-reject"
        assert float(image.info["seconds"]) > 0
    assert "57 passes" in capsys.readouterr().out


def test_a_batch_gets_one_file_per_seed_and_equals_single_runs(tmp_path):
    many, one = tmp_path / "cat.png", tmp_path / "one.png"
    arguments = ["generate", "a cat", "--speed", "fastest", "--out"]
    assert cli.main([*arguments, str(many), "--seed", "3", "--batch", "2"]) == 0
    assert cli.main([*arguments, str(one), "--seed", "4"]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cat-3.png", "cat-4.png", "one.png"]
    difference = np.abs(np.asarray(Image.open(tmp_path / "cat-4.png"), int) - np.asarray(Image.open(one), int))
    assert difference.max() <= 1


def test_what_generate_does_unasked_is_lossless(tmp_path):
    pictures = []
    for options in ([], ["--decoder", "ar"]):
        out = tmp_path / f"{len(options)}.png"
        assert cli.main(["generate", "two dogs on snow", "--seed", "5", "--out", str(out), *options]) == 0
        with Image.open(out) as image:
            pictures.append((int(image.info["nfe"]), np.asarray(image)))
    (passes, picture), (every, expected) = pictures
    assert passes < every / 3
    assert np.array_equal(picture, expected)


def test_the_window_that_fits_the_device_draws_the_same_picture(tmp_path, monkeypatch, capsys):
    costs = {8: 0.01, 24: 0.02}
    monkeypatch.setattr(cli, "window_costs", lambda *args, **kwargs: costs)
    pictures = []
    for window in ("24", "auto"):
        out = tmp_path / f"{window}.png"
        assert cli.main(["generate", "a cat", "--lossless", "--window", window, "--seed", "3", "--out", str(out)]) == 0
        with Image.open(out) as image:
            pictures.append(np.asarray(image))
            assert f"window={8 if window == 'auto' else 24}" in image.info["decoder"]
    assert np.array_equal(*pictures)


def test_compare_and_sheet_write_captioned_pictures(tmp_path):
    for flag, columns, rows in (("--compare", 3, 1), ("--sheet", 3, 2)):
        out = tmp_path / f"{flag[2:]}.png"
        assert cli.main(["generate", "a cake on pink", flag, "--seed", "1", "--out", str(out)]) == 0
        with Image.open(out) as image:
            assert image.width >= columns * 288
            assert image.height >= rows * 288
            assert "576 passes" in image.info["decoder"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a zebra"], 'does not know "zebra"'),
        (["a cat", "--out", "cat.jpg"], "pictures are written as PNG"),
        (["a cat", "--lossless", "--decoder", "ar"], "contradict each other"),
        (["a cat", "--r", "1", "--window", "auto"], "--window auto is for lossless"),
        (["a cat", "--decoder", "ar", "--b", "3"], "The schedule (--b) is SSD's"),
        (["a cat", "--speed", "fast", "--r", "2"], "--speed chooses"),
        (["a cat", "--r", "2", "--b", "1"], "give either --r, or --b"),
        (["a cat", "--k-v", "9"], "lower k_h or k_v"),
        (["a cat", "--heads", "missing.safetensors"], "No heads file"),
        (["a cat", "--temperature", "0"], "temperature must be above 0"),
        (["a cat", "--seed", "-1"], "Seeds run from 0"),
        (["a cat", "--negative", "a dog"], "has no negative prompt"),
        (["a cat", "--backbone", "nobody/nothing"], "no folder"),
        (["a cat", "--device", "cuda:99"], "cannot be used here"),
        (["a cat", "--batch", "0"], "--batch must be at least 1"),
    ],
)
def test_bad_requests_get_one_sentence_and_write_nothing(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["generate", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
