"""Folders that ninja builds (torch extensions, FlashInfer, TVM-FFI): whether they may be restored, and made current.

Ninja goes by times, and a checkout or an installation gives old sources new ones. Here the contents decide: what a
folder was built from is digested when it is saved, and only where the digest is the same afterwards do its times say
that it is current. Paths are part of ninja's commands, so it has to come back to where it was. Where it cannot be told
what all of it was built from, it is not current.

The two logs are those of ninja 1.5 and later: `.ninja_log` has lines of start, end, mtime, output and a hash of the
command; `.ninja_deps` (version 3 or 4) has records of a length, whose highest bit marks dependencies: the output's
number, its mtime in two words, and the numbers of its inputs; or else a path with its padding and a checksum.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from archpatch.kernel_cache.contents import Content, Contents
from archpatch.kernel_cache.ninja_file import Edge, read_edges
from archpatch.kernel_cache.ninja_needs import Needs, absolute, needs_of
from archpatch.kernel_cache.tree import read_quietly
from archpatch.storage.fingerprint import fingerprint

__all__ = ["LOG", "LOGS", "Build", "build_seconds", "current_digest", "make_current", "read_build"]

LOG = ".ninja_log"
_DEPS = ".ninja_deps"
#: What holds times, and so differs after each restore.
LOGS = (LOG, _DEPS)
_FILE = "build.ninja"
_LONGEST_FILE = 1 << 20
_MAGIC = b"# ninjadeps\n"
_VERSIONS = (3, 4)
_IS_DEPS = 1 << 31
_FIELDS = 5
#: A header that says so is one of the system's, and what it includes is not listed with `-MMD`.
_SAYS_SYSTEM = b"system_header"
#: The fewest bytes of a record: two numbers and a time, or a checksum.
_FEWEST = {True: 12, False: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What ninja's files in a folder say: the time (ns) of each output's build, and what it was built from.

    `inputs` are what compilers listed, `headers` those of them whose compiler listed not all, `needs` the rest: paths
    to where each belongs, as `place` is where the folder does.
    """

    place: Path
    times: Mapping[str, int]
    inputs: tuple[Path, ...]
    headers: tuple[Path, ...]
    needs: Needs

    def content(self, contents: Contents) -> Content | None:
        """Return what it was built from, with the paths, or None where something cannot be read or told."""
        needs = self.needs
        looks = (
            *((contents.file, path) for path in (*self.inputs, *needs.files, *needs.programs)),
            *((contents.library, path) for path in needs.libraries),
            *((contents.folder, path) for path in needs.folders),
        )
        try:
            found = [(str(path), look(path)) for look, path in looks]
            if self._hides_includes(contents):
                return None
        except (OSError, ValueError):
            return None
        digests = [(path, content.digest) for path, content in found]
        changed = max((content.changed for _, content in found), default=0)
        return Content(fingerprint({"content": digests, "variables": needs.variables}), changed)

    def _hides_includes(self, contents: Contents) -> bool:
        """Tell whether a header of the user's includes what is neither listed nor below a folder that counts."""
        return any(
            _SAYS_SYSTEM in contents.read(path)
            for path in self.headers
            if not any(path.is_relative_to(folder) for folder in self.needs.folders)
        )


def current_digest(folder: Path, contents: Contents) -> str | None:
    """Return the digest of what `folder` was built from, or None unless it is proven to be current.

    Then nothing was changed after the first of the builds that may have read it.
    """
    build = read_build(folder)
    content = None if build is None else build.content(contents)
    if build is None or content is None or content.changed > min(build.times.values(), default=0):
        return None
    return content.digest


