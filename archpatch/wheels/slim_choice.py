"""Which device code of a finished library stays: the matching rules, container by container.

A kernel runs only where its own container has code, so each container is judged by itself. What a GPU that was asked
for loads of the slimmed library is what it loaded of the whole one, or there is an error or a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from archpatch.arch.arch import Arch, ArchRequest, DeviceCode, Pair, in_order
from archpatch.arch.coverage import Verdict, best_for
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import OnMissing, Policy, Request, select
from archpatch.errors import NoMatchingArch, UsageError

__all__ = ["Choice", "Codes", "Wanted", "choose"]

#: What one container holds.
Codes = frozenset[DeviceCode]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to stay, and how strictly. Raises `UsageError` for a policy that would have to compile.

    `allow_relocatable` lets libraries pass that were linked from relocatable device code.
    """

    request: Request
    policy: Policy
    allow_relocatable: bool = False

    def __post_init__(self) -> None:
        if self.policy.on_missing is OnMissing.ADD:
            raise UsageError(
                "--on-missing add: nothing can be added to what is compiled already",
                remedy="Take error or nearest, or compile the package with archpatch build.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What stays of each kind of container, and what a person should know.

    The kinds in `idle` hold nothing that runs on what was asked for. They stay as they are: a container without any
    entry is nothing that a compiler makes.
    """

    kept: Mapping[Codes, Codes]
    idle: frozenset[Codes]
    warnings: tuple[str, ...]


def choose(linked: Iterable[Codes], others: Iterable[Codes], wanted: Wanted) -> Choice:
    """Choose among what the containers of one library hold; `others` are those that the driver does not load.

    Raises `NoMatchingArch` where the library holds nothing that is wanted, or where a container holds something for a
    GPU that was asked for, but not what was asked for.
    """
    linked = frozenset(linked)
    kinds = sorted(linked.union(others), key=in_order)
    policy = replace(wanted.policy, can_compile=False)
    general = select(_pairs(frozenset[DeviceCode]().union(*linked)), wanted.request, policy).warnings
    kept, idle, warnings = dict[Codes, Codes](), set[Codes](), [*general]
    for codes in kinds:
        request = _served(wanted.request, codes)
        if request is None:
            idle.add(codes)
        kept[codes], news = (codes, ()) if request is None else _choose_of(codes, request, policy)
        warnings += [f"where it holds {_listed(codes)}: {text}" for text in news if text not in general]
    return Choice(kept=kept, idle=frozenset(idle), warnings=tuple(warnings))


def _choose_of(codes: Codes, request: Request, policy: Policy) -> tuple[Codes, tuple[str, ...]]:
    """Return what stays of one kind of container, and warnings."""
    try:
        selection = select(_pairs(codes), request, policy)
    except NoMatchingArch as error:
        raise type(error)(f"{error.message} (in one of its containers)", remedy=error.remedy) from None
    kept = frozenset(pair.device_code for pair in selection.kept)
    return kept, (*selection.warnings, *_changes(codes, kept))


def _changes(codes: Codes, kept: Codes) -> Iterator[str]:
    """Warn of a GPU that loads a kept cubin now, and may have loaded another one of its arch before."""
    for arch in sorted({code.arch.base for code in kept if not code.ptx}):
        before, after = (_listed(best_for(among, arch)[0]) for among in (codes, kept))
        if before != after:
            yield f"a GPU of {arch} has {after} left of {before}; --gpu keeps all that it may load."


def _served(request: Request, codes: Codes) -> Request | None:
    """Return the part of the request for GPUs that run anything of `codes`, None where there is none."""
    if isinstance(request, GpuRequest):
        gpus = tuple(gpu for gpu in request.gpus if _runs(codes, gpu.arch))
        return GpuRequest(gpus=gpus) if gpus else None
    archs = tuple(arch for arch in request.archs if _runs(codes, arch.base))
    return ArchRequest(archs=archs, ptx=tuple(arch for arch in request.ptx if arch in archs)) if archs else None


def _runs(codes: Codes, arch: Arch) -> bool:
    return best_for(codes, arch)[1] is not Verdict.NO


def _pairs(codes: Codes) -> Iterator[Pair]:
    return map(Pair.of, in_order(codes))


def _listed(codes: Iterable[DeviceCode]) -> str:
    return ", ".join(map(str, in_order(codes))) or "no device code"
