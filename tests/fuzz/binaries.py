"""Shared libraries with device code, and damage to them: each follows from the run's seed and its own number."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from libraries import LZ4, PROGRAM_HEADER, SECTION_HEADER, WRAPPER, ZSTD, Library, container, entry, library

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import OnMissing, Policy, Request
from archpatch.wheels.fatbin import CONTAINER_HEADER, ENTRY_HEADER
from archpatch.wheels.slim_choice import Wanted

__all__ = ["KINDS", "BinaryInput", "make_binary"]

_CODES: Final = (
    *("sm_75", "sm_80", "sm_80", "sm_89", "sm_90", "sm_90", "sm_90", "sm_90a", "sm_100", "sm_103f", "sm_120"),
    *("compute_80", "compute_90", "compute_120"),
)
_REQUESTS: Final = ("9.0", "9.0", "9.0+PTX", "8.0;9.0", "9.0a", "8.9", "12.0", "h200", "h200", "l4", "l4,h200", "b300")


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryInput:
    """One input: `kinds` are the mutations that made `data`, `wanted` is what it is slimmed to."""

    number: int
    data: bytes
    kinds: tuple[str, ...]
    wanted: Wanted


def make_binary(seed: int, number: int) -> BinaryInput:
    """Return the input `number` of the run with `seed`."""
    rng = random.Random(f"slim:{seed}:{number}")  # noqa: S311 - inputs have to be the same again, not secret
    made = _library(rng)
    data, kinds = made.data, []
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        kind = rng.choice((*_MUTATIONS, _FIELD, _FIELD))
        data = _MUTATIONS[kind](data, made, rng)
        kinds.append(kind)
    return BinaryInput(
        number=number, data=data, kinds=tuple(dict.fromkeys(kinds)) or (_WHOLE,), wanted=_wanted(rng, made)
    )


def _library(rng: random.Random) -> Library:
    is_slim = rng.random() < 0.1
    units = [_unit(rng, is_slim=is_slim) for _ in range(rng.randint(1, 4))]
    relocatable = [_unit(rng) for _ in range(rng.randint(1, 2))] if rng.random() < 0.2 else []
    return library(*units, relocatable=relocatable, in_file=rng.random() < 0.8)


def _unit(rng: random.Random, *, is_slim: bool = False) -> bytes:
    codes = [] if is_slim else rng.sample(_CODES, rng.randint(1, 5))
    if is_slim or rng.random() < 0.8:
        codes.append("sm_90")
    entries = (
        entry(code, packing=rng.choice((0, 0, LZ4, ZSTD)), name=rng.choice((b"", b"", b"k.cu")), salt=str(rng.random()))
        for code in codes
    )
    return container(*entries) + b"\0" * rng.choice((0, 0, 0, 8, 64))


def _wanted(rng: random.Random, made: Library) -> Wanted:
    text = rng.choice(_REQUESTS)
    request: Request = ArchRequest.parse(text) if text[0].isdigit() else GpuRequest.of(*text.split(","))
    policy = Policy(on_missing=rng.choice((None, None, OnMissing.ERROR, OnMissing.NEAREST)), strict=rng.random() < 0.1)
    is_relocatable = "__nv_relfatbin" in made.places
    return Wanted(request=request, policy=policy, allow_relocatable=is_relocatable and rng.random() < 0.8)


# --- mutations ---

Mutation = Callable[[bytes, Library, random.Random], bytes]


def _place(data: bytes, rng: random.Random) -> int:
    return rng.randrange(max(len(data), 1))


def _flip(data: bytes, _: Library, rng: random.Random) -> bytes:
    changed = bytearray(data or b"x")
    for _number in range(rng.randint(1, 4)):
        changed[_place(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, _: Library, rng: random.Random) -> bytes:
    place, content = _place(data, rng), rng.randbytes(rng.choice((1, 2, 8, 40)))
    return data[:place] + content + data[place + len(content) :]


def _truncate(data: bytes, _: Library, rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _insert(data: bytes, _: Library, rng: random.Random) -> bytes:
    place = _place(data, rng)
    return data[:place] + rng.randbytes(rng.choice((1, 8, 64))) + data[place:]


def _delete(data: bytes, _: Library, rng: random.Random) -> bytes:
    place = _place(data, rng)
    return data[:place] + data[place + rng.choice((1, 8, 64)) :]


def _copy(data: bytes, _: Library, rng: random.Random) -> bytes:
    source, target, size = _place(data, rng) & ~7, _place(data, rng) & ~7, rng.choice((8, 16, 64, 80, 200))
    return data[:target] + data[source : source + size] + data[target + size :]


def _zero(data: bytes, _: Library, rng: random.Random) -> bytes:
    place, size = _place(data, rng) & ~7, rng.choice((8, 16, 64, 200))
    return data[:place] + bytes(len(data[place : place + size])) + data[place + size :]


def _append(data: bytes, _: Library, rng: random.Random) -> bytes:
    return data + rng.randbytes(rng.choice((1, 8, 300)))


def _change_field(data: bytes, made: Library, rng: random.Random) -> bytes:
    """Set one field of one header to a number that may mean something there."""
    start, layout = rng.choice(_headers(made))
    if start + layout.size > len(data):
        return data
    fields = list(layout.unpack_from(data, start))
    number = rng.randrange(len(fields))
    fields[number] = rng.choice((*_numbers(made, rng), fields[number] + rng.choice((-8, -1, 1, 8, 64))))
    try:
        packed = layout.pack(*fields)
    except (struct.error, OverflowError):
        return data  # it has no room for that number
    return data[:start] + packed + data[start + layout.size :]


def _swap_fields(data: bytes, made: Library, rng: random.Random) -> bytes:
    """Give one section the place of another."""
    one, other = (rng.choice(list(made.places.values())).header for _ in range(2))
    if max(one, other) + SECTION_HEADER.size > len(data):
        return data
    fields = list(SECTION_HEADER.unpack_from(data, one))
    wanted = SECTION_HEADER.unpack_from(data, other)
    for number in rng.choice(((0,), (3, 4), (3, 4, 5), (0, 3, 4, 5))):
        fields[number] = wanted[number]
    return data[:one] + SECTION_HEADER.pack(*fields) + data[one + SECTION_HEADER.size :]


_ELF_HEADER: Final = struct.Struct("<16xHHIQQQIHHHHHH")
_RELOCATION: Final = struct.Struct("<QQq")


def _headers(made: Library) -> list[tuple[int, struct.Struct]]:
    """Return where the headers of the library lie, as it was made, and their layouts; each kind is as likely."""
    wrappers, relocations = made.places[".nvFatBinSegment"], made.places[".rela.dyn"]
    containers = [(start, CONTAINER_HEADER) for start in made.starts]
    kinds = [
        [(0, _ELF_HEADER)],
        [(place.header, SECTION_HEADER) for place in made.places.values()],
        [(start, PROGRAM_HEADER) for start in made.segments],
        [(wrappers.offset + step, WRAPPER) for step in range(0, wrappers.size, WRAPPER.size)],
        [(relocations.offset + step, _RELOCATION) for step in range(0, relocations.size, _RELOCATION.size)],
        containers,
        [(start + CONTAINER_HEADER.size, ENTRY_HEADER) for start, _ in containers],
        [(start + CONTAINER_HEADER.size, ENTRY_HEADER) for start, _ in containers],
    ]
    most = max(map(len, kinds))
    return [header for kind in kinds for header in (kind * most)[:most]]


def _numbers(made: Library, rng: random.Random) -> tuple[int, ...]:
    place = rng.choice(list(made.places.values()))
    sizes = (place.offset, place.size, place.address, rng.choice(made.starts), len(made.data))
    return (*sizes, 0, 1, 2, 8, 16, 64, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)


_WHOLE: Final = "none"
_FIELD: Final = "header field"
_MUTATIONS: Final[dict[str, Mutation]] = {
    "bits flipped": _flip,
    "bytes overwritten": _overwrite,
    "truncated": _truncate,
    "bytes inserted": _insert,
    "bytes deleted": _delete,
    "bytes copied": _copy,
    "bytes zeroed": _zero,
    "bytes appended": _append,
    _FIELD: _change_field,
    "section moved": _swap_fields,
}
#: Every kind of mutation, in the order of the summary.
KINDS: Final = (_WHOLE, *_MUTATIONS)
