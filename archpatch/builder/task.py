"""What is to be built, by which rules and with which tools; and the tree whose copies are captured and compiled."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from archpatch.arch.arch import ArchRequest, DeviceCode
from archpatch.arch.selection import Policy, Request
from archpatch.builder.bench import Bench
from archpatch.builder.cmake import CUDAARCHS
from archpatch.builder.environment import BuildVariables
from archpatch.builder.events import Listener
from archpatch.builder.host import jobs
from archpatch.builder.requirement import Requirement
from archpatch.builder.sizing import Sizing
from archpatch.builder.source import SourceTree
from archpatch.builder.workplace import Workplace
from archpatch.recipes.recipe import Recipe, spell_archs
from archpatch.storage.atomic import disk_errors

__all__ = ["Site", "Task"]

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
    sizing: Sizing = field(default_factory=Sizing)
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

    @property
    def device_code(self) -> tuple[DeviceCode, ...]:
        """What an extension holds that is compiled for the request and nothing else."""
        if isinstance(self.request, ArchRequest):
            return self.request.device_code
        return tuple(map(DeviceCode, self.request.archs))

    def variables(
        self, codes: Iterable[DeviceCode], *, arch_list: str, sources: int, local_version: str | None
    ) -> dict[str, str]:
        """Return the variables that `setup.py` runs with; `codes` are for the package's own arch variable."""
        bench, host = self.bench, self.bench.host
        build = BuildVariables(
            toolkit=bench.toolkit,
            interpreter=bench.interpreter,
            recipe=self.recipe,
            nvcc_flags=self.sizing.flags(bench.toolkit),
            jobs=jobs(cores=host.cores, memory=host.memory, sources=sources, environ=bench.environ),
            tools=tuple(tool for tool in (host.ninja, host.cmake) if tool is not None),
            codes=tuple(codes),
            arch_list=arch_list,
            cmake_archs=spell_archs(CUDAARCHS, self.device_code),
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
        codes: Iterable[DeviceCode],
        *,
        arch_list: str | None = None,
        sources: int = 1,
        local_version: str | None = None,
    ) -> Workplace:
        """Return a fresh copy of the tree with `setup` as its `setup.py`, and `codes` for the package's own variable.

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
        variables = self.task.variables(codes, arch_list=arch_list, sources=sources, local_version=local_version)
        return Workplace(
            tree=tree,
            python=self.task.bench.interpreter.executable,
            environment={**variables, "TMPDIR": str(temporary)},
            log=self.log,
            listener=self.task.listener,
        )
