"""One ELF file: the device code in it and what it needs of its host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain, islice
from mmap import mmap
from typing import Final

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import NoteSection, Section

from archpatch.arch.arch import DeviceCode
from archpatch.errors import InvalidArchList, UnreadableBinary
from archpatch.wheels.fatbin import Container, FatbinEntry, read_containers

__all__ = ["ELF_MAGIC", "LINKED", "RELOCATABLE", "Binary", "Needs", "parsed", "read_elf"]

ELF_MAGIC: Final = b"\x7fELF"

#: Where the linked device code of a library lies: what the CUDA runtime registers and the driver loads.
LINKED: Final = ".nv_fatbin"
#: Device code for a device link to take (`-rdc=true`, `-dlto`). It stays in a linked library, where nothing loads it.
RELOCATABLE: Final = "__nv_relfatbin"

#: `EM_CUDA`: the ELF file is itself a cubin.
_CUDA: Final = "cuda"
_TOOL_NOTE: Final = ".note.nv.tkinfo"
_MACHINES: Final = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_CUDA": _CUDA}
#: The smallest entry of a `.gnu.version_r` section, `Elf_Vernaux`, in bytes.
_VERNAUX_SIZE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The newest symbol versions that a binary takes from glibc (`2.34`) and libstdc++ (`3.4.30`)."""

    glibc: str | None = None
    glibcxx: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """Return `{glibc, glibcxx}` as the command line prints it."""
        return {"glibc": self.glibc, "glibcxx": self.glibcxx}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """An ELF file. `cubins`, `ptx` and `other` are all that lies in it, sorted, each once.

    `loadable` is the part of `cubins` and `ptx` that the driver can load: the linked code, or in an object file that
    has none the code that a link would take. All is reported as it lies there: `nvcc -shared` links an empty cubin of
    its default arch (sm_75 with CUDA 13) beside what was asked for, and that counts like any other.

    `parts` are the different sets of device code that its translation units hold, one container each: a kernel runs
    only where its own unit has code. With relocatable device code the units are linked across, and `parts` is empty.
    """

    path: str
    machine: str
    cubins: tuple[DeviceCode, ...] = ()
    ptx: tuple[DeviceCode, ...] = ()
    other: tuple[str, ...] = ()
    loadable: tuple[DeviceCode, ...] = ()
    parts: tuple[frozenset[DeviceCode], ...] = ()
    needs: Needs = Needs()

    @property
    def device_code(self) -> tuple[DeviceCode, ...]:
        """Every cubin, then all PTX."""
        return self.cubins + self.ptx

    @property
    def is_cubin(self) -> bool:
        """Whether the file is a bare cubin, for a program to load by name, and no host binary."""
        return self.machine == _CUDA


def read_elf(data: bytes | mmap, *, path: str) -> Binary:
    """Read the ELF file whose bytes are `data`; `path` names it in the result and in errors.

    Only headers are touched, so a memory map of 500 MB costs what its section and entry headers cost. Raises
    `UnreadableBinary` where it is no ELF file, or a damaged one.
    """
    with memoryview(data) as view, parsed(data, path=path) as (elf, sections):
        machine = str(elf["e_machine"])
        if _MACHINES.get(machine) == _CUDA:
            return _bare_cubin(sections, path=path)
        return _host_binary(view, sections, path=path, machine=_MACHINES.get(machine, machine))


@contextmanager
def parsed(data: bytes | mmap, *, path: str) -> Iterator[tuple[ELFFile, list[Section]]]:
    """Yield the ELF file and those of its sections that have bytes in it.

    Damage that is found, also in the body of the `with`, raises `UnreadableBinary`.
    """
    try:
        elf = ELFFile(BytesIO(data) if isinstance(data, bytes) else data)
        yield elf, [section for section in elf.iter_sections() if section["sh_type"] != "SHT_NOBITS"]
    except (ELFError, ValueError, OverflowError) as error:
        raise UnreadableBinary(
            f"{path} is no ELF file, or a damaged one: {error or type(error).__name__}",
            remedy="Name a wheel, a shared library or a folder.",
        ) from error


def _host_binary(view: memoryview, sections: list[Section], *, path: str, machine: str) -> Binary:
    units = list(_containers(view, sections, LINKED, path=path))
    linked = [entry for unit in units for entry in unit.entries]
    relocatable = [entry for unit in _containers(view, sections, RELOCATABLE, path=path) for entry in unit.entries]
    held = {frozenset(_distinct(unit.entries)) for unit in units if unit.entries}
    return Binary(
        path=path,
        machine=machine,
        cubins=_distinct(entry for entry in linked + relocatable if entry.kind == "cubin"),
        ptx=_distinct(entry for entry in linked + relocatable if entry.kind == "ptx"),
        other=tuple(sorted({str(entry) for entry in linked + relocatable if entry.kind == "other"})),
        loadable=_distinct(linked or relocatable),
        parts=() if relocatable else tuple(sorted(held, key=sorted)),
        needs=_needs(sections),
    )


def _containers(view: memoryview, sections: list[Section], name: str, *, path: str) -> Iterator[Container]:
    for section in sections:
        if section.name != name:
            continue
        start, size = section["sh_offset"], section["sh_size"]
        if start + size > len(view):
            raise UnreadableBinary(
                f"{path}: section {name} at {start:#x} ends past the end of the file",
                remedy="The file is cut off; build or fetch it again.",
            )
        with view[start : start + size] as content:
            yield from read_containers(content, where=f"{path}, section {name}")


def _distinct(entries: Iterable[FatbinEntry]) -> tuple[DeviceCode, ...]:
    return tuple(sorted({entry.device_code for entry in entries if entry.device_code is not None}))


def _bare_cubin(sections: list[Section], *, path: str) -> Binary:
    """Read a cubin that is a file of its own.

    Its header names the arch without the suffix, so the arch is taken from ptxas' command line in a note; where there
    is none (toolkits before that note), the file is listed as `cubin` of an arch that is not known.
    """
    notes = [section for section in sections if section.name == _TOOL_NOTE and isinstance(section, NoteSection)]
    commands = b"".join(note.data() for note in notes)
    found = re.search(rb"-arch (sm_\d+[af]?)\b", commands)
    try:
        code = (DeviceCode.parse(found[1].decode()),) if found else ()
    except InvalidArchList:
        code = ()
    return Binary(path=path, machine=_CUDA, cubins=code, other=() if code else ("cubin",), loadable=code)


def _needs(sections: list[Section]) -> Needs:
    names = [
        name for section in sections if isinstance(section, GNUVerNeedSection) for name in _needed_versions(section)
    ]
    return Needs(glibc=_highest(names, "GLIBC"), glibcxx=_highest(names, "GLIBCXX"))


def _needed_versions(section: GNUVerNeedSection) -> list[str]:
    # A damaged section can point at itself, so no more entries are followed than it has room for.
    most = section["sh_size"] // _VERNAUX_SIZE
    auxiliaries = chain.from_iterable(aux for _, aux in islice(section.iter_versions(), most))
    return [str(auxiliary.name) for auxiliary in islice(auxiliaries, most)]


def _highest(names: Iterable[str], prefix: str) -> str | None:
    """Return the highest version, number by number (2.34 is above 2.4); `GLIBC_PRIVATE` and its like have none."""
    found = [match[1] for name in names if (match := re.fullmatch(rf"{prefix}_(\d+(?:\.\d+)*)", name))]
    return max(found, key=lambda version: tuple(map(int, version.split("."))), default=None)
