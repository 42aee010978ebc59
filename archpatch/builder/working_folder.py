"""Folders for work in progress, which outlive no process: what a killed one left is removed by the next.

The owner holds a lock (flock) on the folder itself, which the system frees when the owner dies, in whatever way. A
process id in a file would say less: ids are given out again. systemd-tmpfiles, too, leaves alone what is locked so
(https://systemd.io/TEMPORARY_DIRECTORIES/).
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from archpatch.builder.processes import end_workers
from archpatch.storage.listing import matching

__all__ = ["is_working_folder", "working_folder"]

_PREFIX = "archpatch-work-"


@contextmanager
def working_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder in `parent` (None: the temporary folder) that is removed at the end, whatever lies in it.

    First, the folders there whose owners died are removed, and the processes that still work in them ended.
    """
    # As a process that works there sees it: what compilers say of their folder has no links in it.
    parent = Path(tempfile.gettempdir() if parent is None else parent).resolve()
    _sweep(parent)
    folder, lock = _make(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def is_working_folder(path: Path) -> bool:
    """Tell by its name whether `path` is, or was, such a folder."""
    return path.name.startswith(_PREFIX)


def _make(parent: Path) -> tuple[Path, int]:
    """Return a new folder and the descriptor that holds its lock: the first of a row that nobody has.

    So one build after another works at the same place. Compilers write paths into what they make, and a compiler cache
    knows a source by its path.
    """
    for number in itertools.count():
        folder = parent / f"{_PREFIX}{number}"
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        # Another process may sweep it away before it is opened, or before it is locked, and make it anew.
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            if _lock(lock) and _is_at(lock, folder):
                return folder, lock
            os.close(lock)
    raise AssertionError


def _lock(descriptor: int) -> bool:
    """Tell whether the lock is ours, or there are none on this file system: then the sweep gets none either."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _sweep(parent: Path) -> None:
    for folder in matching(parent, f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Its owner may have removed it meanwhile, and another made one of that name.
                    if _is_at(lock, folder):
                        end_workers(folder)
                        shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _is_at(descriptor: int, folder: Path) -> bool:
    """Whether `folder` is still the one that was opened: names are used again."""
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False
