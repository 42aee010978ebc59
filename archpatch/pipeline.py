"""The flow, one function per command: from what was asked for to a wheel that is proven to hold it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import GpuRequest
from archpatch.builder.asked import Asked
from archpatch.builder.events import Listener
from archpatch.builder.logs import new_log
from archpatch.builder.requirement import parse_requirement
from archpatch.crew import side_by_side
from archpatch.errors import ArchpatchError, KnownBadArch, NoMatchingArch, SetupRefused
from archpatch.jobs import Order, Terms, Workshop, name_of, open_job
from archpatch.storage.atomic import explained
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.plan import Cell, Result, State
from archpatch.wheelhouse.prune import Keep, PruneRules, Surplus, surplus
from archpatch.wheelhouse.record import Record, record_path

if TYPE_CHECKING:
    from archpatch.making import Draft

__all__ = ["Built", "build", "order_for", "prune", "refresh", "survey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A published wheel: whether it was there before (`hit`), the links of GPU types, the log, and seconds taken."""

    entry: Entry
    hit: bool
    links: tuple[Path, ...]
    log: Path | None
    seconds: float

    @property
    def wheel(self) -> Path:
        """Where the wheel lies."""
        return self.entry.wheel

    @property
    def record(self) -> Record:
        """What is known of it."""
        return self.entry.record

    @property
    def record_path(self) -> Path:
        """Where the record lies."""
        return record_path(self.wheel)


def build(order: Order, *, workshop: Workshop, listener: Listener) -> Built:
    """Return the wheel that `order` asks for: filed before, or built, read back and filed now.

    Raises a subclass of `ArchpatchError` for whatever stands in the way; nothing is published then.
    """
    started = time.monotonic()
    job = open_job(order, workshop)
    entry, hit, log = job.recall(), True, None
    if entry is None:
        # libcst and all that compiles takes 0.3 s to import, twice as long as a hit.
        from archpatch.making import make  # noqa: PLC0415

        with job.alone(listener):
            # Whoever had to wait is answered by what the other process came to.
            entry = job.recall()
            if entry is None:
                log = new_log(job.recipe.name)
                desk = workshop.desk(job.bench.host)
                with _named(log):
                    entry, hit = make(job, log, listener, desk=desk)
    links = tuple(job.house.offer(entry, gpu.name, job.stack) for gpu in job.gpus)
    return Built(entry=entry, hit=hit, links=links, log=log, seconds=time.monotonic() - started)


def survey(cells: Iterable[Cell], terms: Terms, *, workshop: Workshop, listener: Listener) -> Iterator[Result]:
    """Yield what each cell would come to, without compiling: a hit, a build, or why there can be none.

    What is not filed is fetched, rewritten and captured for that, which takes seconds a cell.
    """

    def look(cell: Cell, listener: Listener) -> Result:
        started = time.monotonic()
        try:
            with _explaining():
                result = _look_at(cell, terms, workshop, listener)
        except ArchpatchError as error:
            result = _failure(cell, error)
        return replace(result, seconds=time.monotonic() - started)

    return side_by_side(look, tuple(cells), most=workshop.cells_at_once, listener=listener)


def refresh(cells: Iterable[Cell], terms: Terms, *, workshop: Workshop, listener: Listener) -> Iterator[Result]:
    """Make it so: build what is missing, and yield what each cell came to; a failure stops no other cell.

    Several cells are built at once, and their compilers share the machine.
    """
    made = set[str]()

    def carry_out(cell: Cell, listener: Listener) -> Result:
        started = time.monotonic()
        try:
            with _explaining():
                built = build(order_for(cell, terms), workshop=workshop, listener=listener)
        except ArchpatchError as error:
            listener.warn(str(error))
            result = _failure(cell, error)
        else:
            if not built.hit:
                made.add(built.record.fingerprint)
            result = _served(cell, built.entry, State.HIT, log=built.log)
        return replace(result, seconds=time.monotonic() - started)

    told = set[str]()
    for result in side_by_side(carry_out, tuple(cells), most=workshop.cells_at_once, listener=listener):
        # Of cells that share a wheel, any may have compiled it: the first has it built, the others find it.
        if result.entry is not None and result.fingerprint in made - told:
            told.add(result.entry.record.fingerprint)
            served = _served(result.cell, result.entry, State.BUILT, log=result.log)
            result = replace(served, seconds=result.seconds)  # noqa: PLW2901 - the same cell's
        yield result


