"""Writing files so that a crash or a full disk never leaves half of one behind."""

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: str | Path, write: Callable[[Path], None]) -> Path:
    """Calls `write(temporary path)` beside `path`, then renames the result into place.

    The temporary file keeps the suffix (libraries choose formats by it) and is removed on any error.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
