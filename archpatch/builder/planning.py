"""From a requirement to a tree that is rewritten and known to compile for what was asked: all before nvcc runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from archpatch.arch.arch import Arch, ArchRequest, DeviceCode
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import Policy, Request, select
from archpatch.builder.bench import Bench
from archpatch.builder.capture import Capture, build_requirements, capture
from archpatch.builder.environment import BuildVariables
from archpatch.builder.events import Listener
from archpatch.builder.host import jobs
from archpatch.builder.nets import Expected, check_flags, check_guarded, selected_at_all, untold
from archpatch.builder.requirement import GitRequirement, IndexRequirement, Requirement
from archpatch.builder.source import SourceTree, prepare
from archpatch.builder.toolchain import Needs, require
from archpatch.builder.workplace import Workplace
from archpatch.errors import FetchFailed, NoMatchingArch, NoSources
from archpatch.recipes.recipe import Recipe
from archpatch.rewrite.outcome import Refused, Rewritten, Unchanged
from archpatch.rewrite.source import rewrite_source
from archpatch.storage.atomic import disk_errors

__all__ = ["Plan", "Site", "Task", "plan"]


#: Variables that are set for each build, or that say where things are and not what is compiled.
_OURS = (
    *("PATH", "HOME", "USER", "LOGNAME", "PWD", "TMPDIR", "CUDA_HOME", "CUDA_PATH", "MAX_JOBS", "NINJA_STATUS"),
    *("PYTHONUNBUFFERED", "TORCH_CUDA_ARCH_LIST"),
)


#: Archs that torch 2.14 does not take in an arch list, although nvcc has or had them.
_NOT_IN_TORCH = ((8, 8), (10, 1))


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

    @property
    def any_arch_list(self) -> str:
        """The request as every torch reads it, for a look at what `setup.py` brings of its own."""
        known = {str(arch.base) for arch in self.request.archs if (arch.major, arch.minor) not in _NOT_IN_TORCH}
        return ";".join(sorted(known)) or "8.0"

    def variables(
        self, archs: Iterable[Arch], *, arch_list: str, sources: int, local_version: str | None
    ) -> dict[str, str]:
        """Return the variables that `setup.py` runs with; `archs` are for the package's own arch variable."""
        bench, host = self.bench, self.bench.host
        build = BuildVariables(
            toolkit=bench.toolkit,
            interpreter=bench.interpreter,
            recipe=self.recipe,
            jobs=jobs(cores=host.cores, memory=host.memory, sources=sources, environ=bench.environ),
            tools=() if host.ninja is None else (host.ninja,),
            archs=tuple(archs),
            arch_list=arch_list,
            local_version=local_version,
        )
        return build.apply(bench.environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A fetched tree, of which copies are captured and compiled; it stays as it came.

    Compilers get a temporary folder of their own beside the tree, so that what a killed one leaves goes with it.
    """

    task: Task
    source: SourceTree
    log: Path

    def workplace(
        self,
        setup: bytes,
        archs: Iterable[Arch],
        *,
        arch_list: str | None = None,
        sources: int = 1,
        local_version: str | None = None,
    ) -> Workplace:
        """Return a fresh copy of the tree with `setup` as its `setup.py`, and the archs for the package's own variable.

        Fresh each time: what an earlier run generated or compiled must not get into the wheel. The place is the same,
        so that what was captured is what is compiled.
        """
        tree, temporary = self.source.path.with_name("run"), self.source.path.with_name("tmp")
        with disk_errors(tree):
            temporary.mkdir(exist_ok=True)
            shutil.rmtree(tree, ignore_errors=True)
            shutil.copytree(self.source.path, tree, symlinks=True)
            (tree / "setup.py").write_bytes(setup)
        arch_list = self.task.arch_list if arch_list is None else arch_list
        variables = self.task.variables(archs, arch_list=arch_list, sources=sources, local_version=local_version)
        return Workplace(
            tree=tree,
            python=self.task.bench.interpreter.executable,
            environment={**variables, "TMPDIR": str(temporary)},
            log=self.log,
            listener=self.task.listener,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A tree that is ready to compile, and all that is known of it.

    `archs` are for the package's own arch variable; `expected` is the device code that each extension must hold in the
    end; `times` are seconds.
    """

    site: Site
    outcome: Rewritten | Unchanged
    archs: tuple[Arch, ...]
    captured: Capture
    expected: Expected
    times: Mapping[str, float]

    @property
    def source(self) -> SourceTree:
        """The tree and where it comes from."""
        return self.site.source

    @property
    def name(self) -> str:
        """The package's name as `setup()` has it."""
        return self.captured.name or self.source.name

    @property
    def device_code(self) -> frozenset[DeviceCode]:
        """What the wheel will hold in all."""
        return frozenset(code for codes in self.expected.values() for code in codes)

    @property
    def variables_read(self) -> dict[str, str | None]:
        """The variables that the project's own files read, less those that are set here for each build."""
        recipe, environ = self.site.task.recipe, self.site.task.bench.environ
        ours = {*_OURS, recipe.local_version, recipe.arch_variable and recipe.arch_variable.name}
        forced = dict(recipe.environment)
        return {name: forced.get(name, environ.get(name)) for name in self.captured.environment if name not in ours}

    def inputs(self) -> dict[str, str]:
        """Return what of the plan decides the bytes of the wheel: the source, and all that its `setup.py` came to."""
        pairs = {extension.name: sorted(map(str, extension.pairs)) for extension in self.captured.cuda_extensions}
        needs = (*build_requirements(self.source.path), *self.site.task.recipe.build_requires)
        return {
            "source": self.source.digest,
            "pairs": json.dumps(pairs, sort_keys=True),
            "flags": hashlib.sha256(self.captured.flags.encode("utf-8", "surrogateescape")).hexdigest(),
            **{f"environment.{name}": value for name, value in self.variables_read.items() if value is not None},
            **self.site.task.bench.versions(needs),
        }

    def workplace(self, *, local_version: str | None) -> Workplace:
        """Return where the wheel is compiled, with the local version that it shall have."""
        sources = self.captured.sources
        return self.site.workplace(self.outcome.source, self.archs, sources=sources, local_version=local_version)


def plan(task: Task, scratch: Path, log: Path) -> Plan:
    """Fetch, rewrite and capture in the folder `scratch`; raises before anything is compiled where it would fail.

    Where an sdist lacks the sources that it names, the recipe's repository is taken instead.
    """
    require(task.bench.findings(_needs(task)))
    # A MAX_JOBS that is no number shows now, and not after the fetch.
    jobs(cores=1, memory=0, sources=1, environ=task.bench.environ)
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
    if requirement.sha256 is not None:
        # A tag can move; whoever pins bytes gets these bytes or nothing.
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
    task.listener.stage(f"reading {source.name} {source.version or ''}".rstrip())
    require(task.bench.findings(Needs(requirements=build_requirements(source.path))))
    site = Site(task=task, source=source, log=log)
    reading = _Reading(site, (source.path / "setup.py").read_bytes())
    outcome = reading.rewrite()
    archs = reading.archs_for_variable(outcome)
    captured, expected = reading.check(outcome, archs)
    pairs = tuple(pair for extension in captured.cuda_extensions for pair in extension.pairs)
    require(task.bench.findings(Needs(pairs=tuple(dict.fromkeys(pairs)))))
    _tell_untold(task, outcome, captured)
    times = {"fetch": fetched - started, "capture": time.monotonic() - fetched}
    return Plan(site=site, outcome=outcome, archs=archs, captured=captured, expected=expected, times=times)


@dataclass(frozen=True)  # no slots: cached_property needs a __dict__
class _Reading:
    """A `setup.py` that is being rewritten and captured; `original` are its bytes as they came."""

    site: Site
    original: bytes

    def rewrite(self) -> Rewritten | Unchanged:
        """Rewrite for the request; raises where it is refused."""
        task = self.site.task
        standard = task.bench.torch.cxx_standard
        outcome = rewrite_source(self.original, task.request, policy=task.policy, cxx_standard=standard)
        if isinstance(outcome, Refused):
            raise outcome.error()
        for warning in outcome.selection.warnings if outcome.selection else ():
            task.listener.warn(warning)
        return outcome

    def archs_for_variable(self, outcome: Rewritten | Unchanged) -> tuple[Arch, ...]:
        """Return what the package's own arch variable has to name, so that nothing that stays is switched off by it."""
        task = self.site.task
        if outcome.guarded:
            codes = selected_at_all(self.before, task.request, task.policy)
            own = frozenset(code for each in self.before.cuda_extensions for code in each.device_code)
        elif outcome.selection is not None:
            codes = outcome.selection.device_code
            own = codes - {pair.device_code for pair in outcome.selection.added}
        else:
            return task.request.archs
        if any(code not in own and not code.ptx for code in codes):
            # The package does not know an arch that it gets: with the variable unset, nothing is switched off.
            return ()
        return tuple(sorted(code.arch for code in codes if not code.ptx)) or task.request.archs

    def check(self, outcome: Rewritten | Unchanged, archs: tuple[Arch, ...]) -> tuple[Capture, Expected]:
        """Capture the rewritten file, and check what nvcc would be told against what has to come of the original."""
        task = self.site.task
        captured = capture(self.site.workplace(outcome.source, archs))
        if outcome.guarded:
            self.tell_missing(self.before)
            return captured, check_guarded(captured, self.before, request=task.request, policy=task.policy)
        return captured, check_flags(
            captured,
            request=task.request,
            policy=task.policy,
            selection=outcome.selection,
            unpatched=lambda: self.before,
        )

    def tell_missing(self, original: Capture) -> None:
        """Warn of what a guard will leave out, per extension."""
        task = self.site.task
        for extension in original.cuda_extensions:
            if extension.has_own_pairs:
                with contextlib.suppress(NoMatchingArch):
                    for warning in select(extension.pairs, task.request, task.policy).warnings:
                        task.listener.warn(f"extension {extension.name}: {warning}")

    @cached_property
    def before(self) -> Capture:
        """What the `setup.py` as it came would compile, with the package's own arch variable unset; taken once."""
        return capture(self.site.workplace(self.original, (), arch_list=self.site.task.any_arch_list))


def _tell_untold(task: Task, outcome: Rewritten | Unchanged, captured: Capture) -> None:
    """Warn of pairs that stay in the text and emit nothing here; raises where everything asked for has to be there."""
    missing = untold(captured, outcome.selection) if outcome.selection else frozenset()
    if not missing:
        return
    lines = {report.pair.device_code: report.line for report in outcome.pairs}
    told = ", ".join(f"{code} (line {lines.get(code, '?')})" for code in sorted(missing))
    message = f"{told} stands in setup.py under a condition that CUDA {task.bench.toolkit.release} makes false"
    if task.policy.strict:
        raise NoMatchingArch(message, remedy="Use another toolkit (--toolkit), or leave out --strict.")
    task.listener.warn(f"{message}: left out")
