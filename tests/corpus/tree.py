"""A copy of a project in which its `setup.py` may write as it likes: put back after each run."""

# ruff: noqa: PTH112, PTH208 - it walks thousands of entries after each run

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Tree"]

#: Above this many entries only the upper folders are watched.
_ALL, _DEPTH = 3000, 2
_LEFT_OUT = shutil.ignore_patterns(".git", "*.o", "*.so", "__pycache__", "*.whl")


class Tree:
    """The disposable copy in `folder` of the project in `original`; `setup` is its `setup.py`.

    `is_bare` tells that nothing but Python files were kept of the project.
    """

    def __init__(self, setup: Path, folder: Path) -> None:
        self.file = setup
        self.original = setup.parent
        self.folder = folder
        self.setup = folder / "setup.py"
        self.bytecode = folder.with_name("bytecode")
        if setup.name == "setup.py":
            shutil.copytree(self.original, folder, symlinks=True, ignore=_LEFT_OUT, ignore_dangling_symlinks=True)
            self.is_bare = not any(
                name for name in os.listdir(folder) if not name.endswith((".py", ".json", ".url", ".txt"))
            )
        else:
            folder.mkdir(parents=True)
            self.is_bare = True
        self.setup.write_bytes(setup.read_bytes())
        self._depth = None if sum(1 for _ in self._walk(None)) <= _ALL else _DEPTH
        self._before = dict(self._walk(self._depth))

    @contextmanager
    def holding(self, source: bytes) -> Iterator[Path]:
        """Give the folder with `source` as its `setup.py`, and put it back in the end."""
        self.setup.write_bytes(source)
        try:
            yield self.folder
        finally:
            self._restore()

    def _walk(self, depth: int | None) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield (path below the folder, (size, time)) of each file and folder but `setup.py`; folders have no size."""
        waiting = [(str(self.folder), 1)]
        while waiting:
            folder, level = waiting.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if is_folder and (depth is None or level < depth):
                        waiting.append((entry.path, level + 1))
                    stat = entry.stat(follow_symlinks=False)
                    if entry.path != str(self.setup):
                        yield entry.path, (0, 0) if is_folder else (stat.st_size, stat.st_mtime_ns)

    def _restore(self) -> None:
        now = dict(self._walk(self._depth))
        for path in sorted(set(now) - set(self._before)):
            shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else Path(path).unlink(missing_ok=True)
        changed = [path for path, state in self._before.items() if now.get(path) != state]
        for path in changed:
            self._copy(self.original / Path(path).relative_to(self.folder), Path(path))
        if changed:
            self._before = dict(self._walk(self._depth))

    def _copy(self, source: Path, target: Path) -> None:
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
