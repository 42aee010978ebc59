"""Where an ELF file keeps its device code, checked for every sign that cutting into it could change something else.

What nvcc 11.8 to 13.2 had written in the libraries of a dozen published wheels was this: a `.nv_fatbin` section of
containers, read-only and mapped by one segment, and in `.nvFatBinSegment` wrappers that lead to the containers, which
the CUDA runtime registers. Anything else is refused rather than guessed at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from typing import Final

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section

from archpatch.errors import SlimRefused, UnreadableBinary
from archpatch.wheels.elf import ELF_MAGIC, LINKED, RELOCATABLE, parsed
from archpatch.wheels.fatbin import (
    ALIGNMENT,
    CONTAINER_HEADER,
    FLAG_LZ4,
    FLAG_ZSTD,
    KNOWN_FLAGS,
    Container,
    FatbinEntry,
    read_containers,
)

__all__ = ["DeviceSection", "read_device_sections"]

_WRAPPERS: Final = ".nvFatBinSegment"
#: magic, version, address of the container, and for version 2 (the result of a device link) the address of a list of
#: the containers that were linked. Source: `fatbinary_section.h` of CUDA 13.0.
_WRAPPER: Final = struct.Struct("<IIQQ")
_WRAPPER_MAGIC: Final = 0x466243B1
_WRAPPER_PLAIN: Final = 1
_WRAPPER_LINKED: Final = 2
_ADDRESS_IN_WRAPPER: Final = 8

#: type, flags, place in the file, address, physical address, size in the file, size in memory, alignment.
_PROGRAM_HEADER: Final = struct.Struct("<IIQQQQQQ")
_PT_LOAD: Final = 1
_SHF_WRITE: Final = 0x1
_SHF_ALLOC: Final = 0x2
#: place, type (low half) and symbol (high half), addend.
_RELOCATION: Final = struct.Struct("<QQq")
#: The relocation that adds where the library was loaded, by machine: `R_X86_64_RELATIVE`, `R_AARCH64_RELATIVE`.
_RELATIVE: Final = {"EM_X86_64": 8, "EM_AARCH64": 1027}
_MACHINE_AT: Final = struct.Struct("<18xH")
_EM_CUDA: Final = 190
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

_REMEDY: Final = "Leave it as it is, or build the package for the archs that are wanted."


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSection:
    """A section of device code: `offset` and `size` in bytes of the file, `address` where it is loaded."""

    name: str
    offset: int
    address: int
    size: int
    containers: tuple[Container, ...]

    @property
    def end(self) -> int:
        """Where the section ends in the file."""
        return self.offset + self.size

    @property
    def is_linked(self) -> bool:
        """Whether this is the code that the driver loads, and not what a device link was made from."""
        return self.name == LINKED


def read_device_sections(
    data: bytes | mmap, *, path: str, allow_relocatable: bool = False
) -> tuple[DeviceSection, ...]:
    """Return the sections of a library's device code; none where it has none.

    Raises `UnreadableBinary` for a damaged ELF file, and `SlimRefused` for device code that cannot be cut: in an object
    file, relocatable (in a linked library `allow_relocatable` lets it pass), LTO-IR, or laid out in another way than
    nvcc and the linkers do.
    """
    with memoryview(data) as view, parsed(data, path=path) as (elf, sections):
        reader = _Reader(elf=elf, sections=sections, view=view, path=path)
        found = tuple(reader.device_section(section) for section in sections if section.name in (LINKED, RELOCATABLE))
        if any(section.containers for section in found):
            reader.check(found, allow_relocatable=allow_relocatable)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    elf: ELFFile
    sections: list[Section]
    view: memoryview
    path: str

    def refused(self, what: str, remedy: str = _REMEDY) -> SlimRefused:
        return SlimRefused(f"{self.path}: {what}", remedy=remedy)

    def device_section(self, section: Section) -> DeviceSection:
        start, size = section["sh_offset"], section["sh_size"]
        if start + size > len(self.view):
            raise self.refused(f"section {section.name} ends past the end of the file")
        try:
            with self.view[start : start + size] as content:
                containers = tuple(read_containers(content, where=f"{self.path}, section {section.name}"))
        except UnreadableBinary as error:
            raise SlimRefused(error.message, remedy=error.remedy) from error
        return DeviceSection(
            name=section.name, offset=start, address=section["sh_addr"], size=size, containers=containers
        )

    def check(self, found: tuple[DeviceSection, ...], *, allow_relocatable: bool) -> None:
        self.check_file()
        self.check_relocatable(found, allowed=allow_relocatable)
        for section in found:
            self.check_place(section)
            for container in section.containers:
                self.check_container(section, container)
        self.check_wrappers(found)

    def check_file(self) -> None:
        if self.elf["e_machine"] not in _RELATIVE:
            raise self.refused("it is not for x86_64 or aarch64")
        if self.elf["e_type"] not in ("ET_DYN", "ET_EXEC"):
            raise self.refused("it is an object file", "Link it first, and take the library.")

    def check_relocatable(self, found: tuple[DeviceSection, ...], *, allowed: bool) -> None:
        if all(section.is_linked or not section.containers for section in found):
            return
        if not any(section.containers for section in found if section.is_linked):
            raise self.refused("all its device code is relocatable: a device link has yet to take it")
        if not allowed:
            raise self.refused(
                f"it holds relocatable device code ({RELOCATABLE}): it was linked with -rdc=true",
                "--allow-relocatable cuts what was linked and what it was linked from alike.",
            )

    # --- the place in the file ---

    def check_place(self, section: DeviceSection) -> None:
        """Refuse a section whose bytes mean something else too, or are not what the loader maps."""
        (header, *others) = (each for each in self.sections if _overlap(section, each["sh_offset"], each["sh_size"]))
        if others:
            raise self.refused(f"sections {header.name} and {others[0].name} overlap")
        if header["sh_type"] != "SHT_PROGBITS" or header["sh_flags"] != _SHF_ALLOC:
            raise self.refused(f"section {section.name} is compressed, can be written to, or is not loaded")
        if any(_overlap(section, start, size) for start, size in self.tables()):
            raise self.refused(f"section {section.name} overlaps a table of the file")
        mapping = [segment for segment in self.segments() if _overlap(section, segment[2], segment[5])]
        if len(mapping) != 1 or not _maps(mapping[0], section):
            raise self.refused(f"section {section.name} is not mapped whole by one segment")

    def tables(self) -> Iterator[tuple[int, int]]:
        """Yield start and size of the ELF header and of the tables of segments and sections."""
        elf = self.elf
        yield 0, elf["e_ehsize"]
        yield elf["e_phoff"], elf["e_phnum"] * elf["e_phentsize"]
        yield elf["e_shoff"], elf.num_sections() * elf["e_shentsize"]

    def segments(self) -> list[tuple[int, ...]]:
        start, count = self.elf["e_phoff"], self.elf["e_phnum"]
        end = start + count * _PROGRAM_HEADER.size
        if self.elf["e_phentsize"] != _PROGRAM_HEADER.size or end > len(self.view):
            raise self.refused("its table of segments makes no sense")
        with self.view[start:end] as table:
            return list(_PROGRAM_HEADER.iter_unpack(table))

    # --- the containers ---

    def check_container(self, section: DeviceSection, container: Container) -> None:
        if container.header_size != CONTAINER_HEADER.size:
            raise self.refused(f"a container's header of {container.header_size} bytes is not known")
        for entry in container.entries:
            problem = _problem(entry) or self.payload_problem(section, entry)
            if problem is not None:
                where = f"section {section.name} at offset {entry.offset:#x}"
                raise self.refused(f"{where}: {entry} {problem}")

    def payload_problem(self, section: DeviceSection, entry: FatbinEntry) -> str | None:
        """Say what is wrong with the payload's first bytes: they have to be what the header says."""
        start = section.offset + entry.offset + entry.header_size
        head = bytes(self.view[start : start + min(entry.size, 64)])
        if entry.flags & FLAG_ZSTD:
            return None if head.startswith(_ZSTD_MAGIC) else "is not compressed as its header says"
        if entry.flags & FLAG_LZ4:
            return None  # a block without a frame: it starts with no mark
        if entry.kind == "ptx":
            return None if head.lstrip(b"\n").startswith((b".version", b"//")) else "is no PTX"
        is_cubin = len(head) >= _MACHINE_AT.size and _MACHINE_AT.unpack_from(head)[0] == _EM_CUDA
        return None if is_cubin and head.startswith(ELF_MAGIC) else "is no cubin"

    # --- what the CUDA runtime registers ---

    def check_wrappers(self, found: tuple[DeviceSection, ...]) -> None:
        """Refuse a wrapper that leads elsewhere than to a container's start, which is where the driver reads."""
        starts = {section.address + container.offset for section in found for container in section.containers}
        wrappers = [section for section in self.sections if section.name == _WRAPPERS]
        if not wrappers:
            raise self.refused(f"nothing registers its device code: there is no {_WRAPPERS}")
        for section in wrappers:
            for address in self.registered(section):
                if address not in starts:
                    raise self.refused(f"{_WRAPPERS} leads to {address:#x}, where no container starts")

    def registered(self, section: Section) -> Iterator[int]:
        """Yield the address of each wrapper's container."""
        start, size = section["sh_offset"], section["sh_size"]
        is_whole = size % _WRAPPER.size == 0 and start + size <= len(self.view)
        if not is_whole or section["sh_type"] != "SHT_PROGBITS" or section["sh_flags"] != _SHF_WRITE | _SHF_ALLOC:
            raise self.refused(f"section {_WRAPPERS} is not a row of wrappers")
        slots = range(section["sh_addr"] + _ADDRESS_IN_WRAPPER, section["sh_addr"] + size, _WRAPPER.size)
        relocated = self.relocated(slots)
        with self.view[start : start + size] as content:
            rows = list(_WRAPPER.iter_unpack(content))
        for slot, (magic, version, address, other) in zip(slots, rows, strict=True):
            if magic != _WRAPPER_MAGIC or version not in (_WRAPPER_PLAIN, _WRAPPER_LINKED):
                raise self.refused(f"a wrapper in {_WRAPPERS} has version {version}, magic {magic:#x}")
            if version == _WRAPPER_PLAIN and other:
                raise self.refused(f"a wrapper in {_WRAPPERS} names a file")
            yield relocated.get(slot, address)

    def relocated(self, slots: range) -> dict[int, int]:
        """Return what the loader writes into the slots that are relocated; some linkers leave zeros in the file."""
        relative = _RELATIVE[self.elf["e_machine"]]
        addends: dict[int, int] = {}
        for section in self.sections:
            if section["sh_type"] != "SHT_RELA" or not section["sh_flags"] & _SHF_ALLOC:
                continue
            start, size = section["sh_offset"], section["sh_size"]
            if size % _RELOCATION.size or start + size > len(self.view):
                raise self.refused(f"section {section.name} is not a row of relocations")
            with self.view[start : start + size] as table:
                for place, kind, addend in _RELOCATION.iter_unpack(table):
                    if place in slots:
                        if kind != relative:
                            raise self.refused(f"a wrapper in {_WRAPPERS} is relocated in another way (type {kind:#x})")
                        addends[place] = addend
        return addends


