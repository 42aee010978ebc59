"""From a job that the wheelhouse has no wheel for to the wheel: planned, compiled, read back, labelled, published."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from packaging.version import Version

from archpatch import __version__
from archpatch.builder.compiling import compile_wheel
from archpatch.builder.events import Listener
from archpatch.builder.head_start import RunLogged, head_start
from archpatch.builder.nets import check_wheel
from archpatch.builder.planning import Plan, plan
from archpatch.builder.processes import run_logged
from archpatch.builder.schedule.desk import Desk
from archpatch.builder.schedule.rota import UNKNOWN, Cost
from archpatch.builder.schedule.seating import Compilation, Seated, seated
from archpatch.builder.task import Task
from archpatch.builder.working_folder import working_folder
from archpatch.errors import WheelhouseConflict
from archpatch.jobs import Job
from archpatch.storage.atomic import sha256_of
from archpatch.storage.fingerprint import fingerprint
from archpatch.wheelhouse.house import Entry
from archpatch.wheelhouse.layout import local_version
from archpatch.wheelhouse.record import Record
from archpatch.wheels.inspection import Inspection, inspect_path
from archpatch.wheels.metadata import read_metadata, relabel

__all__ = ["Draft", "draft", "make"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A job whose source is fetched, rewritten and captured in the folder `scratch`, and all that decides the bytes."""

    job: Job
    planned: Plan
    inputs: Mapping[str, str]
    scratch: Path
    listener: Listener
    run: RunLogged

    @property
    def fingerprint(self) -> str:
        """The digest of the inputs."""
        return fingerprint(self.inputs)

    def find(self) -> Entry | None:
        """Return the wheel that another request led to, and note that this one leads there too."""
        entry = self.job.house.find(self.fingerprint)
        if entry is not None:
            self.job.remember(entry, self.planned.variables_read)
        return entry

    def replaced(self) -> Iterator[tuple[Entry, str]]:
        """Yield each filed wheel whose name the new one takes, with the inputs that differ in words."""
        job, planned = self.job, self.planned
        for entry in job.house.occupants(planned.name, self.inputs["version"], planned.device_code, job.stack):
            if all(entry.record.inputs.get(name) == self.inputs[name] for name in _IN_THE_NAME):
                yield entry, job.house.difference(entry.wheel, self.inputs)


#: What the name of a wheel says besides its version and device code.
_IN_THE_NAME = ("python", "platform", "local-version")


@contextmanager
def draft(job: Job, log: Path, listener: Listener, *, will_compile: bool = False) -> Iterator[Draft]:
    """Fetch, rewrite and capture in a folder that is gone afterwards; raises what `plan` raises.

    Where it will be compiled afterwards, the interpreter for that is started at once.
    """
    task = Task(
        requirement=job.requirement,
        request=job.request,
        policy=job.policy,
        recipe=job.recipe,
        bench=job.bench,
        listener=listener,
        sizing=job.order.terms.sizing,
        offline=job.order.terms.offline,
        leave_out=(job.order.terms.wheelhouse,),
    )
    with working_folder() as scratch, _head_start(task, scratch) if will_compile else nullcontext(run_logged) as run:
        planned = plan(task, scratch, log)
        version = planned.source.version or planned.captured.version or "0"
        inputs = job.inputs(planned.name, version) | planned.inputs()
        yield Draft(job=job, planned=planned, inputs=inputs, scratch=scratch, listener=listener, run=run)


def _head_start(task: Task, scratch: Path) -> AbstractContextManager[RunLogged]:
    variables = task.variables((), arch_list=task.arch_list, sources=1, local_version=None)
    return head_start(task.bench.interpreter.executable, environment=variables, folder=scratch / "head-start")


def make(job: Job, log: Path, listener: Listener, *, desk: Desk) -> tuple[Entry, bool]:
    """Take the wheel that another request led to, or compile it, and return it and whether it was there.

    Its compilers ask for their turn at `desk`.
    """
    with draft(job, log, listener, will_compile=True) as drawn, job.lock(drawn.fingerprint, listener):
        entry = drawn.find()
        if entry is not None:
            return entry, True
        _announce_replaced(drawn)
        entry = _compile(drawn, drawn.scratch / "wheel", desk)
        job.remember(entry, drawn.planned.variables_read)
        return entry, False


