"""NVIDIA's fatbin containers: what a compiler stored for which arch, without unpacking any of it.

A section holds containers, 8-byte aligned, usually one per translation unit; a container holds entries, each a cubin,
PTX or something else for one arch. The layout is not documented by NVIDIA. It was read off the output of nvcc 13.0 and
compared with cuobjdump's lists, over every arch suffix and compress mode.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from archpatch.arch.arch import Arch, DeviceCode
from archpatch.errors import UnreadableBinary

__all__ = ["Container", "FatbinEntry", "read_containers"]

Kind = Literal["cubin", "ptx", "other"]

MAGIC: Final = 0xBA55ED50
ALIGNMENT: Final = 8

#: magic, version, header size, size of the entries that follow.
CONTAINER_HEADER: Final = struct.Struct("<IHHQ")
CONTAINER_SIZE: Final = struct.Struct("<Q")
CONTAINER_SIZE_AT: Final = CONTAINER_HEADER.size - CONTAINER_SIZE.size
#: kind, version, header size, padded size, compressed size, offset of the options, minor and major of the code's
#: version, arch, offset and length of the name, flags, 0 (a checksum in LTO-IR), uncompressed size.
ENTRY_HEADER: Final = struct.Struct("<HHIQIIHHIIIQQQ")

_CONTAINER_VERSION: Final = 1
_ENTRY_VERSION: Final = 0x0101
_KIND_PTX: Final = 1
_KIND_CUBIN: Final = 2
_KIND_LTO: Final = 8
_FLAG_ARCH_SPECIFIC: Final = 0x100000
_FLAG_FAMILY_SPECIFIC: Final = 0x200000
FLAG_LZ4: Final = 0x2000
FLAG_ZSTD: Final = 0x8000
#: All flags that were seen: 64-bit, debug (`-G`), Linux, the two compressions, the two suffixes, and one that every
#: cubin from sm_100 on has (it keeps a list of numbers in its header).
KNOWN_FLAGS: Final = 0x1 | 0x2 | 0x10 | FLAG_LZ4 | FLAG_ZSTD | _FLAG_ARCH_SPECIFIC | _FLAG_FAMILY_SPECIFIC | 0x1000000

_ZEROS = re.compile(rb"\0*")


@dataclass(frozen=True, slots=True, kw_only=True)
class FatbinEntry:
    """One piece of device code in a container.

    `offset` is where its header starts, in bytes from the start of the section; its payload of `size` bytes, padding
    included, follows `header_size` bytes later. `packed_size` is what a compressed payload takes without the padding,
    `unpacked_size` what it unpacks to; both are 0 where it is stored as it is. `number` is the kind as the container
    has it. `name` is the source file, where nvcc was told to keep it.
    """

    kind: Kind
    number: int
    arch: Arch
    flags: int
    name: str
    offset: int
    header_size: int
    size: int
    packed_size: int
    unpacked_size: int

    @property
    def end(self) -> int:
        """Where the next entry starts."""
        return self.offset + self.header_size + self.size

    @property
    def device_code(self) -> DeviceCode | None:
        """The cubin or PTX that this entry is, None for anything else."""
        return None if self.kind == "other" else DeviceCode(self.arch, ptx=self.kind == "ptx")

    def __str__(self) -> str:
        """Return `sm_90a`, `compute_90`, `lto_90` for LTO-IR, or `kind16_90` for what has no name here."""
        if self.device_code is not None:
            return str(self.device_code)
        return f"{'lto' if self.number == _KIND_LTO else f'kind{self.number}'}_{self.arch.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The device code of one translation unit; `offset` and `size` as in `FatbinEntry`."""

    offset: int
    header_size: int
    size: int
    entries: tuple[FatbinEntry, ...]

    @property
    def end(self) -> int:
        """Where the container ends; zeros may follow up to the next one."""
        return self.offset + self.header_size + self.size


