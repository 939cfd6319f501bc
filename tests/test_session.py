"""The engine: a block pass equals token-by-token passes, cached equals uncached."""

import pytest
import torch
from fakes import FakeBackbone, uncached_states

from ssd_core.sampling import SamplingConfig
from ssd_core.session import DecodingSession

PROMPTS = ["a", "something longer"]  # left padding differs


def filled_session(eol: bool) -> DecodingSession:
    session = DecodingSession(FakeBackbone(eol=eol), PROMPTS, [0, 1], SamplingConfig(cfg=2.0), lookahead=4)
    generator = torch.Generator().manual_seed(0)
    cells = session.cells(range(5))
    cells.copy_(torch.randint(32, cells.shape, generator=generator))
    return session


@pytest.mark.parametrize("eol", [False, True])
@torch.inference_mode()
def test_block_passes_equal_single_tokens_and_an_uncached_pass(eol):
    session = filled_session(eol)
    expected = uncached_states(session, session.tokens[:, : session.grid.size])
    size = session.grid.size

    single = [session.prefill()] + [session.forward(cell, 1) for cell in range(size - 1)]
    torch.testing.assert_close(torch.cat(single, 1), expected, atol=1e-4, rtol=1e-4)

    blocks = [session.prefill()] + [session.forward(start, min(7, size - 1 - start)) for start in range(0, size - 1, 7)]
    torch.testing.assert_close(torch.cat(blocks, 1), expected, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_wrong_guess_leaves_nothing_behind_once_its_cells_are_fed_again():
    session = filled_session(True)
    expected = uncached_states(session, session.tokens[:, : session.grid.size])
    session.prefill()
    right = session.tokens.clone()
    session.forward(0, 7)
    session.tokens[:, 7:20] = 0
    session.forward(7, 13)
    session.tokens.copy_(right)
    torch.testing.assert_close(session.forward(7, 10), expected[:, 8:18], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_images_at_different_cells_equal_images_at_the_same_cell():
    session = filled_session(True)
    expected = uncached_states(session, session.tokens[:, : session.grid.size])
    session.prefill()
    session.forward(0, 12)
    starts = torch.tensor([5, 12])
    h = session.forward_at(starts, 4, 12)
    for row, start in enumerate((5, 12, 5, 12)):  # both guidance halves
        torch.testing.assert_close(h[row], expected[row, start + 1 : start + 5], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_every_pass_is_counted_once():
    session = filled_session(False)
    session.prefill()
    session.forward(0, 3)
    session.forward_at(torch.tensor([0, 1]), 2, 1)
    assert session.nfe == 3


def test_bad_input_is_explained():
    backbone = FakeBackbone()
    with pytest.raises(ValueError, match="One seed per prompt"):
        DecodingSession(backbone, ["a", "b"], [1])
    with pytest.raises(ValueError, match="set cfg above 1"):
        DecodingSession(backbone, ["a"], [1], SamplingConfig(cfg=1), negatives=["ugly"])