def _announce_replaced(drawn: Draft) -> None:
    """Say that a wheel of the same name will be replaced, and why; raises before the compile if it may not be."""
    for entry, why in drawn.replaced():
        # With the same fingerprint it is not intact, or it would have been taken: there is nothing to keep.
        if not drawn.job.order.terms.replace and entry.record.fingerprint != drawn.fingerprint:
            raise WheelhouseConflict(
                f"{entry.wheel.name} is already published: {why}",
                remedy="Leave out --no-replace, or choose another --wheelhouse.",
            )
        drawn.listener.warn(f"{entry.wheel.name} will be replaced: {why}")


def _compile(drawn: Draft, into: Path, desk: Desk) -> Entry:
    """Compile, read back, label and publish."""
    started = time.monotonic()
    job, planned, listener = drawn.job, drawn.planned, drawn.listener
    label = local_version(planned.device_code, job.stack) if job.order.terms.labelled else None
    listener.stage(f"compiling {planned.name} for {', '.join(map(str, sorted(planned.device_code)))}")
    sources = [source for extension in planned.captured.extensions for source in extension.sources]
    workplace = planned.workplace(local_version=label)
    usual = UNKNOWN if job.recipe.compile_gib is None else replace(UNKNOWN, memory=job.recipe.compile_gib << 30)
    known = {file: replace(usual, seconds=seconds) for file, seconds in job.recipe.compile_seconds}
    known |= {file: Cost.read(cost) for file, cost in job.house.costs(planned.name).items()}
    compilation = Compilation(
        captured=planned.captured,
        bench=job.bench,
        tree=workplace.tree,
        environment=workplace.environment,
        known=known,
        usual=usual,
        lineinfo=job.order.terms.sizing.lineinfo,
    )
    with seated(desk, compilation) as seat:
        wheel = compile_wheel(workplace.with_variables(seat.variables), into, sources=sources, run=drawn.run)
    if seat.cached:
        listener.stage(seat.cached)
    compiled = time.monotonic()
    listener.stage("reading back the device code")
    inspection = inspect_path(wheel)
    for note in check_wheel(inspection, planned.expected, planned.by_cmake):
        listener.warn(note)
    if label is not None and read_metadata(wheel).version.local != str(Version(f"0+{label}").local):
        labelled = into / "labelled"
        labelled.mkdir()
        wheel = relabel(wheel, label, labelled)
    times = {**planned.times, "compile": compiled - started, "read_back": time.monotonic() - compiled}
    record = _record(drawn, wheel, inspection=inspection, times=times, seat=seat)
    return job.house.publish(wheel, record, job.stack, replace=job.order.terms.replace)


def _record(drawn: Draft, wheel: Path, *, inspection: Inspection, times: Mapping[str, float], seat: Seated) -> Record:
    job, planned = drawn.job, drawn.planned
    codes = sorted({*inspection.cubins, *inspection.ptx}, key=lambda code: (code.ptx, code.arch))
    return Record(
        name=planned.name,
        version=drawn.inputs["version"],
        wheel=wheel.name,
        sha256=sha256_of(wheel),
        size=wheel.stat().st_size,
        fingerprint=drawn.fingerprint,
        inputs=dict(drawn.inputs),
        request={**job.order.asked.to_json(), "on_missing": job.policy.on_missing_for(job.request).value},
        pairs=tuple(report.to_json() for report in planned.outcome.pairs),
        flag_sources=planned.flag_sources,
        device_code=tuple(map(str, codes)),
        extensions={name: tuple(sorted(map(str, codes))) for name, codes in planned.expected.items()},
        needs=inspection.needs.to_json(),
        source={"origin": planned.source.origin, "digest": planned.source.digest},
        toolchain={**job.bench.toolchain(), **({"compiler-cache": seat.cached} if seat.cached else {})},
        times={name: round(seconds, 3) for name, seconds in times.items()},
        files={file: cost.to_json() for file, cost in sorted(seat.costs.items())},
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        archpatch=__version__,
    )
