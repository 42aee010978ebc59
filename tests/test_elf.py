"""ELF files built by hand: which sections count, what is needed of the host, and damage."""

import mmap
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from archpatch.arch.arch import DeviceCode
from archpatch.errors import UnreadableBinary
from archpatch.wheels.elf import Binary, Needs, read_elf

X86_64, AARCH64, CUDA = 62, 183, 190
PROGBITS, STRTAB, NOTE, NOBITS, VERNEED = 1, 3, 7, 8, 0x6FFFFFFE
CUBIN, PTX, LTO = 2, 1, 8

Section = tuple[str, int, bytes, int, int]
Code = tuple[int, int, int]


def elf(*sections: Section, machine: int = X86_64) -> bytes:
    """Lay out an ELF file of (name, type, content, link, info), sections numbered from 1."""
    named = [("", 0, b"", 0, 0), *sections, (".shstrtab", STRTAB, b"", 0, 0)]
    names = b"".join(section[0].encode() + b"\0" for section in named)
    named[-1] = (".shstrtab", STRTAB, names, 0, 0)
    body, headers, name_at = b"", b"", 0
    for name, kind, content, link, info in named:
        place = 64 + len(body)
        headers += struct.pack("<IIQQQQIIQQ", name_at, kind, 0, 0, place, len(content), link, info, 8, 0)
        body += content + b"\0" * (-len(content) % 8)
        name_at += len(name) + 1
    ident = b"\x7fELF\x02\x01\x01" + b"\0" * 9
    tail = (3, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(named), len(named) - 1)
    return ident + struct.pack("<HHIQQQIHHHHHH", *tail) + body + headers


def fatbin(*codes: Code) -> bytes:
    """Lay out one container of (kind, arch, flags)."""
    entries = b"".join(
        struct.pack("<HHIQIIHHIIIQQQ", kind, 0x0101, 64, 8, 0, 0, 0, 0, arch, 0, 0, flags, 0, 0) + b"\0" * 8
        for kind, arch, flags in codes
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def versions(*names: str) -> list[Section]:
    """Lay out .dynstr and .gnu.version_r (as sections 1 and 2) that need all `names` of one library."""
    strings, places = b"\0libc.so.6\0", []
    for name in names:
        places.append(len(strings))
        strings += name.encode() + b"\0"
    needed = struct.pack("<HHIII", 1, len(names), 1, 16, 0)
    for number, place in enumerate(places):
        needed += struct.pack("<IHHII", 0, 0, 2, place, 0 if number == len(names) - 1 else 16)
    return [(".dynstr", STRTAB, strings, 0, 0), (".gnu.version_r", VERNEED, needed, 1, 1)]


def read(data: bytes | mmap.mmap) -> Binary:
    return read_elf(data, path="pkg/_C.so")


def spelled(codes: Iterable[DeviceCode]) -> list[str]:
    return [str(code) for code in codes]


def test_device_code_is_sorted_and_distinct_over_all_sections() -> None:
    binary = read(
        elf(
            (".nv_fatbin", PROGBITS, fatbin((CUBIN, 120, 0), (PTX, 90, 0)) + fatbin((CUBIN, 90, 0x100000)), 0, 0),
            (".nv_fatbin", PROGBITS, fatbin((CUBIN, 120, 0), (CUBIN, 90, 0), (LTO, 90, 0)), 0, 0),
        )
    )
    assert spelled(binary.cubins) == ["sm_90", "sm_90a", "sm_120"]
    assert spelled(binary.ptx) == ["compute_90"]
    assert binary.other == ("lto_90",)
    assert spelled(binary.device_code) == ["sm_90", "sm_90a", "sm_120", "compute_90"]
    assert set(binary.loadable) == set(binary.device_code)


@pytest.mark.parametrize(
    ("linked", "relocatable", "loadable"),
    [
        ([(CUBIN, 90, 0)], [(CUBIN, 90, 0), (PTX, 90, 0)], ["sm_90"]),
        ([], [(CUBIN, 80, 0), (PTX, 80, 0)], ["sm_80", "compute_80"]),
        ([(CUBIN, 90, 0)], [], ["sm_90"]),
        ([], [], []),
    ],
)
def test_code_left_over_from_a_device_link_is_there_but_cannot_be_loaded(
    linked: list[Code], relocatable: list[Code], loadable: list[str]
) -> None:
    binary = read(
        elf((".nv_fatbin", PROGBITS, fatbin(*linked), 0, 0), ("__nv_relfatbin", PROGBITS, fatbin(*relocatable), 0, 0))
    )
    assert spelled(binary.loadable) == loadable
    assert len(binary.device_code) == len({*linked, *relocatable})


def test_a_section_without_bytes_in_the_file_holds_nothing() -> None:
    # Files that only hold debug information keep the header and the size of every other section.
    assert read(elf((".nv_fatbin", NOBITS, b"not device code", 0, 0))) == Binary(path="pkg/_C.so", machine="x86_64")


@pytest.mark.parametrize(("number", "name"), [(X86_64, "x86_64"), (AARCH64, "aarch64"), (8, "EM_MIPS"), (999, "999")])
def test_the_host_is_named_as_platform_machine_does(number: int, name: str) -> None:
    assert read(elf(machine=number)).machine == name


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.4"], Needs(glibc="2.34")),
        (["GLIBC_2.4", "GLIBC_2.14", "GLIBC_2.3.4"], Needs(glibc="2.14")),
        (["GLIBCXX_3.4.9", "GLIBCXX_3.4.30", "GLIBCXX_3.4", "GLIBC_2.17"], Needs(glibc="2.17", glibcxx="3.4.30")),
        (["GLIBC_PRIVATE", "GLIBC_ABI_DT_RELR", "CXXABI_1.3.9", "GCC_3.0"], Needs()),
    ],
)
def test_needs_are_the_highest_versions_number_by_number(names: list[str], expected: Needs) -> None:
    assert read(elf(*versions(*names))).needs == expected


