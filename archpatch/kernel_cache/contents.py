"""What files and folders hold, as digests, each read once; and when the last of them was changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from archpatch.kernel_cache.tree import read_quietly
from archpatch.storage.fingerprint import fingerprint

__all__ = ["Content", "Contents"]

#: Where nothing is that anybody compiles; reading there can last for ever.
_NO_FILES = ("dev", "proc", "sys")
#: What no compiler reads, and what changes by itself.
_PASSED_OVER = (".git", "__pycache__")
#: The most files in the folders where a compiler looks for headers, and their bytes: Debian's, CUDA's and torch's are
#: 20,000 files of 0.2 GB together.
_MOST_FILES = 200_000
_MOST_BYTES = 4 << 30
#: Of a larger library the beginning counts, where its identity stands (ELF's note of the build): a linker takes no more
#: than names out of it.
_LIBRARY, _LARGE = 1 << 16, 1 << 20


@dataclass(frozen=True, slots=True)
class Content:
    """A digest, and the time (ns) at which the last of what it is of was changed, or came to where it lies."""

    digest: str
    changed: int


@dataclass(slots=True, kw_only=True)
class Contents:
    """A reader of what builds depend on; `staged` leads from where files belong to where they lie still.

    Below `root` files are given back their access times, which looks like a change: there, only times of content count.
    All paths are absolute. Access times stay. `OSError` is raised for what cannot be read, and `ValueError` for what is
    no plain file, or for folders without end.
    """

    root: Path
    staged: Mapping[Path, Path] = field(default_factory=dict)
    _known: dict[tuple[str, Path], Content] = field(default_factory=dict)

    def file(self, path: Path) -> Content:
        """Return what a file holds."""
        return self._once(self._file, path)

    def library(self, path: Path) -> Content:
        """Return what a linker takes out of a library, and which file it is."""
        return self._once(self._library, path)

    def folder(self, path: Path) -> Content:
        """Return what all files below a folder hold, links followed; a folder that is missing holds nothing."""
        return self._once(self._folder, path)

    def read(self, path: Path) -> bytes:
        """Return a file's bytes."""
        return read_quietly(self._located(path))

    def _once(self, look: Callable[[Path], Content], path: Path) -> Content:
        key = (look.__name__, path)
        if key not in self._known:
            self._known[key] = look(path)
        return self._known[key]

    def _located(self, path: Path) -> Path:
        """Return where a file is to be read, links followed."""
        if path.parts[1:2] and path.parts[1] in _NO_FILES:
            raise ValueError("no file")
        for place, lies in self.staged.items():
            if path.is_relative_to(place):
                path = lies / path.relative_to(place)
        real = path.resolve()
        if not stat.S_ISREG(real.stat().st_mode):
            raise ValueError("no file")
        return real

    def _changed(self, path: Path) -> int:
        status = path.stat()
        if path.is_relative_to(self.root):
            return status.st_mtime_ns
        return max(status.st_mtime_ns, status.st_ctime_ns)

    def _file(self, path: Path) -> Content:
        located = self._located(path)
        return Content(sha256(read_quietly(located)).hexdigest(), self._changed(located))

    def _library(self, path: Path) -> Content:
        located = self._located(path)
        size = located.stat().st_size
        data = read_quietly(located, _LIBRARY if path.suffix != ".a" and size > _LARGE else -1)
        digest = fingerprint({"path": str(located), "size": size, "begin": sha256(data).hexdigest()})
        return Content(digest, self._changed(located))

    def _folder(self, path: Path) -> Content:
        digests: dict[str, str] = {}
        changed, size = 0, 0
        for each in _walk(path):
            changed = max(changed, self._changed(each))
            if each.is_file():
                content = self.file(each)
                digests[str(each)], changed = content.digest, max(changed, content.changed)
                size += each.stat().st_size
            if len(digests) > _MOST_FILES or size > _MOST_BYTES:
                raise ValueError("folders without end")
        return Content(fingerprint(digests), changed)


def _walk(top: Path) -> Iterator[Path]:
    """Yield the folders and the plain files below a folder; each folder once, however many links lead there."""
    if top.parts[1:2] == () or top.parts[1] in _NO_FILES:
        raise ValueError("no folder of headers")
    seen: set[Path] = set()
    for place, folders, names in os.walk(top, followlinks=True):
        here = Path(place).resolve()
        if here in seen:
            folders.clear()
            continue
        seen.add(here)
        folders[:] = sorted(set(folders).difference(_PASSED_OVER))
        yield Path(place)
        yield from (path for name in names if (path := Path(place, name)).is_file())
