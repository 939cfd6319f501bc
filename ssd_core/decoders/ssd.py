"""Spatially Speculative Decoding (arXiv 2606.20543, Sec. 3.3 and A.6): the paper, top to bottom.

Legend: h[y, x] is the state that predicts cell (y, x), e[y, x] the embedding of its token; p is the
backbone's distribution there, q the reference a drafted token is tested against. Verify passes write
their keys and values where the commit pass overwrites them, so rejected guesses need no rollback.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..correction import correct, draft, sample_first
from ..heads import Heads
from ..schedule import Schedule
from ..session import DRAFT, FINAL, DecodeEvent, DecodingSession


def ssd(session: DecodingSession, heads: Heads, schedule: Schedule, rule: str) -> Iterator[DecodeEvent]:
    """Drafts the first row rightwards with horizontal heads, every other row from the one above it.

    Every image of the batch takes the same passes: `schedule.planned_nfe(grid)` of them, or fewer where the
    schedule settles for what a round has kept whole in every image.
    """
    planned, grid = schedule.planned_nfe(session.grid), session.grid

    def event(phase: str, rows: range, **details) -> DecodeEvent:
        done = (rows.stop if phase == "commit" else rows.start) / grid.rows
        return session.event(phase, rows, done if schedule.settle else session.nfe / planned, **details)

    h_row, h_next = yield from _first_row(session, heads, schedule, rule, event)
    owed = 0  # final rows just above whose commit a later pass carries; the paper commits at once
    for y, n in schedule.blocks(grid):
        rows = range(y, y + n)
        log_q = _draft_block(session, heads, h_row, rows, rule)
        yield event("draft", rows)
        round = settled = 0
        for row in rows:
            guessed = range(row, rows.stop)
            for _ in range(schedule.b if row == y else schedule.i):
                if settled == len(guessed):
                    break
                h_rows, h_next, after, log_q, accepted = _verify(session, h_next, log_q, owed, guessed, round, rule)
                h_row, owed = h_rows[:, -1], 0
                if schedule.settle:
                    settled = _kept_rows(accepted, len(guessed))
                yield event("verify", guessed, round=round, accepted=accepted)
                round += 1
            session.mark(range(row, row + 1), FINAL)
            log_q = log_q[:, 1:]
            if settled:  # its keys and values are right already
                h_next, after, settled = after[:, :1], after[:, 1:], settled - 1
            elif schedule.postpones(row, rows, grid):
                owed += 1
            else:
                h_row, h_next = _commit(session, h_next, range(row - owed, row + 1))
                owed = 0
            yield event("commit", range(row, row + 1))


def _draft_block(session: DecodingSession, heads: Heads, h_row: Tensor, rows: range, rule: str) -> Tensor:
    """Guesses all cells of `rows` from the committed row above them.

    h_row [rows, cols, D]: its states. Returns the reference log q [B, n, cols, V].
    """
    above = session.cells(range(rows.start - 1, rows.start))[:, 0]
    e_row = session.embed(above)
    h_hat = torch.stack([heads.draft_below(offset + 1, h_row, e_row) for offset in range(len(rows))], 1)
    log_q = session.log_probs(h_hat, heads)
    session.cells(rows).copy_(draft(rule, log_q, session.draws(rows, 0)))
    session.mark(rows, DRAFT)
    return log_q


def _verify(
    session: DecodingSession, h_next: Tensor, log_q: Tensor, owed: int, rows: range, round: int, rule: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One pass over all cells of `rows` at once, then one correction of all of them.

    It also commits the `owed` rows above them, whose first cell h_next [rows, 1, D] predicts. Returns the states
    [rows, n, cols, D] that predict `rows`, h_next of `rows`, the states [rows, n, D] that predict the cell after
    each of them, the next reference, and the tokens that were kept, bool [B, n * cols].
    """
    h, after = _predictors(session, h_next, range(rows.start - owed, rows.stop))
    h, h_next, after = h[:, owed:], after[:, owed - 1 : owed] if owed else h_next, after[:, owed:]
    draws = session.draws(rows, 1 + round)
    result = correct(rule, session.log_probs(h), log_q, session.cells(rows), draws)
    session.cells(rows).copy_(result.tokens)
    return h, h_next, after, result.log_q, result.accepted.flatten(1)


def _kept_rows(accepted: Tensor, rows: int) -> int:
    """How many of the block's first rows a round has kept whole, in every image; accepted bool [B, rows * cols]."""
    return int(accepted.unflatten(1, (rows, -1)).all(-1).all(0).cumprod(0).sum())


def _commit(session: DecodingSession, h_next: Tensor, rows: range) -> tuple[Tensor, Tensor]:
    """The pass that makes rows final: right keys and values, and the states the next draft starts from."""
    h, after = _predictors(session, h_next, rows)
    return h[:, -1], after[:, -1:]


def _predictors(session: DecodingSession, h_next: Tensor, rows: range) -> tuple[Tensor, Tensor]:
    """Feeds whole rows (with their end-of-line cells); the states that predict their cells.

    Returns h [rows, n, cols, D] and the states [rows, n, D] that predict the cell after each row.
    """
    grid = session.grid
    states = session.forward(grid.index(rows.start), len(rows) * grid.stride)
    h = torch.cat((h_next, states[:, :-1]), 1).unflatten(1, (len(rows), grid.stride))
    return h[:, :, : grid.cols], states.unflatten(1, (len(rows), grid.stride))[:, :, -1]


def _first_row(session: DecodingSession, heads: Heads, schedule: Schedule, rule: str, event):
    """Prefill, then up to k_h columns at a time: draft, one verify pass, one commit pass.

    Returns the row's states [rows, cols, D] and the state [rows, 1, D] that predicts cell (1, 0).
    """
    grid, row = session.grid, range(1)
    tokens = session.cells(row)[:, 0]  # [B, cols], a view
    h_next = session.prefill()
    tokens[:, :1] = sample_first(rule, session.log_probs(h_next)[:, None], session.draws(row, 0, slice(1)))[:, 0]
    session.status[:, 0] = FINAL
    yield event("prefill", row)

    h_row = [h_next]  # states of the cells so far; the last one predicts cell x
    cached = x = 0  # cells with final keys and values; the last final cell
    while x + 1 < grid.cols:
        m = min(schedule.k_h, grid.cols - 1 - x)
        columns = slice(x + 1, x + 1 + m)
        h, e = h_row[-1][:, -1:], session.embed(tokens[:, x : x + 1])
        h_hat = torch.cat([heads.draft_right(offset + 1, h, e) for offset in range(m)], 1)
        log_q = session.log_probs(h_hat, heads)
        tokens[:, columns] = draft(rule, log_q[:, None], session.draws(row, 0, columns))[:, 0]
        session.status[:, columns] = DRAFT
        yield event("draft", row)

        states = session.forward(cached, x + 1 + m - cached)
        h = states[:, :m] if cached == x else torch.cat((h_next, states), 1)[:, :m]  # predicts `columns`
        draws = session.draws(row, 1, columns)
        result = correct(rule, session.log_probs(h)[:, None], log_q[:, None], tokens[:, None, columns], draws)
        tokens[:, columns] = result.tokens[:, 0]
        yield event("verify", row, round=0, accepted=result.accepted[:, 0])

        cached = x + 1 + m if x + 1 + m < grid.cols else grid.stride
        states = session.forward(x + 1, cached - (x + 1))
        h_row.append(torch.cat((h[:, :1], states[:, : m - 1]), 1))
        h_next = states[:, -1:]
        session.status[:, columns] = FINAL
        x += m
        yield event("commit", row)
    return torch.cat(h_row, 1), h_next
