"""What has to hold of every library and wheel that is slimmed, however damaged."""

from __future__ import annotations

import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from libraries import container, library, write_wheel

from archpatch.arch.arch import ArchRequest, DeviceCode, in_order
from archpatch.arch.coverage import best_for
from archpatch.errors import ArchpatchError, NoMatchingArch, SlimRefused
from archpatch.wheels.device_sections import DeviceSection, read_device_sections
from archpatch.wheels.elf import read_elf
from archpatch.wheels.fatbin import FatbinEntry
from archpatch.wheels.inspection import inspect_path
from archpatch.wheels.metadata import verify_record
from archpatch.wheels.slim_wheel import slim_wheel
from archpatch.wheels.slimming import Slimming, plan_slimming
from fuzz.binaries import BinaryInput
from fuzz.verdict import Verdict

__all__ = ["OUTCOMES", "judge_slimmed", "try_binary"]

OUTCOMES: Final = ("slimmed", "nothing to cut", "no device code", "no match", "refused", "unreadable")
_NAME: Final = "pkg-1.0-py3-none-linux_x86_64.whl"
#: Beside the library that is tried in a wheel, one that every request finds something in.
_OTHER: Final = library(container("sm_80", "sm_89", "sm_90", "sm_90a", "sm_103", "sm_120")).data


def try_binary(given: BinaryInput) -> Verdict:
    """Slim one library, and a wheel with it, and look at the results."""
    started = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            outcome, failures = _try(given)
    except BaseException:  # noqa: BLE001 - nothing may escape but what a user can be told
        lines = traceback.format_exc(limit=-3).splitlines()[-4:]
        outcome, failures = "", (" | ".join(line.strip() for line in lines),)
    return Verdict(
        number=given.number,
        kinds=given.kinds,
        outcome=outcome,
        seconds=time.process_time() - started,
        failures=failures,
    )


def _try(given: BinaryInput) -> tuple[str, tuple[str, ...]]:
    plan: Slimming | ArchpatchError | None
    try:
        plan = plan_slimming(given.data, path="pkg/_C.so", wanted=given.wanted)
    except ArchpatchError as error:
        plan = error
    failures = tuple(_wheel_failures(given, plan))
    if isinstance(plan, ArchpatchError):
        known = {NoMatchingArch: "no match", SlimRefused: "refused"}
        return known.get(type(plan), "unreadable"), failures
    if plan is None:
        return "no device code", failures
    after = bytearray(given.data)
    plan.apply(after)
    failures += tuple(judge_slimmed(given, plan, bytes(after)))
    return "slimmed" if plan.cuts else "nothing to cut", failures


def judge_slimmed(given: BinaryInput, plan: Slimming, after: bytes) -> Iterator[str]:
    """Yield what is wrong with the library `after` it was slimmed."""
    if len(after) != len(given.data):
        yield f"{len(given.data)} bytes became {len(after)}"
        return
    held = in_order(read_elf(after, path="after").device_code)
    if held != plan.kept:
        yield f"it holds {list(map(str, held))}, planned was {list(map(str, plan.kept))}"
    before, now = (_Library.read(data, given) for data in (given.data, after))
    if list(before.units) != list(now.units):
        yield "a container starts elsewhere"
        return
    if before.outside() != now.outside():
        yield "bytes outside the containers changed"
    for start, unit in before.units.items():
        yield from _unit_failures(given, unit, now.units[start])
    again = plan_slimming(after, path="again", wanted=given.wanted)
    if again is None or again.cuts or again.kept != plan.kept:
        yield "a second time it comes to something else"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """A container: its bytes up to where it ended at first, and its entries' bytes by their codes, in order."""

    end: int
    header: bytes
    entries: tuple[tuple[DeviceCode | None, bytes], ...]
    rest: bytes

    @property
    def codes(self) -> frozenset[DeviceCode]:
        return frozenset(code for code, _ in self.entries if code is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Library:
    data: bytes
    units: dict[int, _Unit]

    @classmethod
    def read(cls, data: bytes, given: BinaryInput) -> _Library:
        wanted = given.wanted
        ends = {
            section.offset + each.offset: section.offset + each.end
            for section in read_device_sections(given.data, path="before", allow_relocatable=wanted.allow_relocatable)
            for each in section.containers
        }
        units = {}
        for section in read_device_sections(data, path="after", allow_relocatable=wanted.allow_relocatable):
            for each in section.containers:
                start, end = section.offset + each.offset, section.offset + each.end
                units[start] = _Unit(
                    end=ends[start],
                    header=data[start : start + 8],
                    entries=tuple((entry.device_code, _bytes_of(data, section, entry)) for entry in each.entries),
                    rest=data[end : ends[start]],
                )
        return cls(data=data, units=units)

    def outside(self) -> bytes:
        """Return all bytes but those of the containers."""
        left = bytearray(self.data)
        for start, unit in self.units.items():
            left[start : unit.end] = bytes(unit.end - start)
        return bytes(left)


def _bytes_of(data: bytes, section: DeviceSection, entry: FatbinEntry) -> bytes:
    return data[section.offset + entry.offset : section.offset + entry.end]


def _unit_failures(given: BinaryInput, before: _Unit, after: _Unit) -> Iterator[str]:
    if before.header != after.header:
        yield "a container's header changed in more than its size"
    if after.rest.strip(b"\0"):
        yield "bytes are left behind what stays"
    if after.entries != tuple(entry for entry in before.entries if entry[0] in after.codes):
        yield "what stays is not what was there, in its order"
    expected = _expected(given, before.codes)
    if expected is not None and after.codes != expected:
        yield f"{sorted(map(str, before.codes))} came to {sorted(map(str, after.codes))}"


def _expected(given: BinaryInput, codes: frozenset[DeviceCode]) -> frozenset[DeviceCode] | None:
    """Return what the plain rules leave of a container; None where the policy is another one."""
    request, policy = given.wanted.request, given.wanted.policy
    if policy.on_missing is not None:
        return None
    loaded = {code for arch in request.archs for code in best_for(codes, arch.base)[0]}
    if not loaded:
        return codes
    if isinstance(request, ArchRequest):
        cubins = codes.intersection(map(DeviceCode, request.archs))
        asked = {DeviceCode(arch, ptx=True) for arch in request.ptx if DeviceCode(arch) in cubins}
        return cubins | codes.intersection(asked)
    return frozenset(loaded)


def _wheel_failures(given: BinaryInput, plan: Slimming | ArchpatchError | None) -> Iterator[str]:
    """Yield what is wrong with a wheel that holds the library: it fails as the library does, or reads back."""
    with tempfile.TemporaryDirectory(prefix="archpatch-fuzz-") as folder:
        (into := Path(folder, "new")).mkdir()
        wheel = write_wheel(Path(folder, _NAME), {"pkg/_C.so": given.data, "pkg/other.so": _OTHER})
        try:
            slimmed = slim_wheel(wheel, given.wanted, into, scratch=Path(folder))
        except ArchpatchError:
            if any(into.iterdir()):
                yield "an error left something behind"
            return
        if isinstance(plan, ArchpatchError) and given.data.startswith(b"\x7fELF"):
            yield f"the wheel was slimmed in spite of: {plan.message}"
        verify_record(slimmed.path)
        held = {file.path: in_order(file.device_code) for file in inspect_path(slimmed.path).files}
        if isinstance(plan, Slimming) and held.get("pkg/_C.so") != plan.kept:
            yield f"the wheel's library holds {held.get('pkg/_C.so')}"
