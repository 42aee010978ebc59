"""From a requirement to a tree that is rewritten and known to compile for what was asked: all before nvcc runs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from archpatch.arch.arch import Arch, ArchRequest, DeviceCode
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import OnMissing, Policy, Request, Selection, select
from archpatch.builder.bench import Bench
from archpatch.builder.capture import Capture, capture
from archpatch.builder.environment import BuildVariables
from archpatch.builder.events import Listener
from archpatch.builder.host import jobs
from archpatch.builder.nets import Expected, check_flags
from archpatch.builder.requirement import GitRequirement, IndexRequirement, Requirement
from archpatch.builder.source import SourceTree, prepare
from archpatch.builder.toolchain import Needs, require
from archpatch.builder.workplace import Workplace
from archpatch.errors import FetchFailed, NoSources
from archpatch.recipes.recipe import Recipe
from archpatch.rewrite.outcome import Refused, Rewritten, Unchanged
from archpatch.rewrite.source import rewrite_source

__all__ = ["Plan", "Task", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be planned: what to fetch, for what, by which rules and with which tools.

    `leave_out` are paths in a project's folder that are no part of it, such as the wheelhouse.
    """

    requirement: Requirement
    request: Request
    policy: Policy
    recipe: Recipe
    bench: Bench
    listener: Listener
    offline: bool = False
    leave_out: tuple[Path, ...] = ()

    @property
    def arch_list(self) -> str:
        """The request as torch reads it, for extensions that bring no pairs of their own."""
        if isinstance(self.request, ArchRequest):
            return str(self.request)
        return ";".join(map(str, self.request.archs))

    def variables(self, selection: Selection | None, *, sources: int, local_version: str | None) -> dict[str, str]:
        """Return the variables that `setup.py` runs with."""
        bench, host = self.bench, self.bench.host
        build = BuildVariables(
            toolkit=bench.toolkit,
            interpreter=bench.interpreter,
            recipe=self.recipe,
            jobs=jobs(cores=host.cores, memory=host.memory, sources=sources, environ=bench.environ),
            tools=() if host.ninja is None else (host.ninja,),
            archs=self._kept_archs(selection),
            arch_list=self.arch_list,
            local_version=local_version,
        )
        return build.apply(bench.environ)

    def _kept_archs(self, selection: Selection | None) -> tuple[Arch, ...]:
        if selection is None:
            return self.request.archs
        return tuple(sorted({code.arch for code in selection.device_code if not code.ptx}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A tree that is ready to compile, and all that is known of it.

    `expected` is the device code that each extension must hold in the end; `times` are seconds.
    """

    task: Task
    source: SourceTree
    outcome: Rewritten | Unchanged
    captured: Capture
    expected: Expected
    log: Path
    times: Mapping[str, float]

    @property
    def name(self) -> str:
        """The package's name as `setup()` has it."""
        return self.captured.name or self.source.name

    @property
    def device_code(self) -> frozenset[DeviceCode]:
        """What the wheel will hold in all."""
        return frozenset(code for codes in self.expected.values() for code in codes)

    def inputs(self) -> dict[str, str]:
        """Return what of the plan decides the bytes of the wheel: the source, and the pairs per extension."""
        pairs = {extension.name: sorted(map(str, extension.pairs)) for extension in self.captured.cuda_extensions}
        return {"source": self.source.digest, "pairs": json.dumps(pairs, sort_keys=True)}

    def workplace(self, *, local_version: str | None) -> Workplace:
        """Return where the wheel is compiled, with the local version that it shall have."""
        selection, sources = self.outcome.selection, self.captured.sources
        variables = self.task.variables(selection, sources=sources, local_version=local_version)
        return _workplace(self.task, self.source, variables, self.log)


def plan(task: Task, scratch: Path, log: Path) -> Plan:
    """Fetch, rewrite and capture in the folder `scratch`; raises before anything is compiled where it would fail.

    Where an sdist lacks the sources that it names, the recipe's repository is taken instead.
    """
    require(task.bench.findings(_needs(task)))
    try:
        return _plan(task, task.requirement, scratch / "source", log)
    except NoSources as error:
        repository = _repository(task)
        if repository is None:
            raise
        task.listener.warn(f"{error.message}; taking {repository} instead")
        try:
            return _plan(task, repository, scratch / "repository", log)
        except FetchFailed as failure:
            raise NoSources(f"{error.message}; and {failure.message}", remedy=failure.remedy) from error


def _needs(task: Task) -> Needs:
    gpus = task.request.gpus if isinstance(task.request, GpuRequest) else ()
    return Needs(requirements=task.recipe.build_requires, gpus=gpus)


def _repository(task: Task) -> GitRequirement | None:
    """Return the repository at the tag of the release that was asked for, where a recipe knows it."""
    requirement, git = task.requirement, task.recipe.git
    if not isinstance(requirement, IndexRequirement) or requirement.version is None or git is None or task.offline:
        return None
    return GitRequirement(name=requirement.name, url=git.url, ref=git.tag_for(str(requirement.version)))


def _plan(task: Task, requirement: Requirement, folder: Path, log: Path) -> Plan:
    started = time.monotonic()
    task.listener.stage(f"fetching {requirement}")
    source = prepare(
        requirement,
        folder,
        offline=task.offline,
        python_version=task.bench.interpreter.version,
        leave_out=task.leave_out,
        environ=task.bench.environ,
    )
    fetched = time.monotonic()
    setup = source.path / "setup.py"
    original = setup.read_bytes()
    task.listener.stage(f"reading {source.name} {source.version or ''}".rstrip())
    look = _Look(task, source, original, log)
    outcome = look.rewrite()
    if isinstance(outcome, Rewritten):
        setup.write_bytes(outcome.source)
    captured = look.capture(outcome.selection)
    expected = check_flags(
        captured,
        request=task.request,
        selection=outcome.selection,
        toolkit=task.bench.toolkit,
        unpatched=look.capture_original,
    )
    times = {"fetch": fetched - started, "capture": time.monotonic() - fetched}
    return Plan(task=task, source=source, outcome=outcome, captured=captured, expected=expected, log=log, times=times)


@dataclass(frozen=True, slots=True)
class _Look:
    """A fetched tree that is being rewritten and captured."""

    task: Task
    source: SourceTree
    original: bytes
    log: Path

    def rewrite(self) -> Rewritten | Unchanged:
        """Rewrite for the request; where the text leaves open which pairs this toolkit has, look, and ask for these."""
        outcome = self.rewrite_for(self.task.request, self.task.policy)
        if isinstance(outcome, Refused) and _depends_on_conditions(outcome):
            exact = self.exact_request()
            if exact is not None:
                self.task.listener.stage(f"with this toolkit {self.task.request} takes {exact}")
                outcome = self.rewrite_for(exact, Policy(on_missing=OnMissing.ERROR))
        if isinstance(outcome, Refused):
            raise outcome.error()
        for warning in outcome.selection.warnings if outcome.selection else ():
            self.task.listener.warn(warning)
        return outcome

    def rewrite_for(self, request: Request, policy: Policy) -> Rewritten | Unchanged | Refused:
        standard = self.task.bench.torch.cxx_standard
        return rewrite_source(self.original, request, policy=policy, cxx_standard=standard)

    def exact_request(self) -> ArchRequest | None:
        """Return the archs that the request takes of the pairs that this toolkit really compiles, if all agree."""
        extensions = [extension for extension in self.capture_original().cuda_extensions if extension.has_own_pairs]
        chosen = {select(each.pairs, self.task.request, self.task.policy).device_code for each in extensions}
        if len(chosen) != 1:
            return None
        codes = chosen.pop()
        archs = tuple(sorted(code.arch for code in codes if not code.ptx))
        ptx = tuple(sorted(code.arch for code in codes if code.ptx))
        return ArchRequest(archs=archs, ptx=ptx) if set(ptx) <= set(archs) else None

    def capture(self, selection: Selection | None) -> Capture:
        variables = self.task.variables(selection, sources=1, local_version=None)
        return capture(_workplace(self.task, self.source, variables, self.log))

    def capture_original(self) -> Capture:
        """Capture the `setup.py` as it came, and put back the one that is there."""
        setup = self.source.path / "setup.py"
        there = setup.read_bytes()
        setup.write_bytes(self.original)
        try:
            return self.capture(None)
        finally:
            setup.write_bytes(there)


def _depends_on_conditions(outcome: Refused) -> bool:
    """Tell whether the text failed only for want of knowing which pairs this toolkit has."""
    return bool(outcome.refusals) and all(refusal.shape == "conditional-nearest" for refusal in outcome.refusals)


def _workplace(task: Task, source: SourceTree, variables: Mapping[str, str], log: Path) -> Workplace:
    python = task.bench.interpreter.executable
    return Workplace(tree=source.path, python=python, environment=variables, log=log, listener=task.listener)
