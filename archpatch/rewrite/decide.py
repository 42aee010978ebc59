"""From what a file has and what was asked for: what stays, goes and is added, and whether that is proven."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, product
from typing import Final

from archpatch.arch.arch import ArchRequest, DeviceCode, Pair
from archpatch.arch.gencode import ARCH_OPTIONS
from archpatch.arch.selection import Action, OnMissing, Policy, Request, Selection, select
from archpatch.errors import NoMatchingArch
from archpatch.rewrite.outcome import FlagSource
from archpatch.rewrite.rows import Branch, Group, Unit

__all__ = ["Fate", "conditional", "decide", "doubts", "needs_no_worlds"]

#: With more conditions around the flags of one list, the guard is cheaper than to go through all combinations.
_MOST_CONDITIONS: Final = 8


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


def doubts(fates: Sequence[Fate], request: Request, policy: Policy, lines: Mapping[int, int]) -> Iterator[FlagSource]:
    """Yield where `fates` may differ from what the rules give for one extension alone, as `setup.py` runs.

    The choice was made over all pairs of the file; a list of its own may need another. And what is chosen may stand
    under a condition that is false. `lines` maps the `id` of a literal to its line.
    """
    groups: dict[Group, list[Fate]] = {}
    for fate in fates:
        groups.setdefault(fate.unit.row.group, []).append(fate)
    for group in groups.values():
        line = min(lines[id(fate.unit.node)] for fate in group)
        if len({fate.unit.pairs for fate in group if fate.unit.flag.option in ARCH_OPTIONS}) > 1:
            yield FlagSource(line=line, shape="several-archs", reason="of several -arch, nvcc takes the last one alone")
        elif not _is_right(group, request, policy):
            yield FlagSource(line=line, shape="group", reason="alone, the list at this line needs another choice")
        elif not needs_no_worlds(request, policy) and not _is_right_in_all_worlds(group, request, policy):
            yield FlagSource(line=line, shape="conditional", reason="what is chosen depends on conditions")


def conditional(fates: Sequence[Fate]) -> Iterator[tuple[Fate, Pair]]:
    """Yield what remains only under a condition that other flags of its list do without: each device code once."""
    shared = {
        fate.unit.row.group: _shared([other for other in fates if other.unit.row.group == fate.unit.row.group])
        for fate in fates
    }
    remaining: dict[DeviceCode, list[tuple[Fate, Pair]]] = {}
    for fate in fates:
        for pair in (*fate.kept, *fate.added):
            remaining.setdefault(pair.device_code, []).append((fate, pair))
    for found in remaining.values():
        if all(shared[fate.unit.row.group] < set(fate.unit.row.branches) for fate, _ in found):
            yield found[0]


def _shared(group: Sequence[Fate]) -> set[Branch]:
    """Return the conditions that stand around all flags of a group."""
    return set(group[0].unit.row.branches).intersection(*(fate.unit.row.branches for fate in group))


def needs_no_worlds(request: Request, policy: Policy) -> bool:
    """Whether each pair stays or goes whatever other pairs there are.

    Where a condition is false and nothing remains, capture finds an extension that has lost all.
    """
    is_plain = isinstance(request, ArchRequest) and not request.ptx and not policy.strict
    return is_plain and policy.on_missing_for(request) is OnMissing.ERROR


def _is_right(present: Iterable[Fate], request: Request, policy: Policy, *, may_lose_all: bool = False) -> bool:
    """Whether the flags that are `present` together become what the rules give for their pairs."""
    present = list(present)
    pairs = [pair for fate in present for pair in fate.unit.pairs]
    remaining = {pair.device_code for fate in present for pair in (*fate.kept, *fate.added)}
    try:
        return not pairs or select(pairs, request, policy).device_code == remaining
    except NoMatchingArch:
        return may_lose_all and not remaining


def _is_right_in_all_worlds(group: Sequence[Fate], request: Request, policy: Policy) -> bool:
    """Whether the group becomes what the rules give, whichever of the conditions around its flags are true."""
    shared = _shared(group)
    needs = [frozenset(fate.unit.row.branches) - shared for fate in group]
    conditions = sorted(frozenset[Branch]().union(*needs))
    if len(conditions) > _MOST_CONDITIONS:
        return False
    worlds = (set(compress(conditions, world)) for world in product((True, False), repeat=len(conditions)))
    seen = {tuple(need <= world for need in needs) for world in worlds}
    return all(_is_right(compress(group, there), request, policy, may_lose_all=True) for there in seen)


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
