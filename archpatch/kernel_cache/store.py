"""Where archives lie: a folder with one per key, or one file that a CI's own cache carries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from archpatch.kernel_cache.archive import SUFFIX
from archpatch.storage.key import Key
from archpatch.storage.listing import last_written, matching

__all__ = ["Store"]


@dataclass(frozen=True, slots=True)
class Store:
    """A folder, or one archive where the path ends in `.tar.zst`."""

    path: Path

    @property
    def is_archive(self) -> bool:
        """Whether it is one file, whose name says nothing of its key."""
        return self.path.name.endswith(SUFFIX)

    def place(self, key: Key) -> Path:
        """Return where the archive for `key` lies, or would."""
        return self.path if self.is_archive else self.path / f"{key}{SUFFIX}"

    def has(self, key: Key) -> bool:
        """Tell whether the folder holds an archive for exactly `key`."""
        return not self.is_archive and self.place(key).is_file()

    def candidates(self, key: Key) -> Iterator[Path]:
        """Yield the archives that may be restored, the best first: the exact one, then the newest per prefix."""
        if self.place(key).is_file():
            yield self.place(key)
        if self.is_archive or not self.path.is_dir():
            return
        seen = {self.place(key)}
        for prefix in key.restore_prefixes:
            fitting = {path for path in matching(self.path, f"*{SUFFIX}") if path.name.startswith(prefix)} - seen
            seen |= fitting
            yield from sorted(fitting, key=lambda path: (last_written(path), path.name), reverse=True)
