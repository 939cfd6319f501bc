"""Autoregressive decoding: the reference that every other decoder is measured against."""

from collections.abc import Iterator

from ..correction import sample_first
from ..session import FINAL, DecodeEvent, DecodingSession


def ar(session: DecodingSession, rule: str) -> Iterator[DecodeEvent]:
    """One token a pass; NFE = rows * (cols + eol), end-of-line tokens being fed but never sampled.

    Tokens are drawn with the shared noise of their seed and cell (rule "greedy": the likeliest ones).
    """
    grid = session.grid
    h = session.prefill()  # [rows, 1, D]: predicts cell 0
    for y in range(grid.rows):
        row = range(y, y + 1)
        for x in range(grid.stride):
            cell = grid.index(y, x)
            if x < grid.cols:
                draws = session.draws(row, 0, slice(x, x + 1))
                session.tokens[:, cell] = sample_first(rule, session.log_probs(h)[:, None], draws)[:, 0, 0]
                session.status[:, cell] = FINAL
            yield session.event("commit", row, (cell + 1) / grid.size)
            if cell + 1 < grid.size:
                h = session.forward(cell, 1)
