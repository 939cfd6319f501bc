"""What the knobs of the peers have in common: each peer declares its own in its own file."""

from dataclasses import dataclass, fields

from ..grid import TokenGrid
from ..schedule import Schedule


@dataclass(frozen=True)
class Options:
    """The knobs of one decoder; every one has a default, and a "help" in its metadata for interfaces."""

    def lookahead(self, schedule: Schedule) -> int:
        """Spare cells that the session has to allocate behind the picture."""
        return 0

    def planned_nfe(self, schedule: Schedule, grid: TokenGrid) -> int | None:
        """Passes of a whole picture, or None where they depend on the picture."""
        return None

    def memory(self, codes: int) -> int:
        """Bytes of what the decoder keeps on the device besides the session's tensors, for a codebook of `codes`."""
        return 0

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = (name if value is True else f"{name}={value}" for name, value in values.items() if value)
        return " ".join(shown)


def at_least(low: float, **values: float | None) -> None:
    """Raises ValueError that names the first value below `low`; None stands for a default."""
    for name, value in values.items():
        if value is not None and value < low:
            raise ValueError(f"{name} must be at least {low}, got {value}.")
