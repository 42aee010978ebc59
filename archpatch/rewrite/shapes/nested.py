"""Flags in lists in a list that is taken apart: `sum([[...], [...]], [])`, `for pair in [[...], [...]]: flags += pair`.

Also `chain.from_iterable([[...], [...]])`. A list in it that loses all goes as a whole, unless it holds a comment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import libcst as cst

from archpatch.rewrite.calls import Put, put_by
from archpatch.rewrite.destination import destination
from archpatch.rewrite.elements import Elements, edit_elements, element_items, holders
from archpatch.rewrite.for_loops import looped_into
from archpatch.rewrite.rows import Branch, Change, Find, Group, Row, branches
from archpatch.rewrite.tree import Spot, Tree

__all__ = ["rows"]


def rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row]:
    """Yield each list with an arch flag whose elements end up beside those of the lists that it stands among."""
    for spot, _ in holders(finds):
        outer = spot.parent and spot.parent.parent
        if outer and isinstance(outer.node, Elements) and isinstance(spot.node, Elements):
            place = _place(tree, outer)
            index = [element.value for element in outer.node.elements].index(spot.node)
            if place is not None:
                yield Row(
                    container=outer,
                    group=place[0],
                    branches=place[1],
                    items=tuple(element_items(spot.node, finds, below=(index,))),
                    edit=_edit,
                )


def _place(tree: Tree, outer: Spot) -> tuple[Group, tuple[Branch, ...]] | None:
    """Return where the elements of the lists in `outer` end up, and under which conditions; None where nobody knows."""
    parent = outer.parent
    call = parent and parent.parent
    if parent and call and _takes_apart(call.node, parent.node):
        group = destination(tree, call)
        return None if isinstance(group, str) else (group, branches(call))
    return looped_into(outer, tree, _extend)


def _takes_apart(call: cst.CSTNode, arg: cst.CSTNode) -> bool:
    """Whether the call gives what is in the lists that `arg` holds, one after the other."""
    match call:
        case cst.Call(func=cst.Name(value="sum"), args=[cst.Arg(star="") as lists, _]):
            return arg is lists
        case cst.Call(func=cst.Attribute(value=chain, attr=cst.Name(value="from_iterable")), args=[cst.Arg(star="")]):
            return _is_chain(chain)
    return False


def _is_chain(node: cst.CSTNode) -> bool:
    match node:
        case cst.Name(value="chain") | cst.Attribute(value=cst.Name(value="itertools"), attr=cst.Name(value="chain")):
            return True
    return False


def _extend(statement: cst.CSTNode) -> Put | None:
    match statement:
        case cst.AugAssign(target=receiver, operator=cst.AddAssign(), value=value):
            return receiver, value
    return put_by("extend", statement)


def _edit(node: cst.CSTNode, changes: Sequence[Change]) -> cst.CSTNode:
    """Carry out `changes` in the lists of a list."""
    assert isinstance(node, Elements)  # noqa: S101 - narrows the type
    elements, empty = list(node.elements), list[Change]()
    for index, element in enumerate(node.elements):
        own = [_below(change) for change in changes if change.positions[0][0] == index]
        if own:
            edited = edit_elements(element.value, own)
            elements[index] = element.with_changes(value=edited)
            if isinstance(edited, Elements) and not edited.elements and "#" not in cst.Module([]).code_for_node(edited):
                empty.append(Change(positions=((index,),), remove=True))
    return edit_elements(node.with_changes(elements=elements), empty)


def _below(change: Change) -> Change:
    """Return the change as the inner list sees it."""
    positions = tuple(position[1:] for position in change.positions)
    return replace(change, positions=positions, reword=tuple((place[1:], text) for place, text in change.reword))
