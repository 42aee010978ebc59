"""From a requirement to a tree that is rewritten and known to compile for what was asked: all before nvcc runs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archpatch.arch.arch import DeviceCode, Pair
from archpatch.arch.gpu import GpuRequest
from archpatch.builder.capture import Capture, build_requirements
from archpatch.builder.cmake import ByVariable
from archpatch.builder.host import jobs
from archpatch.builder.nets import Expected
from archpatch.builder.reading import Reading
from archpatch.builder.requirement import GitRequirement, IndexRequirement, Requirement
from archpatch.builder.source import SourceTree, prepare
from archpatch.builder.task import Site, Task
from archpatch.builder.toolchain import Needs, require
from archpatch.builder.workplace import Workplace
from archpatch.errors import FetchFailed, NoSources
from archpatch.rewrite.outcome import Rewritten, Unchanged

__all__ = ["Plan", "plan"]

#: Variables that are set for each build, or that say where things are and not what is compiled.
_OURS = (
    *("PATH", "HOME", "USER", "LOGNAME", "PWD", "TMPDIR", "CUDA_HOME", "CUDA_PATH", "MAX_JOBS", "NINJA_STATUS"),
    *("PYTHONUNBUFFERED", "TORCH_CUDA_ARCH_LIST", "CUDAARCHS", "CMAKE_BUILD_PARALLEL_LEVEL"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A tree that is ready to compile, and all that is known of it.

    `codes` are for the package's own arch variable; `expected` is the device code that each extension must hold in the
    end, and `by_cmake` tells what of it CMake makes; `times` are seconds.
    """

    site: Site
    outcome: Rewritten | Unchanged
    codes: tuple[DeviceCode, ...]
    captured: Capture
    expected: Expected
    by_cmake: tuple[ByVariable, ...]
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
    def flag_sources(self) -> tuple[dict[str, Any], ...]:
        """What else than the text decides about archs, as a record has it: the places of the guard, and CMake's."""
        guarded = (source.to_json() for source in self.outcome.sources)
        return (*guarded, *(made.to_json() for made in self.by_cmake))

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
        for made in self.by_cmake:
            pairs[made.name] = sorted({*pairs.get(made.name, ()), *map(str, map(Pair.of, made.codes))})
        needs = (*build_requirements(self.source.path), *self.site.task.recipe.build_requires)
        return {
            "source": self.source.digest,
            "pairs": json.dumps(pairs, sort_keys=True),
            **({"cmake": self.captured.cmake} if self.captured.cmake else {}),
            "flags": hashlib.sha256(self.captured.flags.encode("utf-8", "surrogateescape")).hexdigest(),
            **{f"environment.{name}": value for name, value in self.variables_read.items() if value is not None},
            **self.site.task.bench.versions(needs),
        }

    def workplace(self, *, local_version: str | None) -> Workplace:
        """Return where the wheel is compiled, with the local version that it shall have."""
        # How many files CMake compiles is not known before it runs.
        sources = self.site.task.bench.host.cores if self.captured.cmake_commands else self.captured.sources
        return self.site.workplace(self.outcome.source, self.codes, sources=sources, local_version=local_version)


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
    reading = Reading(site, (source.path / "setup.py").read_bytes())
    outcome = reading.rewrite()
    codes = reading.codes_for_variable(outcome)
    outcome, captured = reading.capture(outcome, codes)
    by_cmake = reading.check_cmake(captured, codes)
    expected = {made.name: made.codes for made in by_cmake}
    for name, held in reading.check(outcome, captured).items():
        expected[name] = held | expected.get(name, frozenset())
    pairs = [pair for extension in captured.cuda_extensions for pair in extension.pairs]
    pairs += [Pair.of(code) for made in by_cmake for code in sorted(made.codes)]
    require(task.bench.findings(Needs(pairs=tuple(dict.fromkeys(pairs)))))
    reading.tell_untold(outcome, captured)
    return Plan(
        site=site,
        outcome=outcome,
        codes=codes,
        captured=captured,
        expected=expected,
        by_cmake=by_cmake,
        times={"fetch": fetched - started, "capture": time.monotonic() - fetched},
    )
