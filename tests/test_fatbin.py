"""Fatbin containers built by hand, whole and damaged."""

import struct

import pytest

from archpatch.arch.arch import Arch, DeviceCode
from archpatch.errors import UnreadableBinary
from archpatch.wheels.fatbin import Container, read_containers

PTX, CUBIN, LTO = 1, 2, 8
SPECIFIC, FAMILY = 0x100000, 0x200000


def entry(
    kind: int = CUBIN,
    arch: int = 90,
    *,
    flags: int = 0x11,
    payload: bytes = b"\x7fELF\x02\x01\x01\x41",
    name: bytes = b"",
    version: int = 0x0101,
    **wrong: int,
) -> bytes:
    """Lay out an entry as nvcc does: header, name, padding, payload."""
    padded_name = name + b"\0" * (-len(name) % 8)
    values = {"header_size": 64 + len(padded_name), "size": len(payload), "name_offset": 64 if name else 0} | wrong
    header = struct.pack(
        "<HHIQIIHHIIIQQQ",
        *(kind, version, values["header_size"], values["size"], 0, 0, 8, 1, arch),
        *(values["name_offset"], len(name), flags, 0, 0),
    )
    return header + padded_name + payload


def container(*entries: bytes, version: int = 1, header_size: int = 16, size: int | None = None) -> bytes:
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, version, header_size, len(content) if size is None else size) + content


def read(section: bytes) -> list[Container]:
    return list(read_containers(memoryview(section), where="lib.so, section .nv_fatbin"))


def spelled(section: bytes) -> list[str]:
    return [str(entry) for container in read(section) for entry in container.entries]


@pytest.mark.parametrize(
    ("kind", "arch", "flags", "expected"),
    [
        (CUBIN, 75, 0x11, "sm_75"),
        (CUBIN, 90, 0x11 | SPECIFIC, "sm_90a"),
        (CUBIN, 100, 0x1000011 | FAMILY, "sm_100f"),
        (PTX, 90, 0x8011, "compute_90"),
        (PTX, 120, 0x2011 | FAMILY, "compute_120f"),
        (PTX, 90, 0x8011 | SPECIFIC, "compute_90a"),
        (LTO, 90, 0x18011, "lto_90"),
        (LTO, 100, 0x18011 | FAMILY, "lto_100f"),
        (16, 90, 0x11, "kind16_90"),
        (CUBIN, 130, 0x11, "sm_130"),  # an arch that is not known yet is reported all the same
    ],
)
def test_an_entry_says_what_it_is(kind: int, arch: int, flags: int, expected: str) -> None:
    assert spelled(container(entry(kind, arch, flags=flags))) == [expected]


def test_device_code_is_a_cubin_or_ptx_and_nothing_else() -> None:
    (found,) = read(container(entry(CUBIN, 90), entry(PTX, 90), entry(LTO, 90)))
    assert [entry.device_code for entry in found.entries] == [
        DeviceCode(Arch(9, 0)),
        DeviceCode(Arch(9, 0), ptx=True),
        None,
    ]
    assert [entry.kind for entry in found.entries] == ["cubin", "ptx", "other"]


def test_offsets_lead_to_header_and_payload() -> None:
    first, second = entry(arch=80, payload=b"a" * 24, name=b"k.cu"), entry(arch=90, payload=b"b" * 8)
    section = container(entry()) + b"\0" * 8 + container(first, second)
    last = read(section)[1]
    assert section[last.offset :] == container(first, second)
    assert last.end == len(section)
    a, b = last.entries
    assert section[a.offset : a.end] == first
    assert section[a.offset + a.header_size : a.end] == b"a" * 24
    assert section[b.offset : b.end] == second
    assert (a.name, b.name) == ("k.cu", "")


@pytest.mark.parametrize("zeros", [0, 8, 4096])
def test_zeros_before_between_and_after_are_skipped(zeros: int) -> None:
    gap = b"\0" * zeros
    assert spelled(gap + container(entry(arch=80)) + gap + container(entry(arch=90)) + gap) == ["sm_80", "sm_90"]


def test_a_container_whose_first_byte_is_not_its_words_first_is_found() -> None:
    # The magic has no zero in it, but a payload may end in zeros right before the next container.
    assert spelled(container(entry(payload=b"x" + b"\0" * 7)) + container(entry(arch=80))) == ["sm_90", "sm_80"]


@pytest.mark.parametrize("section", [b"", b"\0" * 64, container()])
def test_nothing_there_is_nothing_read(section: bytes) -> None:
    assert spelled(section) == []


@pytest.mark.parametrize(
    ("section", "message", "offset"),
    [
        (container(entry())[:12], "a container's header is cut off", 0),
        (b"\0" * 8 + b"not device code.", "no container starts here", 8),
        (container(entry(), version=2), "container version 2", 0),
        (container(entry(), header_size=8), "container of 8 \\+", 0),
        (container(entry(), header_size=0), "container of 0 \\+", 0),
        (container(entry(), size=2**63), "does not fit", 0),
        (container(entry()) + container(entry())[:-1], "container of 16 \\+ 72 bytes does not fit", 88),
        (container(entry(), b"\0" * 16), "an entry's header is cut off", 88),
        (container(entry(), b"\0" * 64), "entry version 0x0000", 88),
        (container(entry(header_size=0)), "entry of 0 \\+ 8 bytes", 16),
        (container(entry(header_size=56)), "entry of 56 \\+ 8 bytes", 16),
        (container(entry(size=9)), "entry of 64 \\+ 9 bytes", 16),
        (container(entry(size=2**64 - 1)), "does not fit", 16),
        (container(entry(size=2**64 - 64)), "does not fit", 16),  # would wrap to no progress in 64 bits
        (container(entry(version=0x0102)), "entry version 0x0102", 16),
        (container(entry(name=b"k.cu", name_offset=70)), "name at 70 is outside", 16),
    ],
)
def test_damage_is_named_with_its_place(section: bytes, message: str, offset: int) -> None:
    with pytest.raises(UnreadableBinary, match=message) as raised:
        read(section)
    assert raised.value.message.startswith("lib.so, section .nv_fatbin: ")
    assert raised.value.message.endswith(f"at offset {offset:#x}")


def test_every_truncation_is_an_error_or_a_shorter_list() -> None:
    section = container(entry(name=b"k.cu"), entry(PTX, 80)) + container(entry(arch=120))
    whole = ["sm_90", "compute_80", "sm_120"]
    for length in range(len(section)):
        try:
            found = spelled(section[:length])
        except UnreadableBinary:
            continue
        assert found == whole[: len(found)]
        assert len(found) < len(whole)


def test_every_damaged_byte_ends_in_entries_or_an_error() -> None:
    section = container(entry(name=b"k.cu"), entry(PTX, 80)) + container(entry(arch=120))
    read_well = 0
    for position in range(len(section)):
        for value in (0, 1, 0x7F, 0xFF):
            damaged = bytearray(section)
            damaged[position] = value
            try:
                read_well += len(read(bytes(damaged))) <= 2
            except UnreadableBinary as error:
                assert "at offset" in error.message  # noqa: PT017  # most damage is harmless, so raising is not required
    assert read_well


def test_a_map_can_be_closed_while_the_error_is_handled() -> None:
    # A view that a traceback keeps would make closing a memory map fail.
    section = memoryview(container(entry(), b"\0" * 64))
    try:
        list(read_containers(section, where="x"))
    except UnreadableBinary:
        section.release()
