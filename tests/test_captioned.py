"""Heads can learn from any folder of pictures with captions."""

import pytest
import torch
from PIL import Image

from ssd_core.backbones import load_backbone
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
    with pytest.raises(ValueError, match="zebra"):
        encode_corpus(load_backbone("builtin"), captioned_pictures(tmp_path))
    (tmp_path / "a.txt").write_text("a cat", encoding="utf-8")
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(CorpusError, match="cannot be read"):
        encode_corpus(load_backbone("builtin"), captioned_pictures(tmp_path))
