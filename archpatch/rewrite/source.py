"""`rewrite_source`: read all, decide all, then write once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from archpatch.arch.selection import Policy, Request, Selection
from archpatch.errors import NoMatchingArch
from archpatch.rewrite.appends import append_rows
from archpatch.rewrite.cxx_standard import mentions_standard
from archpatch.rewrite.decide import Fate, decide, doubts
from archpatch.rewrite.literals import text_of
from archpatch.rewrite.lookups import is_looked_at
from archpatch.rewrite.outcome import Outcome, PairReport, Refusal, Refused, Rewritten, Unchanged
from archpatch.rewrite.refusals import out_of_reach, refusal, shape_of
from archpatch.rewrite.rows import Find, Row, Stray, Unit
from archpatch.rewrite.sequences import sequence_rows
from archpatch.rewrite.spelling import is_arch_flag
from archpatch.rewrite.tree import Edits, Spot, Tree, Unreadable, parse, strings
from archpatch.rewrite.write import write_flags, write_standards

__all__ = ["rewrite_source"]


def rewrite_source(
    source: bytes, request: Request | None, *, policy: Policy, cxx_standard: int | None = None
) -> Outcome:
    """Rewrite a `setup.py` so that its own arch flags are what `request` asks for.

    `request` None leaves the arch flags alone. `cxx_standard` (20 for C++20) is what a lower pinned standard is raised
    to. Never raises: what cannot be read or proven is `Refused`, with the source as it was.
    """
    try:
        return _rewrite(_read(parse(source)), request, policy, cxx_standard)
    except Unreadable as error:
        return Refused(source=source, refusals=(refusal("syntax", error.line, detail=error.reason),))
    except RecursionError:
        return Refused(source=source, refusals=(refusal("too-deep", 1),))


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """What was found in a file.

    `spots` and `lines` map the `id` of a literal to where it stands and to its line; `is_exact` is false where libcst
    does not give the file back byte for byte.
    """

    tree: Tree
    units: tuple[Unit, ...]
    strays: tuple[Stray, ...]
    standards: tuple[Find, ...]
    spots: Mapping[int, Spot]
    lines: Mapping[int, int]
    is_exact: bool

    def refused(self, refusals: Sequence[Refusal] = (), no_match: NoMatchingArch | None = None) -> Refused:
        reports = tuple(self.reports([Fate(unit, unit.pairs) for unit in self.units], None))
        distinct = {(item.line, item.shape): item for item in refusals}
        in_order = tuple(distinct[key] for key in sorted(distinct))
        return Refused(source=self.tree.source, pairs=reports, refusals=in_order, no_match=no_match)

    def reports(self, fates: Sequence[Fate], selection: Selection | None) -> Iterator[PairReport]:
        """Yield what happens to each pair, in the order of the file."""
        decisions = selection.decisions if selection else ()
        reasons = {decision.pair.device_code: decision.reason for decision in decisions}
        for fate in sorted(fates, key=lambda fate: self.lines[id(fate.unit.nodes[0])]):
            line = self.lines[id(fate.unit.nodes[0])]
            for pair in (*fate.unit.pairs, *fate.added):
                yield PairReport(
                    pair=pair,
                    line=line,
                    action=fate.action(pair),
                    reason=reasons.get(pair.device_code, "the arch flags are left as they are"),
                )


def _read(tree: Tree) -> _File:
    """Find all that has to do with archs or the C++ standard."""
    spots = {id(spot.node): spot for spot in strings(tree.module)}
    finds = [find for spot in spots.values() if (find := _find(spot)) is not None]
    lines, is_exact = tree.lines(find.spot for find in finds)
    flags = [find for find in finds if is_arch_flag(find.text)]
    units, strays = _sort_out(tree, flags)
    return _File(
        tree=tree,
        units=units,
        strays=strays,
        standards=tuple(find for find in finds if mentions_standard(find.text)),
        spots=spots,
        lines=lines,
        is_exact=is_exact,
    )


def _find(spot: Spot) -> Find | None:
    node = spot.node
    text = text_of(node) if isinstance(node, cst.BaseExpression) else None
    if text is None or not (is_arch_flag(text) or mentions_standard(text)) or is_looked_at(spot):
        return None
    return Find(spot, text)


def _sort_out(tree: Tree, flags: Sequence[Find]) -> tuple[tuple[Unit, ...], tuple[Stray, ...]]:
    """Tell the flags that can be dealt with from those that cannot: each literal ends up among one or the other."""
    units: list[Unit] = []
    strays = [Stray(find.node, shape) for find in flags if (shape := out_of_reach(find.spot))]
    near = {id(find.node): find for find in flags if not out_of_reach(find.spot)}
    dealt_with = {id(stray.node) for stray in strays}
    for row in (*append_rows(tree, near), *sequence_rows(tree, near)):
        for found in row.flags() if isinstance(row, Row) else (row,):
            if isinstance(found, Unit):
                units.append(found)
            else:
                strays.append(found)
        nodes = [item.node for item in row.items] if isinstance(row, Row) else [row.node]
        dealt_with.update(id(node) for node in nodes if id(node) in near and not near[id(node)].is_computed)
    strays += [Stray(find.node, shape_of(find)) for find in near.values() if id(find.node) not in dealt_with]
    return tuple(units), tuple(strays)


def _rewrite(file: _File, request: Request | None, policy: Policy, cxx_standard: int | None) -> Outcome:
    selection: Selection | None = None
    fates: Sequence[Fate] = [Fate(unit, unit.pairs) for unit in file.units]
    if request is not None:
        refusals = [refusal(stray.shape, file.lines[id(stray.node)]) for stray in file.strays]
        if not refusals and file.units:
            try:
                selection, fates = decide(file.units, request, policy)
            except NoMatchingArch as error:
                return file.refused(no_match=error)
            refusals = list(doubts(fates, request, policy, file.lines))
        if refusals:
            return file.refused(refusals)
    edits = Edits()
    write_flags(edits, fates, file.spots)
    notes = write_standards(edits, file.standards, file.lines, cxx_standard)
    pairs = tuple(file.reports(fates, selection))
    if not edits:
        return Unchanged(source=file.tree.source, pairs=pairs, selection=selection, notes=notes)
    if not file.is_exact:
        return file.refused([refusal("not-reproducible", 1)])
    return Rewritten(source=file.tree.render(edits), pairs=pairs, selection=selection, notes=notes)
