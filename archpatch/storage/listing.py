"""What lies in folders that other processes change meanwhile."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["below", "last_written", "matching"]


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in `folder` that match a pattern as of `glob`, sorted; `*` matches no leading dot.

    A folder that is gone by the time it is read holds nothing, whereas `Path.glob` raises before Python 3.13.
    """
    return [folder / name for name in sorted(glob.glob(pattern, root_dir=folder))]  # noqa: PTH207


def below(folder: Path) -> Iterator[Path]:
    """Yield all files and folders below `folder`, links not followed; what is gone when it is read holds nothing."""
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *files))


def last_written(path: Path) -> int:
    """Return the time of the last change in nanoseconds since the epoch, 0 for what is gone."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
