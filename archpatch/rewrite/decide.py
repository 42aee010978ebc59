"""From what a file has and what was asked for: what stays, goes and is added, and whether that is proven."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from archpatch.arch.arch import Arch, ArchRequest, DeviceCode, Pair
from archpatch.arch.coverage import Verdict, runs_on
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import Action, OnMissing, Policy, Request, Selection, select
from archpatch.rewrite.outcome import Refusal
from archpatch.rewrite.rows import Group, Unit

__all__ = ["Fate", "decide", "doubts"]


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one flag: the pairs that it keeps, and those that are added beside it."""

    unit: Unit
    kept: tuple[Pair, ...]
    added: tuple[Pair, ...] = ()

    @property
    def dropped(self) -> tuple[Pair, ...]:
        """The pairs that go."""
        return tuple(pair for pair in self.unit.pairs if pair not in self.kept)

    def action(self, pair: Pair) -> Action:
        """Return what becomes of one of its pairs."""
        if pair in self.kept:
            return "kept"
        return "dropped" if pair in self.unit.pairs else "added"


def decide(units: Sequence[Unit], request: Request, policy: Policy) -> tuple[Selection, tuple[Fate, ...]]:
    """Select once over all pairs of the file, then settle each flag; raises `NoMatchingArch`."""
    selection = select((pair for unit in units for pair in unit.pairs), request, policy)
    kept = set(selection.kept)
    fates = [Fate(unit, tuple(pair for pair in unit.pairs if pair in kept)) for unit in units]
    for group in dict.fromkeys(unit.row.group for unit in units):
        _complete(fates, group, request, policy, selection)
    return selection, tuple(fates)


def doubts(fates: Sequence[Fate], request: Request, policy: Policy, lines: Mapping[int, int]) -> Iterator[Refusal]:
    """Yield what the text cannot prove about `fates`; `lines` maps the `id` of a literal to its line."""
    yield from _groups_in_doubt(fates, lines)
    depends = isinstance(request, GpuRequest) or policy.on_missing_for(request) is OnMissing.NEAREST
    if depends and policy.on_missing_for(request) is not OnMissing.ADD:
        archs = {arch.base for arch in request.archs}
        bad = {entry.arch.base for entry in policy.known_bad}
        yield from _conditions_in_doubt(fates, sorted(archs), bad, lines)


def _complete(fates: list[Fate], group: Group, request: Request, policy: Policy, selection: Selection) -> None:
    """Add to the flags of one group what was asked for and is not there: PTX beside its cubin, or anything at all."""
    mine = [index for index, fate in enumerate(fates) if fate.unit.row.group == group]
    present = {pair.device_code for index in mine for pair in fates[index].kept}
    add = policy.on_missing_for(request) is OnMissing.ADD
    for code in sorted(selection.device_code - present):
        if not add and not (isinstance(request, ArchRequest) and code.ptx and code.arch in request.ptx):
            continue
        beside = [index for index in mine if _holds(fates[index], DeviceCode(code.arch)) and code.ptx]
        if not beside and add:
            beside = [min(reversed(mine), key=lambda index: len(fates[index].unit.row.branches))]
        for index in beside:
            fate = fates[index]
            fates[index] = Fate(fate.unit, fate.kept, (*fate.added, Pair.of(code)))


def _holds(fate: Fate, code: DeviceCode) -> bool:
    return any(pair.device_code == code for pair in (*fate.kept, *fate.added))


def _groups_in_doubt(fates: Sequence[Fate], lines: Mapping[int, int]) -> Iterator[Refusal]:
    """Yield each list that loses all while another keeps some: they may go to two extensions."""
    first: dict[Group, Fate] = {}
    fed: dict[Group, Fate] = {}
    for fate in fates:
        first.setdefault(fate.unit.row.group, fate)
        if fate.kept or fate.added:
            fed.setdefault(fate.unit.row.group, fate)
    for group, fate in first.items():
        if group not in fed and fed:
            line, other = _line(fate, lines), _line(next(iter(fed.values())), lines)
            yield Refusal(
                line=line,
                shape="group-loses-all",
                reason=f"no flag of the list at line {line} remains, while some at line {other} do; "
                "they may belong to different extensions",
                remedy="Ask for archs that both have, or use --on-missing add.",
            )


def _conditions_in_doubt(
    fates: Sequence[Fate], archs: Sequence[Arch], bad: Container[Arch], lines: Mapping[int, int]
) -> Iterator[Refusal]:
    """Yield where the chosen flag may be absent while one that would do instead is dropped.

    `bad` are the archs known as bad: their cubins are no alternative to anything.
    """
    for fate in fates:
        rivals = [pair for pair in fate.dropped if pair.code.ptx or pair.code.arch.base not in bad]
        missed = [
            (arch, pair.device_code)
            for arch in archs
            for pair in rivals
            if _runs(pair, arch) and not _always_beside(fate, fates, arch)
        ]
        if missed:
            arch, rival = missed[0]
            # It exists: a rival is dropped for nothing but a better one, and that one runs on the arch too.
            chosen, code = next(
                (other, pair.device_code) for other in fates for pair in other.kept if _runs(pair, arch)
            )
            yield Refusal(
                line=_line(fate, lines),
                shape="conditional-nearest",
                reason=f"a GPU of {arch} would take {code} (line {_line(chosen, lines)}) before {rival}, "
                "but under a condition that may be false",
                remedy=f"Name the arch that this toolkit compiles: --arch {code.arch}, or --arch {rival.arch}.",
            )


def _always_beside(fate: Fate, fates: Sequence[Fate], arch: Arch) -> bool:
    """Whether something that `arch` runs is kept in the same list under no further condition."""
    row = fate.unit.row
    return any(
        other.unit.row.group == row.group
        and row.branches[: len(other.unit.row.branches)] == other.unit.row.branches
        and any(_runs(pair, arch) for pair in other.kept)
        for other in fates
    )


def _runs(pair: Pair, arch: Arch) -> bool:
    return runs_on(pair.device_code, arch) is not Verdict.NO


def _line(fate: Fate, lines: Mapping[int, int]) -> int:
    return lines[id(fate.unit.nodes[0])]
