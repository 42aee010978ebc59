"""Flags that a loop appends word by word: `for flag in ["-gencode", "arch=..."]: flags.append(flag)`.

Also `flags += [flag]`. A list that loses all stays as an empty one, over which the loop does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from archpatch.rewrite.calls import Put, put_by
from archpatch.rewrite.elements import Elements, edit_elements, element_items, holders
from archpatch.rewrite.for_loops import looped_into
from archpatch.rewrite.rows import Find, Row
from archpatch.rewrite.tree import Tree

__all__ = ["rows"]


def rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row]:
    """Yield each list with an arch flag that a loop goes over only to put its elements into another list."""
    for spot, _ in holders(finds):
        place = looped_into(spot, tree, _append)
        if place is not None and isinstance(spot.node, Elements):
            yield Row(
                container=spot,
                group=place[0],
                branches=place[1],
                items=tuple(element_items(spot.node, finds)),
                edit=edit_elements,
            )


def _append(statement: cst.CSTNode) -> Put | None:
    match statement:
        case cst.AugAssign(
            target=receiver, operator=cst.AddAssign(), value=cst.List(elements=[cst.Element(value=value)])
        ):
            return receiver, value
    return put_by("append", statement)
