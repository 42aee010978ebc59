"""One library slimmed: the cut that takes out what does not stay.

In each container the entries that stay move up, the container's header gets the smaller size, and the rest becomes
zeros. Every container starts where it did, so nothing else in the file changes: no address, no symbol, no relocation.
"""

from __future__ import annotations

from dataclasses import dataclass
from mmap import mmap
from typing import Final

from archpatch.arch.arch import DeviceCode, in_order
from archpatch.errors import NoMatchingArch
from archpatch.wheels.device_sections import DeviceSection, read_device_sections
from archpatch.wheels.fatbin import CONTAINER_SIZE, CONTAINER_SIZE_AT, Container, FatbinEntry
from archpatch.wheels.slim_choice import Choice, Codes, Wanted, choose

__all__ = ["Cut", "Slimming", "plan_slimming"]

_ZEROS: Final = bytes(1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What stays of one container; `section_offset` is where its section starts in the file."""

    container: Container
    section_offset: int
    kept: tuple[FatbinEntry, ...]

    @property
    def size(self) -> int:
        """Bytes of the entries that stay."""
        return sum(entry.end - entry.offset for entry in self.kept)

    def apply(self, view: memoryview) -> None:
        """Move what stays to the container's start, and leave zeros behind it."""
        start, end = (self.section_offset + place for place in (self.container.offset, self.container.end))
        position = start + self.container.header_size
        for entry in self.kept:
            source, length = self.section_offset + entry.offset, entry.end - entry.offset
            if source != position:
                view[position : position + length] = view[source : source + length]
            position += length
        for place in range(position, end, len(_ZEROS)):
            view[place : min(place + len(_ZEROS), end)] = _ZEROS[: end - place]
        CONTAINER_SIZE.pack_into(view, start + CONTAINER_SIZE_AT, self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slimming:
    """What becomes of one library. `kept` and `dropped` are device code, cubins first.

    `idle` counts those of its containers that hold nothing for the request, and stay as they are.
    """

    path: str
    kept: tuple[DeviceCode, ...]
    dropped: tuple[DeviceCode, ...]
    cuts: tuple[Cut, ...]
    containers: int
    idle: int
    warnings: tuple[str, ...] = ()

    @property
    def saved(self) -> int:
        """Bytes that become zeros."""
        return sum(cut.container.size - cut.size for cut in self.cuts)

    def apply(self, data: mmap | bytearray) -> None:
        """Cut `data`, which has to be the bytes that this was planned for, in place."""
        with memoryview(data) as view:
            for cut in self.cuts:
                cut.apply(view)


def plan_slimming(data: bytes | mmap, *, path: str, wanted: Wanted) -> Slimming | None:
    """Plan what becomes of the library whose bytes are `data`; None where it holds no device code.

    Raises `NoMatchingArch` as `choose` does, `SlimRefused` and `UnreadableBinary` as `read_device_sections` does.
    """
    sections = read_device_sections(data, path=path, allow_relocatable=wanted.allow_relocatable)
    units = [_Unit(section=section, container=container) for section in sections for container in section.containers]
    if not any(unit.codes for unit in units):
        return None
    choice = _choose(path, units, wanted)
    kept = {code for unit in units for code in choice.kept[unit.codes]}
    return Slimming(
        path=path,
        kept=in_order(kept),
        dropped=in_order({code for unit in units for code in unit.codes} - kept),
        cuts=tuple(unit.cut(choice.kept[unit.codes]) for unit in units if choice.kept[unit.codes] != unit.codes),
        containers=len(units),
        idle=sum(unit.codes in choice.idle for unit in units),
        warnings=tuple(f"{path}: {text}" for text in choice.warnings),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """A container and the section that it lies in."""

    section: DeviceSection
    container: Container

    @property
    def codes(self) -> Codes:
        # Whatever else an entry may be was refused before.
        return frozenset(entry.device_code for entry in self.container.entries if entry.device_code is not None)

    def cut(self, kept: Codes) -> Cut:
        return Cut(
            container=self.container,
            section_offset=self.section.offset,
            kept=tuple(entry for entry in self.container.entries if entry.device_code in kept),
        )


def _choose(path: str, units: list[_Unit], wanted: Wanted) -> Choice:
    linked, others = ([unit.codes for unit in units if unit.section.is_linked is which] for which in (True, False))
    try:
        return choose(linked, others, wanted)
    except NoMatchingArch as error:
        raise type(error)(f"{path}: {error.message}", remedy=error.remedy) from None
