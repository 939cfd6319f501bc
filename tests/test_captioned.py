"""Heads can learn from any folder of pictures with captions."""

import json

import pytest
import torch
from accelerate.state import AcceleratorState
from fakes import FakeBackbone
from PIL import Image
from safetensors import safe_open

import ssd_core.training.__main__ as cli
from ssd_core.backbones import load_backbone
from ssd_core.heads import load_heads
from ssd_core.pictures import to_pil
from ssd_core.training.captioned import captioned_pictures, encode_corpus
from ssd_core.training.corpus import CorpusError


def test_pictures_become_the_codes_they_were_painted_from(tmp_path):
    backbone = load_backbone("builtin")
    grid = backbone.grid()
    codes = torch.full((1, grid.rows, grid.cols), 7)
    codes[:, 8:16] = 123
    painted = backbone.decode_image(codes)
    to_pil(painted[0]).save(tmp_path / "stripes.png")
    (tmp_path / "stripes.txt").write_text("a cat on snow\n", encoding="utf-8")
    Image.new("RGB", (300, 200), "red").save(tmp_path / "without-caption.jpg")

    shares = []
    corpus = encode_corpus(backbone, captioned_pictures(tmp_path), on_progress=shares.append)
    assert corpus.prompts == ["a cat on snow"]
    assert torch.equal(corpus.tokens, backbone.encode_image((painted * 255).round() / 255).int())
    assert shares == [1.0]


def test_wide_pictures_are_cut_to_the_middle(tmp_path):
    backbone = load_backbone("builtin")
    wide = Image.new("RGB", (600, 200), "blue")
    wide.paste("white", (200, 0, 400, 200))
    wide.save(tmp_path / "wide.png")
    (tmp_path / "wide.txt").write_text("a star", encoding="utf-8")
    corpus = encode_corpus(backbone, captioned_pictures(tmp_path))
    white = backbone.encode_image(torch.ones(1, 192, 192, 3))
    assert torch.equal(corpus.tokens, white.int())


def test_what_cannot_be_used_is_refused(tmp_path):
    with pytest.raises(CorpusError, match="no folder"):
        captioned_pictures(tmp_path / "missing")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(CorpusError, match=r"1 pictures and no caption"):
        captioned_pictures(tmp_path)
    (tmp_path / "a.txt").write_text("a zebra", encoding="utf-8")
    with pytest.raises(CorpusError, match=r"caption of .*a\.png cannot be used: .*zebra"):
        encode_corpus(load_backbone("builtin"), captioned_pictures(tmp_path))
    (tmp_path / "a.txt").write_bytes("eine Kätzin".encode("latin-1"))
    with pytest.raises(CorpusError, match=r"a\.txt is not UTF-8"):
        captioned_pictures(tmp_path)
    (tmp_path / "a.txt").write_text("a cat", encoding="utf-8")
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(CorpusError, match="cannot be read"):
        encode_corpus(load_backbone("builtin"), captioned_pictures(tmp_path))


# ------------------------------------------------------------------------------------------ command line


class Painter(FakeBackbone):
    """Knows a code for any picture."""

    def encode_image(self, rgb):
        return super().encode_image(rgb) % self.codebook_size


@pytest.fixture
def folder(tmp_path):
    """Three pictures with captions, and one without."""
    AcceleratorState._reset_state(reset_partial_state=True)  # another test may have asked for mixed precision
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for name, color in (("a", "red"), ("b", "green"), ("c", "blue"), ("d", "white")):
        Image.new("RGB", (90, 60), color).save(pictures / f"{name}.png")
        if name != "d":
            (pictures / f"{name}.txt").write_text(f"a {color} card", encoding="utf-8")
    yield pictures
    AcceleratorState._reset_state(reset_partial_state=True)


def test_the_command_line_trains_from_a_folder(folder, tmp_path, monkeypatch):
    backbone, out = Painter(), tmp_path / "heads.safetensors"
    monkeypatch.setattr(cli, "load_backbone", lambda name, **_: backbone)
    command = ["--device", "cpu", "--pictures-folder", str(folder), "--out", str(out), "--work", str(tmp_path / "work")]
    command += ["--k-h", "2", "--k-v", "1", "--steps", "3", "--batch", "2", "--space", "pre", "--no-scaled"]
    cli.main(command)
    heads = load_heads(out, backbone.fingerprint)
    assert (heads.k_h, heads.k_v, heads.space, float(heads.state_scale)) == (2, 1, "pre", 1)
    with safe_open(out, framework="pt") as file:
        story = json.loads(file.metadata()["training"])
    assert (story["decoder"], story["pictures"], story["held_out"], story["steps"]) == ("pictures", 2, 1, 3)
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["checkpoint.pt", "log.jsonl"]

    out.unlink()
    cli.main(command)  # finished: only written again
    assert out.is_file()
    with pytest.raises(SystemExit):  # other pictures, the same checkpoint
        cli.main([*command, "--pictures", "2"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--decoder", "lossless", "--top-k", "5"], "nothing is drawn: leave out --decoder and --top-k"),
        (["--pictures", "4"], "has 3 pictures with captions, --pictures asks for 4"),
        (["--pictures", "0"], "--pictures asks for 0"),
        (["--pictures", "1"], "at least 2 pictures"),
        (["--pictures-folder", "nowhere"], "There is no folder nowhere"),
    ],
)
def test_folders_that_cannot_be_trained_from(folder, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.setattr(cli, "load_backbone", lambda name, **_: Painter())
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--device", "cpu", "--pictures-folder", str(folder), "--work", str(tmp_path / "work"), *options])
    assert stopped.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("python -m ssd_core.training: error: ")
    assert message in error
