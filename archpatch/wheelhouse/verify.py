"""Check a wheelhouse: every wheel against its record and itself, every link, the memo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
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


def verify(house: Wheelhouse) -> tuple[Fault, ...]:
    """Return what is wrong: a wheel without a record, or unlike it; a link that leads nowhere; a memo; a stale page.

    What looks wrong is looked at again while nobody writes: it may just have been replaced.
    """
    suspects = {path for path, look in _looks(house) if look() is not None}
    if not suspects:
        return ()
    with house.unchanging():
        seen = [(path, look()) for path, look in _looks(house) if path in suspects]
    return tuple(Fault(path, problem) for path, problem in seen if problem is not None)


def _looks(house: Wheelhouse) -> Iterator[tuple[Path, Callable[[], str | None]]]:
    """Yield each thing to check and how."""
    for wheel in house.wheels():
        yield wheel, partial(_problem, house, wheel)
    for gpu in house.gpus():
        for link in house.links(gpu):
            yield link, partial(_link_problem, house, gpu, link)
    for memo in house.memos():
        yield memo, partial(_memo_problem, house, memo)
    for page in house.stale_pages():
        yield page, lambda: "does not say what the wheelhouse holds: run archpatch wheelhouse index"


def _memo_problem(house: Wheelhouse, memo: Path) -> str | None:
    try:
        house.note(memo)
    except WheelhouseDamaged as error:
        return error.message
    return None


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
    except OSError as error:
        return f"{wheel} cannot be read: {error.strerror}"
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