def read_build(folder: Path, place: Path | None = None) -> Build | None:
    """Read ninja's files in `folder`, which lies at `place` or belongs there; None where they do not say all."""
    place = place or folder
    try:
        text = read_quietly(folder / _FILE, _LONGEST_FILE + 1).decode("utf-8", "surrogateescape")
        if len(text) > _LONGEST_FILE:
            return None
        times = {output: int(mtime) for _, _, mtime, output, _ in _log(folder)}
        found = _dependencies(read_quietly(folder / _DEPS))
        listed = {absolute(place, output): inputs for output, inputs in found.items()}
        made = {absolute(place, output) for output in times}
        edges = [edge for edge in read_edges(text) if edge.command is None or not made.isdisjoint(_made(edge, place))]
        needs = needs_of(edges, place)
        some = {_made(edge, place)[0] for edge in edges if needs_of([edge], place).folders}
    except (OSError, ValueError, struct.error, IndexError, RecursionError):
        return None
    compiled = [_made(edge, place)[0] for edge in edges if edge.tells]
    if not compiled or not listed.keys() >= set(compiled):
        return None
    inputs, headers = (
        tuple(sorted({absolute(place, path) for output in outputs for path in listed[output]} - made))
        for outputs in (compiled, some)
    )
    return Build(place=place, times=times, inputs=inputs, headers=headers, needs=needs)


def _made(edge: Edge, place: Path) -> list[Path]:
    return [absolute(place, output) for output in edge.outputs]


def build_seconds(folder: Path) -> float:
    """Return the seconds that the compilers took for what is in `folder`, one after the other; 0 where that is unknown.

    `.ninja_log` has start and end in milliseconds.
    """
    try:
        return sum({output: int(end) - int(start) for start, end, _, output, _ in _log(folder)}.values()) / 1000
    except (OSError, ValueError):
        return 0.0


def make_current(folder: Path, place: Path, stamp: int) -> None:
    """Give every output in `folder` the time `stamp` (ns), on disk and in both logs, so that ninja builds nothing.

    `place` is where the folder belongs, and where ninja will run. What it was built from has to be older than `stamp`.
    Outputs elsewhere are left out of the log: nothing else is touched.
    """
    lines = []
    for begun, end, _, output, command in _log(folder):
        path = absolute(place, output)
        lies = folder / path.relative_to(place) if path.is_relative_to(place) else None
        if lies is not None and lies.is_file():
            lines.append(f"{begun}\t{end}\t{stamp}\t{output}\t{command}")
            os.utime(lies, ns=(stamp, stamp), follow_symlinks=False)
    header = _text(folder / LOG).partition("\n")[0]
    text = "\n".join([header, *lines, ""])
    (folder / LOG).write_text(text, encoding="utf-8", errors="surrogateescape")
    data = bytearray(read_quietly(folder / _DEPS))
    for start, is_dependencies, _ in _records(data):
        if is_dependencies:
            struct.pack_into("<Q", data, start + 4, stamp)
    (folder / _DEPS).write_bytes(data)


def _text(path: Path) -> str:
    return read_quietly(path).decode("utf-8", "surrogateescape")


def _log(folder: Path) -> list[list[str]]:
    """Return the fields of each line of the log; a later line of one output replaces an earlier one."""
    fields = [line.split("\t") for line in _text(folder / LOG).split("\n")[1:]]
    return list({line[3]: line for line in fields if len(line) == _FIELDS}.values())


def _records(data: bytes | bytearray) -> list[tuple[int, bool, int]]:
    """Return (start, whether it is dependencies, length) of each record. Raises `ValueError` for any other form."""
    if not data.startswith(_MAGIC) or struct.unpack_from("<I", data, len(_MAGIC))[0] not in _VERSIONS:
        raise ValueError("another version of ninja")
    found, position = [], len(_MAGIC) + 4
    while position + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, position)
        length = word & ~_IS_DEPS
        if position + 4 + length > len(data):
            break  # ninja itself cuts off a record that a killed build left
        if length % 4 or length < _FEWEST[bool(word & _IS_DEPS)]:
            raise ValueError("no record")
        found.append((position + 4, bool(word & _IS_DEPS), length))
        position += 4 + length
    return found


def _dependencies(data: bytes) -> dict[str, list[str]]:
    """Return the inputs of each output, as the last record of it says."""
    paths: list[str] = []
    numbers: dict[int, tuple[int, ...]] = {}
    for start, is_dependencies, length in _records(data):
        if is_dependencies:
            output, *words = struct.unpack_from(f"<{length // 4}I", data, start)
            numbers[output] = tuple(words[2:])
        else:
            paths.append(os.fsdecode(data[start : start + length - 4].rstrip(b"\0")))
    return {paths[output]: [paths[number] for number in inputs] for output, inputs in numbers.items()}
