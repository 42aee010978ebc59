"""One library slimmed: what moves, what becomes zeros, what stays to the byte, and what is refused."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from libraries import (
    ALLOC,
    LZ4,
    PROGRAM_HEADER,
    SECTION_HEADER,
    WRAPPER,
    WRAPPER_MAGIC,
    WRITE,
    ZSTD,
    Library,
    container,
    cubin,
    entry,
    library,
)

from archpatch.arch.arch import ArchRequest
from archpatch.arch.selection import Policy
from archpatch.errors import NoMatchingArch, SlimRefused, UnreadableBinary
from archpatch.wheels.elf import read_elf
from archpatch.wheels.slim_choice import Wanted
from archpatch.wheels.slimming import Slimming, plan_slimming

WHERE = "pkg/_C.so"


def wanted(text: str = "9.0", *, allow_relocatable: bool = False) -> Wanted:
    return Wanted(request=ArchRequest.parse(text), policy=Policy(), allow_relocatable=allow_relocatable)


def plan(data: bytes, text: str = "9.0", *, allow_relocatable: bool = False) -> Slimming:
    found = plan_slimming(data, path=WHERE, wanted=wanted(text, allow_relocatable=allow_relocatable))
    assert found is not None
    return found


def slimmed(data: bytes, text: str = "9.0", *, allow_relocatable: bool = False) -> bytes:
    content = bytearray(data)
    plan(data, text, allow_relocatable=allow_relocatable).apply(content)
    return bytes(content)


def held(data: bytes) -> list[str]:
    return [str(code) for code in read_elf(data, path=WHERE).device_code]


PLAIN = [entry("sm_80"), entry("sm_90", packing=ZSTD, name=b"k.cu"), entry("compute_90"), entry("sm_120f")]
MORE = [entry("sm_80", packing=LZ4, salt="2"), entry("sm_90", salt="2")]
TWO = library(container(*PLAIN), container(*MORE))


def test_what_stays_moves_up_and_the_rest_becomes_zeros() -> None:
    result = slimmed(TWO.data)
    first, second = TWO.starts
    left = len(container(*PLAIN)) - len(container(PLAIN[1]))
    assert result[first:second] == container(PLAIN[1]) + b"\0" * left
    assert result[second : second + len(container(MORE[1]))] == container(MORE[1])
    assert held(result) == ["sm_90"]


def test_nothing_outside_the_containers_changes() -> None:
    section = TWO.places[".nv_fatbin"]
    result = slimmed(TWO.data)
    assert len(result) == len(TWO.data)
    assert result[: section.offset] == TWO.data[: section.offset]
    assert result[section.offset + section.size :] == TWO.data[section.offset + section.size :]


def test_several_codes_keep_their_order() -> None:
    unit = container("compute_90", "sm_100", "sm_90", "sm_80", "sm_90")
    result = slimmed(library(unit).data, "8.0;9.0+PTX")
    assert result[library(unit).starts[0] :].startswith(container("compute_90", "sm_90", "sm_80", "sm_90"))


def test_a_second_time_there_is_nothing_to_cut() -> None:
    result = slimmed(TWO.data)
    assert plan(result).cuts == ()
    assert slimmed(result) == result


def test_a_plan_says_what_becomes_of_the_library() -> None:
    found = plan(library(container(*PLAIN), container("sm_75")).data)
    assert [str(code) for code in found.kept] == ["sm_75", "sm_90"]
    assert [str(code) for code in found.dropped] == ["sm_80", "sm_120f", "compute_90"]
    assert (found.containers, found.idle, len(found.cuts)) == (2, 1, 1)
    assert found.saved == sum(map(len, PLAIN)) - len(PLAIN[1])


@pytest.mark.parametrize("in_file", [True, False])
def test_wrappers_are_followed_in_the_file_and_in_relocations(in_file: bool) -> None:  # noqa: FBT001 - a parameter
    assert held(slimmed(library(container("sm_80", "sm_90"), in_file=in_file).data)) == ["sm_90"]


def test_a_memory_map_is_cut_in_place(tmp_path: Path) -> None:
    (tmp_path / "_C.so").write_bytes(TWO.data)
    with (tmp_path / "_C.so").open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        found = plan_slimming(data, path=WHERE, wanted=wanted())
        assert found is not None
        found.apply(data)
    assert (tmp_path / "_C.so").read_bytes() == slimmed(TWO.data)


def test_more_than_one_piece_of_zeros() -> None:
    big = entry("sm_80", size=3 << 20) + b"\x01" * ((3 << 20) - 96)
    lib = library(container(big, "sm_90"), container("sm_90"))
    result = slimmed(lib.data)
    first, second = lib.starts
    rest = result[first + len(container("sm_90")) : second]
    assert rest == bytes(len(rest))
    assert held(result) == ["sm_90"]


LINKED = library(container("sm_80", "sm_90"), relocatable=[container("sm_80", "sm_90", "compute_90")])


def test_what_a_library_was_linked_from_is_cut_only_on_demand() -> None:
    with pytest.raises(SlimRefused, match=r"_C\.so: it holds relocatable .*-rdc=true\n--allow-relocatable"):
        plan(LINKED.data)
    result = slimmed(LINKED.data, allow_relocatable=True)
    first, second = LINKED.starts
    assert result[first:].startswith(container("sm_90"))
    assert result[second:].startswith(container("sm_90"))


@pytest.mark.parametrize("data", [library().data, library(b"\0" * 64).data, library(container()).data])
def test_a_library_without_device_code_has_nothing_to_cut(data: bytes) -> None:
    assert plan_slimming(data, path=WHERE, wanted=wanted()) is None


def test_no_match_names_the_file() -> None:
    with pytest.raises(NoMatchingArch, match=r"^pkg/_C\.so: no matching arch for 8\.9"):
        plan(TWO.data, "8.9")


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n", TWO.data[:-1], TWO.data[:100]])
def test_what_is_no_whole_elf_file_is_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableBinary, match=r"pkg/_C\.so"):
        plan_slimming(data, path=WHERE, wanted=wanted())


# --- what is refused ---

LIB = library(container("sm_80", "sm_90"))


def section(which: str, /, lib: Library = LIB, **changes: int) -> bytes:
    """Return the library with fields of one section's header changed."""
    fields = ("name", "kind", "flags", "address", "offset", "size", "link", "info", "align", "entry_size")
    place = lib.places[which].header
    values = dict(zip(fields, SECTION_HEADER.unpack_from(lib.data, place), strict=True))
    return lib.patched(place, SECTION_HEADER.pack(*(values | changes).values()))


