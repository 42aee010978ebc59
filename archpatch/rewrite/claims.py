"""Which shape deals with which literal: each literal ends up in one row, or as a stray that says why in none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from archpatch.rewrite.refusals import out_of_reach, shape_of
from archpatch.rewrite.rows import Find, Row, Stray, Unit
from archpatch.rewrite.shapes import find_shapes
from archpatch.rewrite.tree import Tree

__all__ = ["sort_out"]


def sort_out(tree: Tree, flags: Sequence[Find]) -> tuple[tuple[Unit, ...], tuple[Stray, ...]]:
    """Tell the flags that can be dealt with from those that cannot."""
    away = [Stray(find.node, shape) for find in flags if (shape := out_of_reach(find))]
    near = {id(find.node): find for find in flags if not out_of_reach(find)}
    found = [each for rows in find_shapes() for each in rows(tree, near)]
    rows = _settle((each for each in found if isinstance(each, Row)), near)
    parts = [part for row in rows for part in row.flags()]
    strays = [*away, *(part for part in parts if isinstance(part, Stray))]
    strays += _unclaimed(rows, [each for each in found if isinstance(each, Stray)], near)
    return tuple(part for part in parts if isinstance(part, Unit)), tuple(strays)


def _settle(rows: Iterable[Row], near: Mapping[int, Find]) -> list[Row]:
    """Return the rows that count: a literal belongs to the first row that has it, and so does a container.

    A later row that has one of its literals, or edits its container in another way, does not count at all, since half
    a row may be half a flag.
    """
    settled: list[Row] = []
    taken: set[int] = set()
    edits: dict[int, object] = {}
    for row in rows:
        own = {id(item.node) for item in row.items} & near.keys()
        if taken.isdisjoint(own) and edits.setdefault(id(row.container.node), row.edit) is row.edit:
            taken |= own
            settled.append(row)
    return settled


def _unclaimed(rows: Iterable[Row], named: Iterable[Stray], near: Mapping[int, Find]) -> Iterator[Stray]:
    """Yield a stray for each literal that no row deals with: the first that a shape named, else by what is around it.

    A computed literal is a word of its row, so that its neighbours can be judged, and a stray all the same.
    """
    reasons: dict[int, Stray] = {}
    for stray in named:
        reasons.setdefault(id(stray.node), stray)
    claimed = {id(item.node) for row in rows for item in row.items}
    for key, find in near.items():
        if key not in claimed and key in reasons:
            yield reasons[key]
        if find.is_computed or (key not in claimed and key not in reasons):
            yield Stray(find.node, shape_of(find))
