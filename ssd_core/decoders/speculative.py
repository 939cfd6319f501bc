"""Speculative sampling in raster order: what sjd, gsd, lantern and the strict mtp have in common.

A pass tests a window of drafts from left to right (Leviathan et al. 2023). Draft x is kept with
probability min(1, p(x) / q(x)), where p is the backbone's distribution and q the one that x was drawn
from; the first one that is not is replaced with a sample of max(p - q, 0), and the next pass starts
behind it. So tokens are distributed exactly as AR's, unless a decoder puts another ratio in the place of
p(x) / q(x). Where the drafts come from is the decoder's business: `Drafter`. Keys and values behind the
final cells are overwritten by the next pass, so rejected drafts need no rollback.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..correction import residual, sample_first, target
from ..heads import Heads
from ..session import DRAFT, FINAL, DecodeEvent, DecodingSession


@dataclass(frozen=True)
class Front:
    """Where each image stands between two passes.

    cells int64 [B, n]: the raster cells that the next pass predicts, the first being the first that is not
    final; forced bool [B, n]: which of them are end-of-line or spare cells. h [rows, 1, D]: the state that
    predicted the last final cell. log_p fp32 [B, m, V]: what the last pass predicted, from `advance` [B]
    cells before; the session's tokens from cells[:, 0] on are samples of it, as far as it reaches.
    uniform [B, n] and gumbel() -> [B, n, V]: random numbers for the drafts.
    """

    cells: Tensor
    forced: Tensor
    h: Tensor
    log_p: Tensor
    advance: Tensor
    uniform: Tensor
    gumbel: Callable[[], Tensor]


Drafter = Callable[[Front], tuple[Tensor, Tensor]]  # -> tokens int64 [B, n], log q fp32 [B, n, V]
Ratio = Callable[[Tensor, Tensor, Tensor], Tensor]  # log p, log q [B, n, V], drafts [B, n] -> log ratio [B, n]


def exact(log_p: Tensor, log_q: Tensor, tokens: Tensor) -> Tensor:
    """log p(x) / q(x)."""
    return at(log_p, tokens) - at(log_q, tokens)


def at(values: Tensor, tokens: Tensor) -> Tensor:
    """values [..., V] at tokens [...]."""
    return values.gather(-1, tokens[..., None])[..., 0]


def speculate(
    session: DecodingSession, window: int, draft: Drafter, ratio: Ratio, rule: str, *, coupled: bool = False
) -> Iterator[DecodeEvent]:
    """Passes of `window` cells: the last final one and window - 1 drafts; each image advances at its own pace.

    The cell behind the drafts gets a token from every pass that keeps them all, so at least one cell and at
    most `window` cells a pass become final. coupled: sample the tokens behind the first rejection with the
    shared noise of their cells instead of fresh noise. Needs a session with lookahead >= window.
    """
    grid, batch, device, noise = session.grid, session.batch, session.tokens.device, session.noise
    beyond = range(grid.rows, grid.rows + 1)  # a row that no picture has: noise by pass, not by row
    h = session.prefill()
    log_p = target(rule, session.log_probs(h))
    first = session.draws(range(1), 0, slice(1))
    session.tokens[:, :1] = sample_first(rule, log_p[:, None], first)[:, 0]
    session.status[:, 0] = FINAL
    final, advance, number = [1] * batch, torch.ones(batch, dtype=torch.long, device=device), 0
    yield session.event("prefill", range(1), 1 / grid.size)

    while min(final) < grid.size:
        number += 2
        count = min(window, grid.size - min(final))
        order = torch.arange(count, device=device)
        starts = torch.tensor(final, device=device)
        cells = starts[:, None] + order  # may run on into the lookahead
        forced = (cells % grid.stride >= grid.cols) | (cells >= grid.size)
        front = Front(
            cells,
            forced,
            h,
            log_p,
            advance,
            noise.uniform(beyond, number, window)[:, 0, :count],
            lambda number=number, count=count: noise.fresh(beyond, number, window)[:, 0, :count],
        )
        drafts, log_q = draft(front)
        _put(session, cells, torch.where(forced, session.tokens_at(cells), drafts), DRAFT, ~forced)

        states = session.forward_at(starts - 1, count, max(final) - 1)  # [rows, count, D]
        log_p = target(rule, session.log_probs(states))
        log_q[:, window - 1 :] = -torch.inf  # no draft under test there: the residual is p
        uniform = noise.uniform(beyond, number + 1, window)[:, 0, :count]
        accepted = uniform.log() < ratio(log_p, log_q, drafts)
        accepted[:, window - 1 :] = False
        kept = (accepted | forced).long().cumprod(1).sum(1, keepdim=True)  # [B, 1]
        rejected = kept.clamp(max=count - 1)[..., None].expand(-1, -1, log_p.shape[-1])
        gumbel = noise.fresh(beyond, number + 1, window)[:, 0, :count]
        if coupled:
            gumbel = torch.where((order > kept)[..., None], noise.shared_window(range(batch), final, count), gumbel)
        weights = log_p.scatter(1, rejected, residual(log_p.gather(1, rejected), log_q.gather(1, rejected)))
        _put(session, cells, (weights + gumbel).argmax(-1), DRAFT, ~forced & (order >= kept))

        advance = (kept[:, 0] + 1).clamp(max=count)
        _put(session, cells, None, FINAL, order < advance[:, None])
        last = (advance - 1)[:, None, None].expand(-1, 1, states.shape[-1])
        h = states.gather(1, session.per_row(last))
        begun = min(final)
        final = (starts + advance).clamp(max=grid.size).tolist()  # the one wait for the device per pass
        rows = range(begun // grid.stride, min((max(final) + count - 1) // grid.stride + 1, grid.rows))
        yield session.event("window", rows, min(final) / grid.size, accepted=order < kept, cells=cells)


def _put(session: DecodingSession, cells: Tensor, tokens: Tensor | None, status: int, where: Tensor) -> None:
    """Writes tokens (None: leaves them) and a status to those of `cells` that `where` says."""
    if tokens is not None:
        session.tokens.scatter_(1, cells, torch.where(where, tokens, session.tokens_at(cells)))
    session.status.scatter_(1, cells, torch.where(where, status, session.status.gather(1, cells)))


def chain(session: DecodingSession, heads: Heads, k_h: int, rule: str) -> Drafter:
    """k_h drafts from the horizontal heads: samples of what they predict to the right of the last final cell.

    Without end-of-line cells a chain runs on into the next row.
    """

    def draft(front: Front) -> tuple[Tensor, Tensor]:
        offsets = [min(offset, k_h) for offset in range(1, front.cells.shape[1] + 1)]  # any will do behind the drafts
        e = session.embed(session.tokens_at(front.cells[:, :1] - 1))
        h_hat = torch.cat([heads.draft_right(offset, front.h, e) for offset in offsets], 1)
        log_q = target(rule, session.log_probs(h_hat, heads))
        return (log_q + front.gumbel()).argmax(-1), log_q

    return draft
