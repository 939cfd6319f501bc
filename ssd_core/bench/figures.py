"""Figures with their uncertainty, and how they are printed and kept."""

import csv
import io
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import write_atomically

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_T += (2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)


@dataclass(frozen=True)
class Estimate:
    """A mean over n runs and half the width of its 95 % confidence interval (None for a single run)."""

    mean: float
    margin: float | None = None
    n: int = 1

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """The mean of runs that differ in their seeds; Student's t."""
        n = len(values)
        if n < 2:
            return cls(values[0])
        t = _T[n - 2] if n - 2 < len(_T) else 1.96 + 2.4 / (n - 1)
        return cls(statistics.mean(values), t * statistics.stdev(values) / math.sqrt(n), n)

    def text(self, scale: float = 1, digits: int = 1) -> str:
        """Such as "47.1 ± 2.0"."""
        mean = f"{self.mean * scale:.{digits}f}"
        return mean if self.margin is None else f"{mean} ± {self.margin * scale:.{digits}f}"


def table(rows: Sequence[dict[str, str]]) -> str:
    """Markdown, with the columns that any row fills; a row maps titles to texts."""
    titles = list(dict.fromkeys(title for row in rows for title in row))
    titles = [title for title in titles if any(row.get(title) for row in rows)]
    lines = [titles, ["---"] * len(titles), *([row.get(title, "") for title in titles] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def save(folder: Path, name: str, facts: dict, rows: Sequence[dict]) -> None:
    """Writes name.json (facts about the run, and the rows) and name.csv (the rows, nested ones by dotted names)."""
    text = json.dumps({**facts, "rows": rows}, indent=1)
    write_atomically(folder / f"{name}.json", lambda path: path.write_text(text, encoding="utf-8"))
    flat = [_flat(row) for row in rows]
    titles = list(dict.fromkeys(title for row in flat for title in row))
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, titles)
    writer.writeheader()
    writer.writerows(flat)
    write_atomically(folder / f"{name}.csv", lambda path: path.write_bytes(buffer.getvalue().encode("utf-8")))


def _flat(value, prefix: str = "") -> dict:
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return {prefix: value}
    flat = {}
    for key, each in items:
        flat |= _flat(each, f"{prefix}.{key}" if prefix else str(key))
    return flat