def segment(number: int, **changes: int) -> bytes:
    """Return the library with fields of one segment's header changed."""
    fields = ("kind", "flags", "offset", "address", "physical", "size", "memory", "align")
    place = LIB.segments[number]
    values = dict(zip(fields, PROGRAM_HEADER.unpack_from(LIB.data, place), strict=True))
    return LIB.patched(place, PROGRAM_HEADER.pack(*(values | changes).values()))


def wrapper(magic: int = WRAPPER_MAGIC, version: int = 1, other: int = 0) -> bytes:
    return LIB.patched(LIB.places[".nvFatBinSegment"].offset, WRAPPER.pack(magic, version, LIB.starts[0], other))


def relocation(kind: int = 8, addend: int | None = None) -> bytes:
    slot, _, start = struct.unpack_from("<QQq", LIB.data, LIB.places[".rela.dyn"].offset)
    row = struct.pack("<QQq", slot, kind, start if addend is None else addend)
    return LIB.patched(LIB.places[".rela.dyn"].offset, row)


def unit(*entries: bytes | str, **wrong: int) -> bytes:
    return library(container("sm_90", *entries, **wrong)).data


def second_of(name: str) -> dict[str, int]:
    """Return the fields of a section header that is the same as another's."""
    place = LIB.places[name]
    return {"address": place.address, "offset": place.offset, "size": place.size}


NAMED = LIB.data.index(b".nv_fatbin\0") - LIB.places[".shstrtab"].offset