def test_version_needs_that_point_at_themselves_come_to_an_end() -> None:
    needed = struct.pack("<HHIII", 1, 0xFFFF, 1, 16, 0) + struct.pack("<IHHII", 0, 0, 2, 1, 0)
    strings = b"\0GLIBC_2.5\0"
    binary = read(elf((".dynstr", STRTAB, strings, 0, 0), (".gnu.version_r", VERNEED, needed, 1, 0xFFFFFFFF)))
    assert binary.needs == Needs(glibc="2.5")


@pytest.mark.parametrize(
    ("note", "cubins", "other"),
    [
        (b"ptxas\0-arch sm_90a -m 64 \0", ["sm_90a"], ()),
        (b"ptxas\0-arch sm_120 -m 64 \0", ["sm_120"], ()),
        (b"ptxas\0-arch sm_9990 -m 64 \0", [], ("cubin",)),
        (b"ptxas\0-m 64 \0", [], ("cubin",)),
    ],
)
def test_a_bare_cubin_names_its_arch_in_ptxas_command_line(
    note: bytes, cubins: list[str], other: tuple[str, ...]
) -> None:
    binary = read(elf((".note.nv.tkinfo", NOTE, note, 0, 0), machine=CUDA))
    assert (spelled(binary.cubins), binary.other, binary.is_cubin) == (cubins, other, True)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x02\x01\x01" + b"\xff" * 80, elf()[:-1]])
def test_what_is_no_whole_elf_file_is_unreadable(data: bytes | mmap.mmap) -> None:
    with pytest.raises(UnreadableBinary, match=r"pkg/_C\.so"):
        read(data)


def test_a_damaged_container_is_named_with_file_and_section() -> None:
    section = fatbin((CUBIN, 90, 0)) + b"damaged."
    with pytest.raises(UnreadableBinary, match=r"pkg/_C\.so, section \.nv_fatbin: .* at offset 0x58"):
        read(elf((".nv_fatbin", PROGBITS, section, 0, 0)))


def test_a_section_past_the_end_of_the_file_is_named() -> None:
    data = bytearray(elf((".nv_fatbin", PROGBITS, fatbin((CUBIN, 90, 0)), 0, 0)))
    struct.pack_into("<Q", data, len(data) - 2 * 64 + 32, 1 << 40)
    with pytest.raises(UnreadableBinary, match=r"section \.nv_fatbin at 0x40 ends past the end"):
        read(bytes(data))


@pytest.mark.parametrize("content", [fatbin((CUBIN, 90, 0)), b"damaged."])
def test_a_memory_map_reads_the_same_and_closes_after_an_error(tmp_path: Path, content: bytes) -> None:
    data = elf((".nv_fatbin", PROGBITS, content, 0, 0))
    (tmp_path / "_C.so").write_bytes(data)
    with (tmp_path / "_C.so").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        if content == b"damaged.":
            with pytest.raises(UnreadableBinary):
                read(mapped)
        else:
            assert read(mapped) == read(data)


def test_every_damaged_byte_ends_in_a_reading_or_an_error() -> None:
    whole = elf(*versions("GLIBC_2.17", "GLIBCXX_3.4"), (".nv_fatbin", PROGBITS, fatbin((CUBIN, 90, 0)), 0, 0))
    outcomes = set()
    for position in range(len(whole)):
        for value in (0, 1, 0x7F, 0xFF):
            damaged = bytearray(whole)
            damaged[position] = value
            try:
                read(bytes(damaged))
                outcomes.add("read")
            except UnreadableBinary:
                outcomes.add("refused")
    assert outcomes == {"read", "refused"}
