"""The entries of a lane as they lie on disk: what was compiled, without what passes (locks, half-written files)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from archpatch.kernel_cache.compilers import COMPILERS, Compiler
from archpatch.kernel_cache.lane import Lane
from archpatch.kernel_cache.variables import folder_of

__all__ = ["Entry", "File", "Tree", "is_passing", "open_quietly", "read_quietly"]

#: What compilers hold or write while they are at work: `tmp.pid_12_<uuid>/` of Triton, `tmp.<uuid>/` of Inductor's
#: bundles, `.12.34.tmp` and `locks/` of Inductor, `tmp/` of DeepGEMM, `.staging/` of TileLang, `lock` of torch,
#: `.ninja_lock` of ninja.
_PASSING = re.compile(r"lock|locks|tmp|tmp\..*|\.staging|.*\.lock|.*\.tmp|\.ninja_lock|\.archpatch.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of an entry: its name below the compiler's folder, its size, times (ns), whether it is a program.

    `foreign` says that it is another user's, who may not let it be read.
    """

    name: str
    size: int
    modified: int
    accessed: int
    executable: bool
    foreign: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a compiler keeps or loses as one: `name` is `triton/<hash>`, `folder` is the compiler's own."""

    compiler: Compiler
    name: str
    folder: Path
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """The bytes of all its files."""
        return sum(file.size for file in self.files)

    def path(self, file: File) -> Path:
        """Return where a file of it lies."""
        return self.folder / file.name


@dataclass(slots=True, kw_only=True)
class Tree:
    """The folders of all compilers; `skipped` lists what is no file and no folder, and names that are no UTF-8."""

    folders: tuple[tuple[Compiler, Path], ...]
    skipped: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, root: Path, lane: Lane) -> Tree:
        """Return the tree of a lane below a root."""
        return cls(folders=tuple((compiler, root / folder_of(compiler, lane)) for compiler in COMPILERS))

    @classmethod
    def below(cls, folder: Path) -> Tree:
        """Return the tree with each compiler's folder directly below `folder`: an archive's content."""
        return cls(folders=tuple((compiler, folder / compiler.name) for compiler in COMPILERS))

    def folder(self, compiler: Compiler) -> Path:
        """Return a compiler's folder."""
        return dict(self.folders)[compiler]

    def entries(self) -> Iterator[Entry]:
        """Yield the entries of every compiler, by name; what vanishes meanwhile is not there."""
        for compiler, folder in self.folders:
            groups: dict[str, list[File]] = {}
            for file in self._files(folder, PurePosixPath()):
                groups.setdefault(compiler.entry_of(PurePosixPath(file.name)), []).append(file)
            for name, files in sorted(groups.items()):
                ordered = tuple(sorted(files, key=lambda file: file.name))
                yield Entry(compiler=compiler, name=f"{compiler.name}/{name}", folder=folder, files=ordered)

    def is_as_it_was(self, entry: Entry) -> bool:
        """Tell whether an entry's folder holds now what it held when it was listed; it may have been replaced."""
        below = PurePosixPath(entry.name.partition("/")[2])
        before = {_state(file) for file in entry.files if below in PurePosixPath(file.name).parents}
        return before == {_state(file) for file in self._files(entry.folder, below)}

    def _files(self, top: Path, below: PurePosixPath) -> Iterator[File]:
        try:
            found = list(os.scandir(top / below))
        except OSError:
            return
        for each in found:
            name = below / each.name
            if is_passing(each.name):
                continue
            try:
                if each.is_dir(follow_symlinks=False):
                    yield from self._files(top, name)
                elif each.is_file(follow_symlinks=False) and _is_text(each.name):
                    yield _file(str(name), each.stat(follow_symlinks=False))
                else:
                    self.skipped.append(str(top / name))
            except OSError:
                continue


def is_passing(name: str) -> bool:
    """Tell whether a file or folder is of use only while a compiler is at work."""
    return _PASSING.fullmatch(name) is not None


def read_quietly(path: Path, size: int = -1) -> bytes:
    """Return the file's content, or its first `size` bytes, and leave the access time, which tells what a job used."""
    with open_quietly(path) as file:
        return file.read(size)


def open_quietly(path: Path) -> BinaryIO:
    """Return the opened file, as `read_quietly` reads it; links are not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOATIME | os.O_NOFOLLOW)
    except PermissionError:
        # Another user's file: only its owner may hide a read.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    return open(descriptor, "rb")  # noqa: PTH123  # a descriptor, no path; the caller closes it


def _file(name: str, status: os.stat_result) -> File:
    return File(
        name=name,
        size=status.st_size,
        modified=status.st_mtime_ns,
        accessed=status.st_atime_ns,
        executable=bool(status.st_mode & 0o100),
        foreign=status.st_uid != os.geteuid(),
    )


def _state(file: File) -> tuple[str, int, int]:
    return file.name, file.size, file.modified


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
