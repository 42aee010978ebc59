"""Shared libraries with device code, laid out by hand in a few KB as nvcc and a linker would, and wheels of them."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CUBIN, PTX, LTO = 2, 1, 8
LZ4, ZSTD = 0x2000, 0x8000
SUFFIXES = {"": 0, "a": 0x100000, "f": 0x200000}
PROGBITS, STRTAB, RELA = 1, 3, 4
WRITE, ALLOC = 1, 2
LOAD, STACK = 1, 0x6474E551
X86_64, CUDA = 62, 190
RELATIVE = 8
PAGE = 0x1000
WRAPPER_MAGIC = 0x466243B1
#: Sections that are not loaded read-only data.
SPECIAL = {".rela.dyn": (RELA, ALLOC), ".nvFatBinSegment": (PROGBITS, ALLOC | WRITE), ".shstrtab": (STRTAB, 0)}

SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
WRAPPER = struct.Struct("<IIQQ")


def cubin(text: str, size: int = 96) -> bytes:
    """Return something that starts as a cubin does; no two texts have the same bytes."""
    head = struct.pack("<4s4B8xHH", b"\x7fELF", 2, 1, 1, 0x41, 2, CUDA)
    return (head + hashlib.sha512(text.encode()).digest() * (size // 64 + 1))[:size]


def ptx(text: str) -> bytes:
    """Return something that starts as PTX does."""
    padded = f"\n\n.version 9.0\n.target {text}\n".encode()
    return padded + b"\0" * (-len(padded) % 8)


def entry(code: str, *, packing: int = 0, name: bytes = b"", salt: str = "", **wrong: int) -> bytes:
    """Return an entry of a container: `sm_90a`, `compute_90` or `lto_90`; `wrong` overrides fields of the header."""
    match = re.fullmatch(r"(sm|compute|lto)_(\d+)([af]?)", code)
    assert match is not None
    kind = {"sm": CUBIN, "compute": PTX, "lto": LTO}[match[1]]
    payload = ptx(code + salt) if kind == PTX else cubin(code + salt)
    packed = unpacked = 0
    if packing:
        unpacked = len(payload)
        start = b"\x28\xb5\x2f\xfd" if packing == ZSTD else b""
        payload = start + hashlib.sha512((code + salt).encode()).digest()[:45]
        packed = len(payload)
        payload += b"\0" * (-packed % 8)
    named = name + b"\0" * (-len(name) % 8)
    fields = {
        "kind": kind,
        "version": 0x0101,
        "header_size": 64 + len(named),
        "size": len(payload),
        "packed_size": packed,
        "options": 0,
        "minor": 8,
        "major": 1,
        "arch": int(match[2]),
        "name_offset": 64 if name else 0,
        "name_size": len(name),
        "flags": 0x11 | packing | SUFFIXES[match[3]],
        "checksum": 0,
        "unpacked_size": unpacked,
    } | wrong
    return struct.pack("<HHIQIIHHIIIQQQ", *fields.values()) + named + payload


def container(*entries: bytes | str, **wrong: int) -> bytes:
    """Return a container of entries, made from their names or given as bytes."""
    content = b"".join(each if isinstance(each, bytes) else entry(each) for each in entries)
    fields = {"magic": 0xBA55ED50, "version": 1, "header_size": 16, "size": len(content)} | wrong
    return struct.pack("<IHHQ", *fields.values()) + content


@dataclass(frozen=True)
class Place:
    """Where a section lies: its bytes in the file, its address, and its header."""

    offset: int
    size: int
    address: int
    header: int


@dataclass(frozen=True)
class Library:
    """A library and where its parts lie; `starts` are the containers' offsets in the file."""

    data: bytes
    places: dict[str, Place]
    starts: tuple[int, ...]
    segments: tuple[int, ...]

    def patched(self, offset: int, content: bytes) -> bytes:
        """Return the bytes with some of them replaced."""
        return self.data[:offset] + content + self.data[offset + len(content) :]


