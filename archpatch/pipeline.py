"""The flow, one function per command: from what was asked for to a wheel that is proven to hold it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from archpatch import __version__
from archpatch.arch.gpu import Gpu, GpuRequest
from archpatch.arch.selection import Policy
from archpatch.builder.asked import Asked
from archpatch.builder.bench import Bench, look
from archpatch.builder.compiling import compile_wheel
from archpatch.builder.environment import without_arch_flags
from archpatch.builder.events import Listener
from archpatch.builder.logs import new_log
from archpatch.builder.nets import check_wheel
from archpatch.builder.planning import Plan, Task, plan
from archpatch.builder.requirement import GitRequirement, IndexRequirement, Requirement
from archpatch.builder.source import pin, project_name
from archpatch.builder.working_folder import working_folder
from archpatch.errors import FetchFailed, UsageError, WheelhouseConflict
from archpatch.recipes.recipe import (
    Recipe,
    RecipeOverride,
    digest,
    find_recipe,
    find_recipe_by_repository,
    known_bad_for,
)
from archpatch.rewrite.outcome import REWRITE_GENERATION
from archpatch.storage.atomic import sha256_of
from archpatch.storage.fingerprint import fingerprint
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.layout import Stack, local_version
from archpatch.wheelhouse.record import Record, record_path
from archpatch.wheels.inspection import Inspection, inspect_path
from archpatch.wheels.metadata import read_metadata, relabel

__all__ = ["Built", "Order", "build"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to build, for what, with what, and where to file it.

    `python` None stands for this interpreter; `toolkit` is `auto`, `system`, `pypi` or a folder. `replace` lets a new
    wheel take the name of one with another fingerprint; `labelled` puts what is inside into the local version.
    """

    requirement: Requirement
    asked: Asked
    wheelhouse: Path
    policy: Policy = field(default_factory=Policy)
    allow_known_bad: bool = False
    python: Path | None = None
    toolkit: str = "auto"
    offline: bool = False
    replace: bool = True
    labelled: bool = True
    recipes: tuple[RecipeOverride, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A published wheel: whether it was there before (`hit`), the links of GPU types, the log, and seconds taken."""

    wheel: Path
    record: Record
    hit: bool
    links: tuple[Path, ...]
    log: Path | None
    seconds: float

    @property
    def record_path(self) -> Path:
        """Where the record lies."""
        return record_path(self.wheel)


def build(order: Order, *, environ: Mapping[str, str], listener: Listener) -> Built:
    """Return the wheel that `order` asks for: filed before, or built, read back and filed now.

    Raises a subclass of `ArchpatchError` for whatever stands in the way; nothing is published then.
    """
    started = time.monotonic()
    job = _open(order, environ, listener)
    entry, hit, log = job.recall(), True, None
    if entry is None:
        with job.alone():
            # Whoever had to wait is answered by what the other process came to.
            entry = job.recall()
            if entry is None:
                log = new_log(job.task.recipe.name)
                entry, hit = _make(job, log)
    links = tuple(job.house.offer(entry, gpu.name, job.stack) for gpu in job.gpus)
    seconds = time.monotonic() - started
    return Built(wheel=entry.wheel, record=entry.record, hit=hit, links=links, log=log, seconds=seconds)


def _make(job: _Job, log: Path) -> tuple[Entry, bool]:
    """Plan the build; then take the wheel that another request led to, or compile it. Return whether it was there."""
    with working_folder() as scratch:
        planned = plan(job.task, scratch, log)
        inputs = job.inputs(planned.name, planned.source.version or planned.captured.version or "0") | planned.inputs()
        with job.lock(fingerprint(inputs)):
            entry = job.house.find(fingerprint(inputs))
            hit = entry is not None
            if entry is None:
                job.warn_of_replaced(planned, inputs)
                entry = _compile(job, planned, scratch / "wheel", inputs)
    job.remember(entry, planned.variables_read)
    return entry, hit


def _compile(job: _Job, planned: Plan, into: Path, inputs: Mapping[str, str]) -> Entry:
    """Compile, read back, label and publish."""
    started = time.monotonic()
    label = local_version(planned.device_code, job.stack) if job.order.labelled else None
    job.task.listener.stage(f"compiling {planned.name} for {', '.join(map(str, sorted(planned.device_code)))}")
    sources = [source for extension in planned.captured.extensions for source in extension.sources]
    wheel = compile_wheel(planned.workplace(local_version=label), into, sources=sources)
    compiled = time.monotonic()
    job.task.listener.stage("reading back the device code")
    inspection = inspect_path(wheel)
    for note in check_wheel(inspection, planned.expected):
        job.task.listener.warn(note)
    if label is not None and read_metadata(wheel).version.local != str(Version(f"0+{label}").local):
        labelled = into / "labelled"
        labelled.mkdir()
        wheel = relabel(wheel, label, labelled)
    times = {**planned.times, "compile": compiled - started, "read_back": time.monotonic() - compiled}
    record = _record(job, planned, wheel, inspection=inspection, inputs=inputs, times=times)
    return job.house.publish(wheel, record, job.stack, replace=job.order.replace)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """An order with everything looked up that can be had without fetching or importing anything."""

    order: Order
    task: Task
    house: Wheelhouse
    stack: Stack

    @property
    def bench(self) -> Bench:
        return self.task.bench

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPU types that the wheel is filed for too."""
        request = self.task.request
        return request.gpus if isinstance(request, GpuRequest) else ()

    def inputs(self, name: str, version: str) -> dict[str, str]:
        """Return what decides a wheel's bytes, as far as it is known without the source."""
        return {
            "package": canonicalize_name(name),
            "version": version,
            "rewrite": str(REWRITE_GENERATION),
            "recipe": digest(self.task.recipe),
            "local-version": "yes" if self.order.labelled else "no",
            **self.bench.inputs(self.task.recipe),
        }

    def recall(self) -> Entry | None:
        """Return the intact wheel that the same request led to before; only a pinned version can be known that well."""
        key = self._memo_key()
        environ = {**self.bench.environ, **dict(self.task.recipe.environment)}
        return None if key is None else self.house.recall(key, environ)

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Hold a lock of the wheelhouse, and say so where another process has it."""
        return self.house.lock(name, waiting=lambda: self.task.listener.stage(_WAITING))

    def alone(self) -> AbstractContextManager[None]:
        """Hold off others with the same request: one of them runs `setup.py`, not each."""
        key = self._memo_key()
        return nullcontext() if key is None else self.lock(key)

    def remember(self, entry: Entry, variables: Mapping[str, str | None]) -> None:
        """Note which wheel this request led to, and the variables that its `setup.py` read."""
        key = self._memo_key()
        if key is not None:
            self.house.remember(key, entry, variables)

    def _memo_key(self) -> str | None:
        requirement, request, policy = self.task.requirement, self.task.request, self.task.policy
        if not isinstance(requirement, IndexRequirement) or requirement.version is None:
            return None
        asked = {
            "archpatch": __version__,
            "request": f"{type(request).__name__} {request} {' '.join(map(str, request.archs))}",
            "repository": str(self.task.recipe.git),
            "on-missing": policy.on_missing_for(request).value,
            "strict": str(policy.strict),
            "known-bad": " ".join(str(bad.arch) for bad in policy.known_bad),
            "sha256": requirement.sha256 or "",
        }
        return fingerprint(self.inputs(requirement.name, str(requirement.version)) | asked)

    def warn_of_replaced(self, planned: Plan, inputs: Mapping[str, str]) -> None:
        """Say that a wheel of the same name will be replaced, and why; raises before the compile if it may not be."""
        version = inputs["version"]
        for entry in self.house.occupants(planned.name, version, planned.device_code, self.stack):
            if any(entry.record.inputs.get(name) != inputs[name] for name in ("python", "platform", "local-version")):
                continue
            why = self.house.difference(entry.wheel, inputs)
            # With the same fingerprint it is not intact, or it would have been taken: there is nothing to keep.
            if not self.order.replace and entry.record.fingerprint != fingerprint(inputs):
                raise WheelhouseConflict(
                    f"{entry.wheel.name} is already published: {why}",
                    remedy="Leave out --no-replace, or choose another --wheelhouse.",
                )
            self.task.listener.warn(f"{entry.wheel.name} will be replaced: {why}")


def _open(order: Order, environ: Mapping[str, str], listener: Listener) -> _Job:
    """Look at what the machine has, pin the version, and find what is known of the package."""
    if order.asked.request is None:
        raise UsageError("nothing says what to build for", remedy="Name --gpu or --arch, or set TORCH_CUDA_ARCH_LIST.")
    cleaned, had = without_arch_flags(environ)
    for variable in had:
        listener.warn(f"{variable} holds arch flags, which would be compiled beside what was asked for: ignored")
    bench = look(order.python, order.toolkit, cleaned, may_fetch=not order.offline)
    stack = Stack(torch=bench.torch.version, cuda=str(bench.torch.cuda))
    house = Wheelhouse(order.wheelhouse)
    requirement = _pinned(order, house, bench, stack)
    recipe = _recipe(requirement, order.recipes)
    bad = () if order.allow_known_bad else known_bad_for(recipe, bench.toolkit.release)
    task = Task(
        requirement=requirement,
        request=order.asked.request,
        policy=replace(order.policy, known_bad=bad),
        recipe=recipe,
        bench=bench,
        listener=listener,
        offline=order.offline,
        leave_out=(order.wheelhouse,),
    )
    return _Job(order=order, task=task, house=house, stack=stack)


def _recipe(requirement: Requirement, overrides: tuple[RecipeOverride, ...]) -> Recipe:
    """Return what is known of the package: by its name, or by its repository where only that is given."""
    if isinstance(requirement, GitRequirement) and requirement.name is None:
        known = find_recipe_by_repository(requirement.url, overrides)
        if known is not None:
            return known
    return find_recipe(project_name(requirement), overrides)


def _pinned(order: Order, house: Wheelhouse, bench: Bench, stack: Stack) -> Requirement:
    """Return the requirement with its version: an unpinned name asks the index once, or takes the newest filed."""
    requirement = order.requirement
    if not isinstance(requirement, IndexRequirement) or requirement.version is not None:
        return requirement
    if not order.offline:
        return pin(requirement, python_version=bench.interpreter.version, environ=bench.environ)
    fits = {"python": bench.interpreter.abi_tag, "platform": bench.interpreter.platform_tag}
    newest = house.newest(requirement.name, requirement.specifier, stack, fits)
    if newest is None:
        raise FetchFailed(
            f"no wheel of {requirement} is filed in {house.root} for {stack.folder}",
            remedy="Leave out --offline to ask the index.",
        )
    return replace(requirement, specifier=SpecifierSet(f"=={newest}"))


_WAITING = "another process builds this wheel: waiting for it"


def _record(
    job: _Job,
    planned: Plan,
    wheel: Path,
    *,
    inspection: Inspection,
    inputs: Mapping[str, str],
    times: Mapping[str, float],
) -> Record:
    codes = sorted({*inspection.cubins, *inspection.ptx}, key=lambda code: (code.ptx, code.arch))
    asked = job.order.asked
    return Record(
        name=planned.name,
        version=inputs["version"],
        wheel=wheel.name,
        sha256=sha256_of(wheel),
        size=wheel.stat().st_size,
        fingerprint=fingerprint(inputs),
        inputs=dict(inputs),
        request={**asked.to_json(), "on_missing": job.task.policy.on_missing_for(job.task.request).value},
        pairs=tuple(report.to_json() for report in planned.outcome.pairs),
        flag_sources=tuple(source.to_json() for source in planned.outcome.sources),
        device_code=tuple(map(str, codes)),
        extensions={name: tuple(sorted(map(str, codes))) for name, codes in planned.expected.items()},
        needs=inspection.needs.to_json(),
        source={"origin": planned.source.origin, "digest": planned.source.digest},
        toolchain=job.bench.toolchain(),
        times={name: round(seconds, 3) for name, seconds in times.items()},
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        archpatch=__version__,
    )