def _overlap(section: DeviceSection, start: int, size: int) -> bool:
    return size > 0 and start < section.end and section.offset < start + size


def _maps(segment: tuple[int, ...], section: DeviceSection) -> bool:
    """Tell whether the segment loads all of the section to where its header says."""
    kind, _flags, offset, address, _physical, size, *_ = segment
    is_inside = offset <= section.offset and section.end <= offset + size
    return kind == _PT_LOAD and is_inside and address - offset == section.address - section.offset


def _problem(entry: FatbinEntry) -> str | None:
    """Say what in an entry's header is not understood."""
    packings = [flag for flag in (FLAG_LZ4, FLAG_ZSTD) if entry.flags & flag]
    is_padded = entry.size - ALIGNMENT < entry.packed_size <= entry.size
    sizes_fit = (is_padded and entry.unpacked_size > 0) if packings else entry.packed_size == entry.unpacked_size == 0
    problems = {
        "is neither a cubin nor PTX": entry.kind == "other",
        f"has flags that are not known ({entry.flags:#x})": bool(entry.flags & ~KNOWN_FLAGS),
        f"is not aligned ({entry.header_size} + {entry.size} bytes)": (entry.header_size | entry.size) % ALIGNMENT > 0,
        "is compressed in two ways": len(packings) > 1,
        f"has sizes that do not fit ({entry.packed_size} of {entry.size} bytes)": not sizes_fit,
    }
    return next((problem for problem, is_there in problems.items() if is_there), None)