def library(
    *units: bytes, relocatable: Sequence[bytes] = (), in_file: bool = True, kind: int = 3, machine: int = X86_64
) -> Library:
    """Lay out a library of the containers `units`, with `relocatable` ones as a device link leaves them.

    With `in_file` the wrappers have their addresses, as GNU ld writes them; without, only the relocations have.
    """
    contents = {".text": b"\xc3" * 40, ".nv_fatbin": b"".join(units)}
    if relocatable:
        contents["__nv_relfatbin"] = b"".join(relocatable)
    count = len(units) + len(relocatable)
    contents |= {".rela.dyn": bytes(24 * count), ".nvFatBinSegment": bytes(24 * count)}
    contents[".shstrtab"] = b"\0" + b"".join(name.encode() + b"\0" for name in (*contents, ".shstrtab"))
    offsets, end = dict[str, int](), 64 + 3 * PROGRAM_HEADER.size
    for name, content in contents.items():
        offsets[name] = end
        end += len(content) + -len(content) % 8
    starts = [*_starts(offsets[".nv_fatbin"], units), *_starts(offsets.get("__nv_relfatbin", 0), relocatable)]
    wrappers = offsets[".nvFatBinSegment"]
    slots = [wrappers + PAGE + 24 * number + 8 for number in range(count)]
    contents[".rela.dyn"] = b"".join(
        struct.pack("<QQq", slot, RELATIVE, start) for slot, start in zip(slots, starts, strict=True)
    )
    contents[".nvFatBinSegment"] = b"".join(
        WRAPPER.pack(WRAPPER_MAGIC, *((2, start, 64) if relocatable and not number else (1, start, 0)))
        if in_file
        else WRAPPER.pack(WRAPPER_MAGIC, 1, 0, 0)
        for number, start in enumerate(starts)
    )
    segments = [
        (LOAD, 5, 0, 0, 0, wrappers, wrappers, PAGE),
        (LOAD, 6, wrappers, wrappers + PAGE, wrappers + PAGE, 24 * count, 24 * count, PAGE),
        (STACK, 6, 0, 0, 0, 0, 0, 16),
    ]
    tail = (kind, machine, 1, 0, 64, end, 0, 64, PROGRAM_HEADER.size, 3, 64, len(contents) + 1, len(contents))
    body = b"\x7fELF\x02\x01\x01" + b"\0" * 9 + struct.pack("<HHIQQQIHHHHHH", *tail)
    body += b"".join(PROGRAM_HEADER.pack(*segment) for segment in segments)
    headers, places = SECTION_HEADER.pack(*[0] * 10), dict[str, Place]()
    for name, content in contents.items():
        address = offsets[name] + (PAGE if name == ".nvFatBinSegment" else 0)
        places[name] = Place(offsets[name], len(content), address, end + len(headers))
        body += content + b"\0" * (-len(content) % 8)
        kind_of, flags = SPECIAL.get(name, (PROGBITS, ALLOC))
        name_at = contents[".shstrtab"].index(name.encode() + b"\0")
        headers += SECTION_HEADER.pack(name_at, kind_of, flags, address, offsets[name], len(content), 0, 0, 8, 24)
    return Library(body + headers, places, tuple(starts), tuple(64 + 56 * number for number in range(3)))


def _starts(offset: int, units: Sequence[bytes]) -> list[int]:
    starts = []
    for unit in units:
        starts.append(offset)
        offset += len(unit)
    return starts


def write_wheel(path: Path, files: dict[str, bytes], *, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """Write a wheel with METADATA and a RECORD of all that is in it; libraries are executable."""
    name, version, *_ = path.name.split("-")
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\n",
    }
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [*((file, record_hash(content), len(content)) for file, content in files.items()), (f"{info}/RECORD", "", "")]
    )
    with zipfile.ZipFile(path, "w", compression) as archive:
        for file, content in (files | {f"{info}/RECORD": text.getvalue().encode()}).items():
            member = zipfile.ZipInfo(file, (2026, 1, 2, 3, 4, 6))
            member.compress_type = compression
            member.external_attr = (0o100751 if file.endswith(".so") else 0o100640) << 16
            archive.writestr(member, content)
    return path


def record_hash(content: bytes) -> str:
    """Return a hash as RECORD spells it."""
    return f"sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()}"
