"""All that a `setup.py` has to do with archs or the C++ standard: found and sorted once, decided about elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import libcst as cst

from archpatch.arch.selection import Selection
from archpatch.errors import NoMatchingArch
from archpatch.rewrite.claims import sort_out
from archpatch.rewrite.cxx_standard import mentions_standard
from archpatch.rewrite.decide import Fate
from archpatch.rewrite.guard import Stripped
from archpatch.rewrite.literals import text_of
from archpatch.rewrite.lookups import is_looked_at
from archpatch.rewrite.outcome import PairReport, Refusal, Refused
from archpatch.rewrite.refusals import gives_cmake_archs
from archpatch.rewrite.rows import Find, Stray, Unit
from archpatch.rewrite.spelling import is_arch_flag
from archpatch.rewrite.tree import Spot, Tree, strings

__all__ = ["File", "read"]

_ARCH_IN_FLAG = re.compile(r"(?:sm|compute)_\d|arch=")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """What was found in a file.

    `given` is the file as it came, `stripped` tells of the guard in it. `tested` are the literals that flags are
    compared with. `spots` and `lines` map the `id` of a literal to where it stands and to its line in `given`.
    `is_exact` is false where libcst does not give the file back byte for byte.
    """

    tree: Tree
    given: bytes
    stripped: Stripped
    tested: tuple[Spot, ...]
    units: tuple[Unit, ...]
    strays: tuple[Stray, ...]
    standards: tuple[Find, ...]
    spots: Mapping[int, Spot]
    lines: Mapping[int, int]
    is_exact: bool

    @property
    def untouched(self) -> tuple[Fate, ...]:
        """The fate of each flag where all stay."""
        return tuple(Fate(unit, unit.pairs) for unit in self.units)

    def line(self, node: cst.CSTNode) -> int:
        """Return the line of a literal in the file as it came."""
        return self.lines[id(node)]

    def refused(self, refusals: Iterable[Refusal] = (), no_match: NoMatchingArch | None = None) -> Refused:
        """Return the refusal of this file; of several at one place with one shape the first."""
        distinct = {(item.line, item.shape): item for item in refusals}
        return Refused(
            source=self.given,
            pairs=tuple(self.reports(self.untouched, None)),
            refusals=tuple(distinct[key] for key in sorted(distinct)),
            no_match=no_match,
        )

    def reports(self, fates: Iterable[Fate], selection: Selection | None) -> Iterator[PairReport]:
        """Yield what happens to each pair, in the order of the file."""
        decisions = selection.decisions if selection else ()
        reasons = {decision.pair.device_code: decision.reason for decision in decisions}
        for fate in sorted(fates, key=lambda fate: self.line(fate.unit.node)):
            line = self.line(fate.unit.node)
            for pair in (*fate.unit.pairs, *fate.added):
                yield PairReport(
                    pair=pair,
                    line=line,
                    action=fate.action(pair),
                    reason=reasons.get(pair.device_code, "the arch flags are left as they are"),
                )

    def guarded_pairs(self) -> Iterator[PairReport]:
        """Yield each pair in the text as one that the guard decides about."""
        for report in self.reports(self.untouched, None):
            yield replace(report, action="guarded", reason="the guard selects when setup.py runs")


def read(tree: Tree, given: bytes, stripped: Stripped) -> File:
    """Find all that has to do with archs or the C++ standard."""
    spots = {id(spot.node): spot for spot in strings(tree.module)}
    finds = [find for spot in spots.values() if (find := _find(spot)) is not None]
    tested = tuple(spot for spot in spots.values() if _is_tested(spot))
    concerned = {id(spot.node) for spot in (*tested, *(find.spot for find in finds))}
    lines, is_exact = tree.lines(spot for key, spot in spots.items() if key in concerned)
    units, strays = sort_out(tree, [find for find in finds if _concerns_archs(find.text)])
    return File(
        tree=tree,
        given=given,
        stripped=stripped,
        tested=tested,
        units=units,
        strays=strays,
        standards=tuple(find for find in finds if mentions_standard(find.text)),
        spots=spots,
        lines={key: stripped.line_before(line) for key, line in lines.items()},
        is_exact=is_exact,
    )


def _find(spot: Spot) -> Find | None:
    node = spot.node
    text = text_of(node) if isinstance(node, cst.BaseExpression) else None
    if text is None or not (_concerns_archs(text) or mentions_standard(text)) or is_looked_at(spot):
        return None
    return Find(spot, text)


def _is_tested(spot: Spot) -> bool:
    """Whether an arch in a flag is compared with this literal: what follows may hang on a flag that goes."""
    if not isinstance(spot.parent.node if spot.parent else None, cst.Comparison | cst.ComparisonTarget):
        return False
    text = text_of(spot.node) if isinstance(spot.node, cst.BaseExpression) else None
    return text is not None and _ARCH_IN_FLAG.search(text) is not None


def _concerns_archs(text: str) -> bool:
    return is_arch_flag(text) or gives_cmake_archs(text)