REFUSED = [
    ("an object file", library(container("sm_90"), kind=1).data),
    ("not for x86_64 or aarch64", library(container("sm_90"), machine=8).data),
    ("relocatable: a device link has yet", library(relocatable=[container("sm_90")]).data),
    ("is compressed, can be written to", section(".nv_fatbin", flags=ALLOC | 0x800)),
    ("is compressed, can be written to", section(".nv_fatbin", flags=ALLOC | WRITE)),
    ("or is not loaded", section(".nv_fatbin", flags=0)),
    ("or is not loaded", section(".nv_fatbin", kind=7)),
    ("ends past the end of the file", section(".nv_fatbin", size=1 << 40)),
    (r"sections \.text and \.nv_fatbin overlap", section(".text", size=48)),
    (r"sections \.nv_fatbin and \.nv_fatbin overlap", section(".text", name=NAMED, **second_of(".nv_fatbin"))),
    ("overlaps a table", LIB.patched(52, struct.pack("<H", 0x200))),
    ("table of segments makes no sense", LIB.patched(54, struct.pack("<H", 32))),
    ("table of segments makes no sense", LIB.patched(32, struct.pack("<Q", 1 << 40))),
    ("not mapped whole", segment(0, kind=4)),
    ("not mapped whole", segment(0, size=LIB.places[".nv_fatbin"].offset + 8)),
    ("not mapped whole", segment(0, address=0x1000)),
    ("not mapped whole", segment(2, size=LIB.places[".nv_fatbin"].offset + 8)),
    ("nothing registers it", section(".nvFatBinSegment", name=0)),
    ("not a row of wrappers", section(".nvFatBinSegment", size=23)),
    ("not a row of wrappers", section(".nvFatBinSegment", size=1 << 40)),
    ("not a row of wrappers", section(".nvFatBinSegment", flags=ALLOC)),
    ("not a row of wrappers", section(".nvFatBinSegment", kind=7)),
    ("version 1, magic 0x1", wrapper(magic=1)),
    ("version 3, magic", wrapper(version=3)),
    ("names a file", wrapper(other=8)),
    ("leads to 0x8, where no container starts", relocation(addend=8)),
    (r"relocated in another way \(type 0x1\)", relocation(kind=1)),
    (r"leads to 0x0, where", section(".rela.dyn", library(container("sm_90"), in_file=False), kind=1)),
    ("not a row of relocations", section(".rela.dyn", size=25)),
    ("not a row of relocations", section(".rela.dyn", size=24 << 40)),
    ("lto_90 is neither", unit("lto_90")),
    ("kind16_90 is neither", unit(entry("sm_90", kind=16))),
    (r"flags that are not known \(0x400011\)", unit(entry("sm_90", flags=0x400011))),
    (r"not aligned \(64 \+ 92", unit(entry("sm_90", size=92)[:-4])),
    (r"not aligned \(68 \+ 92", unit(entry("sm_90", header_size=68, size=92))),
    ("compressed in two ways", unit(entry("sm_90", packing=ZSTD, flags=0x11 | LZ4 | ZSTD))),
    ("sizes that do not fit", unit(entry("sm_90", packing=ZSTD, packed_size=999))),
    ("sizes that do not fit", unit(entry("sm_90", packing=LZ4, packed_size=8))),
    ("sizes that do not fit", unit(entry("sm_90", packing=LZ4, unpacked_size=0))),
    ("sizes that do not fit", unit(entry("sm_90", packed_size=96))),
    ("sizes that do not fit", unit(entry("sm_90", unpacked_size=96))),
    ("not compressed as its header says", unit(entry("sm_90", packing=LZ4, flags=0x11 | ZSTD))),
    ("is no cubin", unit(entry("sm_90")[:-96] + container(entry("sm_90")[:80], size=80))),
    ("is no cubin", unit(entry("sm_90")[:-96] + cubin("x").replace(b"\xbe", b"\x3e", 1))),
    ("is no cubin", unit(entry("sm_90", size=0)[:-96])),
    ("is no PTX", unit(entry("compute_90").replace(b".version", b"\x7fELF...."))),
    ("container's header of 24", library(container(b"\0" * 8, "sm_90", header_size=24, size=160)).data),
    ("container version 2", unit(version=2)),
    ("entry version 0x0102", unit(entry("sm_90", version=0x0102))),
    (r"entry of 64 \+ 104 bytes does not fit", unit(entry("sm_90", size=104))),
    ("no container starts here", library(container("sm_90"), b"damaged container").data),
    (r"container of 16 \+ 200 bytes does not fit", unit(size=200)),
    ("an entry's header is cut off", unit(b"\1" * 8)),
]


@pytest.mark.parametrize(
    ("says", "data"), REFUSED, ids=[f"{number}: {says}" for number, (says, _) in enumerate(REFUSED)]
)
def test_what_is_not_understood_is_refused(says: str, data: bytes) -> None:
    with pytest.raises(SlimRefused, match=rf"^pkg/_C\.so.*{says}") as raised:
        plan(data)
    assert raised.value.exit_status == 3
    assert raised.value.remedy


def test_the_library_that_refusals_are_made_of_is_cut() -> None:
    same: list[Callable[[], bytes]] = [lambda: section(".nv_fatbin"), lambda: segment(0), wrapper, relocation]
    assert all(make() == LIB.data for make in same)
    assert held(slimmed(LIB.data)) == ["sm_90"]
    assert isinstance(LIB, Library)