def prune(rules: PruneRules, results: Iterable[Result], terms: Terms, *, dry_run: bool = False) -> tuple[Surplus, ...]:
    """Take out of the wheelhouse what `rules` say, and return it; `dry_run` only returns it.

    What the results of the whole plan name stays, and every wheel of a package that has a cell without a wheel: which
    one that cell needs is not known.
    """
    wheels, packages = set[Path](), set[str]()
    for result in results:
        if result.entry is not None:
            wheels.add(result.entry.wheel)
        else:
            packages.add(canonicalize_name(name_of(parse_requirement(result.cell.requirement))))
    keep = Keep(wheels=frozenset(wheels), packages=frozenset(packages))
    house = Wheelhouse(terms.wheelhouse)
    found = surplus(house.entries(), rules, keep, now=datetime.now(timezone.utc))
    for item in () if dry_run else found:
        house.remove(item.entry)
    return found


def order_for(cell: Cell, terms: Terms) -> Order:
    """Return the order to build a cell. Raises `UsageError` where its text cannot be read."""
    request = ArchRequest.parse(cell.arch or "") if cell.gpu is None else GpuRequest.of(cell.gpu)
    return Order(
        requirement=parse_requirement(cell.requirement),
        asked=Asked(request=request, source="config"),
        python=cell.interpreter,
        terms=terms,
    )


def _look_at(cell: Cell, terms: Terms, workshop: Workshop, listener: Listener) -> Result:
    job = open_job(order_for(cell, terms), workshop)
    entry = job.recall()
    if entry is None:
        from archpatch.making import draft  # noqa: PLC0415 - as in `build`

        log = new_log(job.recipe.name)
        with _named(log), draft(job, log, listener) as drawn:
            entry = drawn.find()
            if entry is None:
                return Result(cell=cell, state=State.BUILD, reason=_why(drawn), fingerprint=drawn.fingerprint, log=log)
    return _served(cell, entry, State.HIT)


def _served(cell: Cell, entry: Entry, state: State, *, log: Path | None = None) -> Result:
    """Return the result of a cell that a wheel serves."""
    verb = "filed" if state is State.HIT else "built"
    return Result(
        cell=cell,
        state=state,
        reason=f"{verb} {entry.record.created}",
        fingerprint=entry.record.fingerprint,
        entry=entry,
        log=log,
    )


@contextmanager
def _named(log: Path) -> Iterator[None]:
    """Let an error name the log, where anything is in it."""
    try:
        yield
    except ArchpatchError as error:
        with suppress(FileNotFoundError):
            error.log = log if log.stat().st_size else None
        raise


@contextmanager
def _explaining() -> Iterator[None]:
    """Raise what the system refuses as an error that ends one cell, and no other."""
    try:
        yield
    except OSError as error:
        raise explained(error) from error


def _why(drawn: Draft) -> str:
    """Say what would be compiled, and what of it is filed in another state."""
    codes = ", ".join(map(str, sorted(drawn.planned.device_code)))
    changes = "; ".join(why for _, why in drawn.replaced())
    return f"{codes}: {changes or 'not filed'}"


def _failure(cell: Cell, error: ArchpatchError) -> Result:
    if isinstance(error, KnownBadArch):
        state = State.KNOWN_BAD
    elif isinstance(error, NoMatchingArch | SetupRefused):
        state = State.REFUSED
    else:
        state = State.FAILED
    return Result(cell=cell, state=state, reason=error.message, log=error.log)
