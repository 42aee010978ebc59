"""Flags that are neighbouring elements of a list or a tuple: assigned, extended, added, or passed on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from archpatch.rewrite.destination import destination
from archpatch.rewrite.elements import Elements, edit_elements, element_items, holders
from archpatch.rewrite.rows import Find, Row, Stray, branches
from archpatch.rewrite.tree import Tree

__all__ = ["rows"]


def rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row | Stray]:
    """Yield each list or tuple that has an arch flag in it, or a stray for each flag where the list is out of reach."""
    for spot, inside in holders(finds):
        if not isinstance(spot.node, Elements):
            yield from (Stray(find.node, "set", "the flags stand in a set, which has no order") for find in inside)
            continue
        group = destination(tree, spot)
        if isinstance(group, str):
            yield from (Stray(find.node, group) for find in inside)
        else:
            yield Row(
                container=spot,
                group=group,
                branches=branches(spot),
                items=tuple(element_items(spot.node, finds)),
                edit=edit_elements,
            )
