"""Check a wheelhouse: every wheel against its record and itself, every link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from archpatch.arch.gpu import find_gpu
from archpatch.errors import ArchpatchError, UnknownGpu, WheelhouseDamaged
from archpatch.storage.fingerprint import fingerprint
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheels.inspection import inspect_path
from archpatch.wheels.metadata import verify_record

__all__ = ["Fault", "verify"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something in a wheelhouse that is not as it was published."""

    path: Path
    problem: str


def verify(house: Wheelhouse) -> Iterator[Fault]:
    """Yield what is wrong: a wheel without a record, changed, unlike its record; a stray link; a stale page."""
    for wheel in house.wheels():
        problem = _problem(house, wheel)
        if problem is not None:
            yield Fault(wheel, problem)
    for gpu in house.gpus():
        for link in house.links(gpu):
            problem = _link_problem(house, gpu, link)
            if problem is not None:
                yield Fault(link, problem)
    for page in _stale_pages(house):
        yield Fault(page, "does not say what the wheelhouse holds: run archpatch wheelhouse index")


def _stale_pages(house: Wheelhouse) -> tuple[Path, ...]:
    """Return the pages that are out of date, looked at again while nobody writes: a change may be under way."""
    if not house.stale_pages():
        return ()
    with house.unchanging():
        return house.stale_pages()


def _link_problem(house: Wheelhouse, gpu: str, link: Path) -> str | None:
    try:
        entry = house.linked(link)
        arch = find_gpu(gpu).arch
    except UnknownGpu:
        # A product that only the driver named: its arch is not known here.
        return None
    except ArchpatchError as error:
        return error.message
    name = entry.not_run_by(arch)
    if name is None:
        return None
    return f"{gpu} ({arch}) runs nothing of the extension {name}: {', '.join(entry.record.extensions[name])}"


def _problem(house: Wheelhouse, wheel: Path) -> str | None:
    try:
        _check(house.entry(wheel))
    except ArchpatchError as error:
        return error.message
    return None


def _check(entry: Entry) -> None:
    entry.check()
    if fingerprint(entry.record.inputs) != entry.record.fingerprint:
        raise WheelhouseDamaged("its record's inputs do not come to its fingerprint: the record was edited")
    verify_record(entry.wheel)
    inspection = inspect_path(entry.wheel)
    held = tuple(map(str, (*inspection.cubins, *inspection.ptx)))
    if held != entry.record.device_code:
        raise WheelhouseDamaged(f"it holds {', '.join(held)}, its record says {', '.join(entry.record.device_code)}")
