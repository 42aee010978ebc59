"""The logs of builds, below the cache folder."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from archpatch.storage.atomic import disk_errors
from archpatch.storage.cache_folder import cache_folder
from archpatch.storage.listing import matching

__all__ = ["new_log"]

#: How many logs are kept, and for how many seconds each of them at least: a build may still write to it.
KEPT: Final = 200
FRESH: Final = 24 * 60 * 60


def new_log(name: str) -> Path:
    """Return a new file for all that a build of the package `name` prints; old ones are removed."""
    folder = cache_folder() / "logs"
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _prune(folder)
        handle, path = tempfile.mkstemp(prefix=f"{canonicalize_name(name)}-{now}-", suffix=".log", dir=folder)
        os.close(handle)
    return Path(path)


def _prune(folder: Path) -> None:
    """Remove all but the newest logs and those of the last day."""
    written: dict[Path, float] = {}
    for log in matching(folder, "*.log"):
        # Another process prunes too.
        with contextlib.suppress(FileNotFoundError):
            written[log] = log.stat().st_mtime
    oldest_first = sorted(written, key=written.__getitem__)
    for log in oldest_first[:-KEPT]:
        if written[log] < time.time() - FRESH:
            log.unlink(missing_ok=True)
