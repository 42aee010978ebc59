"""Folders that ninja builds (torch extensions, FlashInfer, TVM-FFI): whether they may be restored, and made current.

Ninja goes by times, and a checkout or an installation gives old sources new ones. Here the contents decide: what a
folder was built from is digested when it is saved, and only where the digest is the same afterwards do its times say
that it is current. Paths are part of ninja's commands, so it has to come back to where it was.

The two logs are those of ninja 1.5 and later: `.ninja_log` has lines of start, end, mtime, output and a hash of the
command; `.ninja_deps` (version 3 or 4) has records of a length, whose highest bit marks dependencies: the output's
number, its mtime in two words, and the numbers of its inputs; or else a path with its padding and a checksum.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from archpatch.storage.atomic import sha256_of

__all__ = ["LOG", "LOGS", "Build", "build_seconds", "make_current", "read_build"]

LOG = ".ninja_log"
_DEPS = ".ninja_deps"
#: What holds times, and so differs after each restore.
LOGS = (LOG, _DEPS)
_MAGIC = b"# ninjadeps\n"
_VERSIONS = (3, 4)
_IS_DEPS = 1 << 31
_FIELDS = 5
#: Where nothing is that anybody compiles; reading there can last for ever.
_NO_FILES = ("dev", "proc", "sys")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What ninja's logs say: the time (ns) of each output's build, and the inputs that compilers named."""

    times: Mapping[str, int]
    inputs: tuple[str, ...]

    def digest(self, locate: Callable[[Path], Path], folder: Path) -> str | None:
        """Return a digest of the inputs' paths and contents, or None where one is missing.

        Relative paths start at `folder`; `locate` says where a path is to be read.
        """
        digest = hashlib.sha256()
        for name in self.inputs:
            path = Path(os.path.normpath(folder / name))
            content = None if path.parts[1] in _NO_FILES else _sha256(locate(path))
            if content is None:
                return None
            digest.update(f"{path}\0{content}\0".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def is_current(self, folder: Path) -> bool:
        """Tell whether no input was changed after the first of the builds that may have read it."""
        oldest = min(self.times.values(), default=0)
        try:
            return all((folder / name).stat().st_mtime_ns <= oldest for name in self.inputs)
        except OSError:
            return False


def read_build(folder: Path) -> Build | None:
    """Read the logs in `folder`; None where they do not say what everything was compiled from."""
    try:
        times = {output: int(mtime) for _, _, mtime, output, _ in _log(folder)}
        inputs = _dependencies((folder / _DEPS).read_bytes())
    except (OSError, ValueError, struct.error, IndexError):
        return None
    objects = {output for output in times if output.endswith(".o")}
    if not objects or not objects <= inputs.keys():
        return None
    named = {path for output in objects for path in inputs[output]}
    return Build(times=times, inputs=tuple(sorted(named - times.keys())))


def build_seconds(folder: Path) -> float:
    """Return the seconds that the compilers took for what is in `folder`, one after the other; 0 where that is unknown.

    `.ninja_log` has start and end in milliseconds.
    """
    try:
        return sum({output: int(end) - int(start) for start, end, _, output, _ in _log(folder)}.values()) / 1000
    except (OSError, ValueError):
        return 0.0


def make_current(folder: Path, stamp: int) -> None:
    """Give every output in `folder` the time `stamp` (ns), on disk and in both logs, so that ninja builds nothing.

    What it was built from has to be older than that. Outputs elsewhere are left out: nothing else is touched.
    """
    lines = []
    for begun, end, _, output, command in _log(folder):
        path = Path(os.path.normpath(folder / output))
        if path.is_relative_to(folder) and path.is_file():
            lines.append(f"{begun}\t{end}\t{stamp}\t{output}\t{command}")
            os.utime(path, ns=(stamp, stamp), follow_symlinks=False)
    header = (folder / LOG).read_text(encoding="utf-8", errors="surrogateescape").partition("\n")[0]
    text = "\n".join([header, *lines, ""])
    (folder / LOG).write_text(text, encoding="utf-8", errors="surrogateescape")
    data = bytearray((folder / _DEPS).read_bytes())
    for start, is_dependencies, _ in _records(data):
        if is_dependencies:
            struct.pack_into("<Q", data, start + 4, stamp)
    (folder / _DEPS).write_bytes(data)


def _sha256(path: Path) -> str | None:
    try:
        return sha256_of(path) if path.is_file() else None
    except OSError:
        return None


def _log(folder: Path) -> list[list[str]]:
    """Return the fields of each line of the log; a later line of one output replaces an earlier one."""
    text = (folder / LOG).read_text(encoding="utf-8", errors="surrogateescape")
    fields = [line.split("\t") for line in text.splitlines()[1:]]
    return list({line[3]: line for line in fields if len(line) == _FIELDS}.values())


def _records(data: bytes | bytearray) -> list[tuple[int, bool, int]]:
    """Return (start, whether it is dependencies, length) of each record. Raises `ValueError` for another version."""
    if not data.startswith(_MAGIC) or struct.unpack_from("<I", data, len(_MAGIC))[0] not in _VERSIONS:
        raise ValueError("another version of ninja")
    found, position = [], len(_MAGIC) + 4
    while position + 4 <= len(data):
        (word,) = struct.unpack_from("<I", data, position)
        length = word & ~_IS_DEPS
        if position + 4 + length > len(data):
            break  # ninja itself cuts off a record that a killed build left
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
