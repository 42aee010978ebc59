"""What files and folders hold, as digests, each read once; and when the last of them was changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from archpatch.kernel_cache.tree import open_quietly, read_quietly
from archpatch.storage.fingerprint import fingerprint

__all__ = ["Content", "Contents"]

#: Where nothing is that anybody compiles, and where reading what looks like a file can last for ever.
_NO_FILES = (Path("/proc"), Path("/sys"))
#: What no compiler reads, and what changes by itself.
_PASSED_OVER = (".git", "__pycache__")
#: The most files in one folder where a compiler looks for headers, and bytes there or in one file: Debian's, CUDA's and
#: torch's are 20,000 files of 0.2 GB together.
_MOST_FILES = 200_000
_MOST_BYTES = 1 << 30
_CHUNK = 1 << 20
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
        for place, lies in self.staged.items():
            if path.is_relative_to(place):
                path = lies / path.relative_to(place)
        real = path.resolve()
        if _is_no_place(real) or not stat.S_ISREG(real.stat().st_mode):
            raise ValueError("no file")
        return real

    def _changed(self, path: Path) -> int:
        status = path.stat()
        if path.is_relative_to(self.root):
            return status.st_mtime_ns
        return max(status.st_mtime_ns, status.st_ctime_ns)

    def _file(self, path: Path) -> Content:
        located = self._located(path)
        return Content(_sha256(located), self._changed(located))

    def _library(self, path: Path) -> Content:
        located = self._located(path)
        size = located.stat().st_size
        is_part = path.suffix != ".a" and size > _LARGE
        content = sha256(read_quietly(located, _LIBRARY)).hexdigest() if is_part else _sha256(located)
        digest = fingerprint({"path": str(located), "size": size, "content": content})
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


def _is_no_place(path: Path) -> bool:
    return any(path.is_relative_to(place) for place in _NO_FILES)


def _sha256(path: Path) -> str:
    """Return the digest of a file, which is not held in memory."""
    digest, left = sha256(), _MOST_BYTES
    with open_quietly(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            left -= len(chunk)
            if left < 0:
                raise ValueError("a file without end")
    return digest.hexdigest()


def _walk(top: Path) -> Iterator[Path]:
    """Yield the folders and the plain files below a folder; each folder once, however many links lead there."""
    if top == Path("/") or _is_no_place(top.resolve()):
        raise ValueError("no folder of headers")
    seen: set[Path] = set()
    for place, folders, names in os.walk(top, followlinks=True):
        here = Path(place).resolve()
        if here in seen or _is_no_place(here):
            folders.clear()
            continue
        seen.add(here)
        folders[:] = sorted(set(folders).difference(_PASSED_OVER))
        yield Path(place)
        yield from (path for name in names if (path := Path(place, name)).is_file())
