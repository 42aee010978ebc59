"""An order to build one wheel, and the job that it becomes once everything is looked up that needs no source.

A hit ends here: nothing of this module fetches, imports torch or libcst, or runs nvcc, except where an unpinned name
has to be asked for at the index.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from archpatch import __version__
from archpatch.arch.gpu import Gpu, GpuRequest
from archpatch.arch.selection import Policy, Request
from archpatch.builder.asked import Asked
from archpatch.builder.bench import Bench, look
from archpatch.builder.environment import without_arch_flags
from archpatch.builder.events import Listener
from archpatch.builder.host import Host, available_cores, most_jobs
from archpatch.builder.interpreter import TorchFacts, find_python
from archpatch.builder.requirement import GitRequirement, IndexRequirement, Requirement
from archpatch.builder.sizing import Sizing
from archpatch.errors import FetchFailed, UsageError
from archpatch.recipes.recipe import (
    Recipe,
    RecipeOverride,
    digest,
    find_recipe,
    find_recipe_by_repository,
    known_bad_for,
)
from archpatch.rewrite.generation import REWRITE_GENERATION
from archpatch.storage.fingerprint import fingerprint
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.layout import Stack, code_tags
from archpatch.wheelhouse.store import Store

if TYPE_CHECKING:
    from archpatch.builder.schedule.desk import Desk

__all__ = ["Job", "Order", "Terms", "Workshop", "name_of", "open_job"]

_WAITING = "another build makes this wheel: waiting for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What orders have in common: by which rules, with what, and where the wheel is filed.

    `toolkit` is `auto`, `system`, `pypi` or a folder. `replace` lets a new wheel take the name of one with another
    fingerprint; `labelled` puts what is inside into the local version.
    """

    wheelhouse: Path
    policy: Policy = field(default_factory=Policy)
    allow_known_bad: bool = False
    toolkit: str = "auto"
    offline: bool = False
    replace: bool = True
    labelled: bool = True
    sizing: Sizing = field(default_factory=Sizing)
    recipes: tuple[RecipeOverride, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to build, for what, for which interpreter (a path or a program; None stands for this one), on what terms."""

    requirement: Requirement
    asked: Asked
    terms: Terms
    python: str | None = None


class Workshop:
    """What all orders of one command share: the environment, and what is looked at or asked for once.

    `torch` stands in for the installed one, where a key is wanted before torch is there; `fetches` is false where no
    toolkit may be fetched for what is asked. `notes` are for a person.
    Raises `UsageError` for variables that cannot be read.
    """

    def __init__(self, environ: Mapping[str, str], *, torch: TorchFacts | None = None, fetches: bool = True) -> None:
        self.environ, ignored = without_arch_flags(environ)
        self.notes = tuple(
            f"{variable} holds arch flags, which would be compiled beside what was asked for: ignored"
            for variable in ignored
        )
        self._torch, self._fetches = torch, fetches
        self._benches: dict[tuple[str | None, str], Bench] = {}
        self._desk: Desk | None = None
        # Cells are worked on in several threads.
        self._looking, self._asking = threading.Lock(), threading.Lock()
        self._pins: dict[tuple[str, str], IndexRequirement] = {}

    def bench(self, order: Order) -> Bench:
        """Return the interpreter, toolkit and machine that `order` is built with."""
        key = (order.python, order.terms.toolkit)
        with self._looking:
            if key not in self._benches:
                python = find_python(order.python)
                may_fetch = self._fetches and not order.terms.offline
                bench = look(python, order.terms.toolkit, self.environ, may_fetch=may_fetch)
                self._benches[key] = bench if self._torch is None else bench.with_torch(self._torch)
            return self._benches[key]

    @property
    def cells_at_once(self) -> int:
        """How many cells of a plan to work on at once."""
        # A single order needs no crew.
        from archpatch.crew import at_once  # noqa: PLC0415

        return at_once(available_cores(), most_jobs(self.environ))

    def desk(self, host: Host) -> Desk:
        """Return where the compilers of all orders ask for their turn on this machine."""
        # A hit compiles nothing.
        from archpatch.builder.schedule.desk import Desk  # noqa: PLC0415
        from archpatch.builder.schedule.rota import Machine  # noqa: PLC0415

        with self._looking:
            if self._desk is None:
                most = most_jobs(self.environ) or host.cores
                self._desk = Desk(Machine(cores=host.cores, memory=host.memory, jobs=most))
            return self._desk

    def pin(self, requirement: IndexRequirement, bench: Bench) -> IndexRequirement:
        """Return the requirement with the version that the index gives for it."""
        # What fetches takes as long to import as all else that a key of pinned versions needs.
        from archpatch.builder.source import pin  # noqa: PLC0415

        version = bench.interpreter.version
        key = (str(requirement), version)
        with self._asking:
            if key not in self._pins:
                self._pins[key] = pin(requirement, python_version=version, environ=bench.environ)
            return self._pins[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An order with everything looked up; `requirement` has its version, `policy` the known-bad archs."""

    order: Order
    requirement: Requirement
    request: Request
    policy: Policy
    recipe: Recipe
    bench: Bench
    house: Store
    stack: Stack

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPU types that the wheel is filed for too."""
        return self.request.gpus if isinstance(self.request, GpuRequest) else ()

    @property
    def target(self) -> str:
        """What it is for in short: `h200`, `h200-l4`, `sm80-sm90-ptx90`."""
        if isinstance(self.request, GpuRequest):
            return "-".join(gpu.name for gpu in self.request.gpus)
        return code_tags(self.request.device_code)

    def inputs(self, name: str, version: str) -> dict[str, str]:
        """Return what decides a wheel's bytes, as far as it is known without the source."""
        return {
            "package": canonicalize_name(name),
            "version": version,
            "rewrite": str(REWRITE_GENERATION),
            "recipe": digest(self.recipe),
            "local-version": "yes" if self.order.terms.labelled else "no",
            **self.order.terms.sizing.inputs(self.bench.any_toolkit),
            **self.bench.inputs(self.recipe),
        }

    def wish(self) -> dict[str, str]:
        """Return what was asked for, which decides the selected pairs once the source is known."""
        return {
            "archpatch": __version__,
            "request": f"{type(self.request).__name__} {self.request} {' '.join(map(str, self.request.archs))}",
            "on-missing": self.policy.on_missing_for(self.request).value,
            "strict": str(self.policy.strict),
            "known-bad": " ".join(str(bad.arch) for bad in self.policy.known_bad),
            "repository": "" if self.recipe.git is None else str(self.recipe.git),
        }

    def recall(self) -> Entry | None:
        """Return the intact wheel that the same request led to before; only a pinned version can be known that well."""
        key = self._memo_key()
        environ = {**self.bench.environ, **dict(self.recipe.environment)}
        return None if key is None else self.house.recall(key, environ)

    def lock(self, name: str, listener: Listener) -> AbstractContextManager[None]:
        """Hold a lock of the wheelhouse, and say so where another process has it."""
        return self.house.lock(name, waiting=lambda: listener.stage(_WAITING))

    def alone(self, listener: Listener) -> AbstractContextManager[None]:
        """Hold off others with the same request: one of them runs `setup.py`, not each."""
        key = self._memo_key()
        return nullcontext() if key is None else self.lock(key, listener)

    def remember(self, entry: Entry, variables: Mapping[str, str | None]) -> None:
        """Note which wheel this request led to, and the variables that its `setup.py` read."""
        key = self._memo_key()
        if key is not None:
            self.house.remember(key, entry, variables)

    def _memo_key(self) -> str | None:
        requirement = self.requirement
        if not isinstance(requirement, IndexRequirement) or requirement.version is None:
            return None
        pinned = {"sha256": requirement.sha256 or ""}
        return fingerprint(self.inputs(requirement.name, str(requirement.version)) | self.wish() | pinned)


def open_job(order: Order, workshop: Workshop) -> Job:
    """Look at what the machine has, pin the version, and find what is known of the package.

    Raises `UsageError` where nothing is asked for, `ToolchainError` without a CUDA build of torch or without a
    toolkit, and what `pin` raises for an unpinned name.
    """
    if order.asked.request is None:
        raise UsageError("nothing says what to build for", remedy="Name --gpu or --arch, or set TORCH_CUDA_ARCH_LIST.")
    terms, bench = order.terms, workshop.bench(order)
    stack = Stack(torch=bench.torch.version, cuda=str(bench.torch.cuda))
    house = Wheelhouse(terms.wheelhouse)
    requirement = _pinned(order, house, workshop, stack)
    recipe = _recipe(requirement, terms.recipes)
    bad = () if terms.allow_known_bad else known_bad_for(recipe, bench.nvcc_release)
    return Job(
        order=order,
        requirement=requirement,
        request=order.asked.request,
        policy=replace(terms.policy, known_bad=bad),
        recipe=recipe,
        bench=bench,
        house=house,
        stack=stack,
    )


def name_of(requirement: Requirement) -> str:
    """Return the name of what is asked for, as far as it is written down; raises as `project_name`."""
    if isinstance(requirement, IndexRequirement):
        return requirement.name
    from archpatch.builder.source import project_name  # noqa: PLC0415 - as in `Workshop.pin`

    return project_name(requirement)


def _recipe(requirement: Requirement, overrides: tuple[RecipeOverride, ...]) -> Recipe:
    """Return what is known of the package: by its name, or by its repository where only that is given."""
    if isinstance(requirement, GitRequirement) and requirement.name is None:
        known = find_recipe_by_repository(requirement.url, overrides)
        if known is not None:
            return known
    return find_recipe(name_of(requirement), overrides)


def _pinned(order: Order, house: Store, workshop: Workshop, stack: Stack) -> Requirement:
    """Return the requirement with its version: an unpinned name asks the index once, or takes the newest filed."""
    requirement, bench = order.requirement, workshop.bench(order)
    if not isinstance(requirement, IndexRequirement) or requirement.version is not None:
        return requirement
    if not order.terms.offline:
        return workshop.pin(requirement, bench)
    fits = {"python": bench.interpreter.abi_tag, "platform": bench.interpreter.platform_tag}
    newest = house.newest(requirement.name, requirement.specifier, stack, fits)
    if newest is None:
        raise FetchFailed(
            f"no wheel of {requirement} is filed in {order.terms.wheelhouse} for {stack.folder}",
            remedy="Leave out --offline to ask the index.",
        )
    return replace(requirement, specifier=SpecifierSet(f"=={newest}"))