def read_containers(section: memoryview, *, where: str) -> Iterator[Container]:
    """Yield the containers of a section's bytes, in order; `where` names the file and section in errors.

    Zeros between containers are skipped, however many: a slimmed file has them. Payloads are neither read nor copied.
    Raises `UnreadableBinary` with the offset of the first header that makes no sense.
    """
    position = _skip_zeros(section, 0)
    while position < len(section):
        container = _read_container(section, position, where=where)
        yield container
        position = _skip_zeros(section, container.end)


def _skip_zeros(section: memoryview, position: int) -> int:
    """Return the offset of the aligned word that holds the next byte other than zero, or the section's end."""
    match = _ZEROS.match(section, position)
    end = match.end() if match else position
    return end if end == len(section) else max(position, end - end % ALIGNMENT)


def _read_container(section: memoryview, offset: int, *, where: str) -> Container:
    if offset + CONTAINER_HEADER.size > len(section):
        raise _damaged(where, offset, "a container's header is cut off")
    magic, version, header_size, size = CONTAINER_HEADER.unpack_from(section, offset)
    if magic != MAGIC:
        raise _damaged(where, offset, f"no container starts here ({magic:#010x})")
    if version != _CONTAINER_VERSION:
        raise _damaged(where, offset, f"container version {version} is not known")
    if header_size < CONTAINER_HEADER.size or offset + header_size + size > len(section):
        raise _damaged(where, offset, f"a container of {header_size} + {size} bytes does not fit")
    start = offset + header_size
    entries = tuple(_read_entries(section, start, end=start + size, where=where))
    return Container(offset=offset, header_size=header_size, size=size, entries=entries)


def _read_entries(section: memoryview, offset: int, *, end: int, where: str) -> Iterator[FatbinEntry]:
    # No slices of the section are taken: a traceback would keep them, and a memory map with views of it cannot close.
    while offset < end:
        entry = _read_entry(section, offset, end=end, where=where)
        yield entry
        offset = entry.end


def _read_entry(section: memoryview, offset: int, *, end: int, where: str) -> FatbinEntry:
    if offset + ENTRY_HEADER.size > end:
        raise _damaged(where, offset, "an entry's header is cut off")
    # fmt: off
    (number, version, header_size, size, packed_size, _options, _minor, _major,
     arch, name_offset, name_size, flags, _checksum, unpacked_size) = ENTRY_HEADER.unpack_from(section, offset)
    # fmt: on
    if version != _ENTRY_VERSION:
        raise _damaged(where, offset, f"entry version {version:#06x} is not known")
    if header_size < ENTRY_HEADER.size or offset + header_size + size > end:
        raise _damaged(where, offset, f"an entry of {header_size} + {size} bytes does not fit")
    if name_offset + name_size > header_size:
        raise _damaged(where, offset, f"an entry's name at {name_offset} is outside its header")
    name = bytes(section[offset + name_offset : offset + name_offset + name_size])
    return FatbinEntry(
        kind=_kind(number),
        number=number,
        arch=Arch(arch // 10, arch % 10, _suffix(flags)),
        flags=flags,
        name=name.decode("utf-8", "replace"),
        offset=offset,
        header_size=header_size,
        size=size,
        packed_size=packed_size,
        unpacked_size=unpacked_size,
    )


def _kind(number: int) -> Kind:
    if number == _KIND_CUBIN:
        return "cubin"
    return "ptx" if number == _KIND_PTX else "other"


def _suffix(flags: int) -> str:
    if flags & _FLAG_ARCH_SPECIFIC:
        return "a"
    return "f" if flags & _FLAG_FAMILY_SPECIFIC else ""


def _damaged(where: str, offset: int, what: str) -> UnreadableBinary:
    return UnreadableBinary(
        f"{where}: {what}, at offset {offset:#x}",
        remedy="The file is damaged, or comes from a toolkit with another layout; build it again or name another file.",
    )
