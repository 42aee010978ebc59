"""What of an entry is whole: torn files and groups that lack a part are found before anything loads them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from archpatch.kernel_cache.tree import Entry, File, read_quietly

__all__ = ["GROUP", "Checked", "check", "group_members", "is_timings", "kernel_of"]

#: Triton's list of the files of one compiled kernel; it is written last, and a kernel without one is compiled again.
GROUP = "__grp__"
_STAGES = (".source", ".ttir", ".ttgir", ".llir", ".ptx", ".cubin", ".json")
_ELF = (".cubin", ".so", ".o")
_JSON = (".json", ".best_config")
#: `e_phoff`, `e_shoff`, `e_phentsize`, `e_phnum`, `e_shentsize`, `e_shnum` (System V ABI, "ELF Header").
_ELF_HEAD = struct.Struct("<32xQQ6xHHHH2x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """An entry's sound files, and the others: (name, what is wrong with it)."""

    entry: Entry
    sound: tuple[File, ...]
    faults: tuple[tuple[str, str], ...]

    def without(self, folders: Mapping[str, str]) -> Checked:
        """Return it with all files of some folders, below the compiler's, as faults; each folder has a reason."""
        faults = {
            file.name: why
            for file in self.entry.files
            for folder, why in folders.items()
            if PurePosixPath(file.name).is_relative_to(folder)
        }
        sound = tuple(file for file in self.sound if file.name not in faults)
        return Checked(entry=self.entry, sound=sound, faults=tuple(sorted({**dict(self.faults), **faults}.items())))


def check(entry: Entry) -> Checked:
    """Look at every file of an entry whose form can be told; the others count as sound."""
    faults = {file.name: fault for file in entry.files if (fault := _fault(entry, file)) is not None}
    for folder in {str(PurePosixPath(file.name).parent) for file in entry.files}:
        faults |= dict(_group_faults(entry, folder, faults))
    sound = tuple(file for file in entry.files if file.name not in faults)
    return Checked(entry=entry, sound=sound, faults=tuple(sorted(faults.items())))


def is_timings(entry: Entry, name: str) -> bool:
    """Tell whether a file is Inductor's table of measured times: one file per GPU, to which every job adds."""
    return entry.compiler.name == "inductor" and name.startswith("cache/")


def kernel_of(name: str) -> str | None:
    """Return the name of the kernel whose group the file `name` is, or None; it has no control characters."""
    base = PurePosixPath(name).name
    return base.removeprefix(GROUP).removesuffix(".json") if base.startswith(GROUP) and base.isprintable() else None


def group_members(content: bytes) -> dict[str, str]:
    """Return the files of a group, name to path. Raises `ValueError` for what is no group."""
    data = json.loads(content)
    paths = data.get("child_paths") if isinstance(data, dict) else None
    if not isinstance(paths, dict) or not all(isinstance(path, str) and _is_name(name) for name, path in paths.items()):
        raise ValueError("no group")
    return paths


def _is_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and name.isprintable()


def _fault(entry: Entry, file: File) -> str | None:
    path, suffix = entry.path(file), PurePosixPath(file.name).suffix
    try:
        if suffix in _JSON or is_timings(entry, file.name):  # which has no suffix
            json.loads(read_quietly(path))
        elif suffix in _ELF and not _is_whole_elf(path, file.size):
            return "it is cut off"
        elif file.foreign:
            read_quietly(path, 0)
    except (ValueError, RecursionError):
        return "it is no JSON"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return None


def _is_whole_elf(path: Path, size: int) -> bool:
    """Tell whether an ELF file (64 bit) is as long as its two tables say; other forms are not judged.

    The table of sections ends a library, that of segments one of ptxas's cubins.
    """
    head = read_quietly(path, 64)
    if not head.startswith(b"\x7fELF\x02"):
        return bool(head) and not b"\x7fELF\x02".startswith(head)
    if len(head) < _ELF_HEAD.size:
        return False
    segments, sections, segment_size, segment_count, section_size, section_count = _ELF_HEAD.unpack(head)
    ends = (segments + segment_size * segment_count, sections + section_size * section_count)
    return bool(max(ends) <= size)


def _group_faults(entry: Entry, folder: str, faults: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what belongs to no whole group, in a folder that Triton wrote."""
    here = {PurePosixPath(file.name).name: file for file in entry.files if _parent(file) == folder}
    whole = {name for name, file in here.items() if file.name not in faults}
    if not any(name.endswith((".source", ".ttir", ".ttgir")) or name.startswith(GROUP) for name in here):
        return
    kept: set[str] = set()
    for name in sorted(name for name in whole if name.startswith(GROUP)):
        members = _members(entry.path(here[name]))
        if members and members.keys() <= whole:
            kept |= {name, *members}
    for name in sorted(whole - kept):
        is_part = name.startswith(GROUP) or (name.endswith(_STAGES) and not name.endswith(".autotune.json"))
        if is_part:
            yield here[name].name, "its kernel is not complete"


def _members(path: Path) -> dict[str, Any]:
    try:
        return group_members(read_quietly(path))
    except (OSError, ValueError, RecursionError):
        return {}


def _parent(file: File) -> str:
    return str(PurePosixPath(file.name).parent)
