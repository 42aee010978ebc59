"""Flags that a loop appends word by word: `for flag in ["-gencode", "arch=..."]: flags.append(flag)`.

Also `flags += [flag]`. A list that loses all stays as an empty one, over which the loop does nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import libcst as cst

from archpatch.rewrite.elements import Elements, edit_elements, element_items, holders
from archpatch.rewrite.rows import Find, Group, Row, branches, scope
from archpatch.rewrite.tree import Tree

__all__ = ["rows"]


def rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row]:
    """Yield each list with an arch flag that a loop goes over only to put its elements into another list."""
    for spot, _ in holders(finds):
        loop = spot.parent
        if loop and isinstance(loop.node, cst.For) and isinstance(spot.node, Elements):
            receiver = _receiver(loop.node, tree)
            if receiver is not None:
                yield Row(
                    container=spot,
                    group=Group(scope(loop), tree.name(receiver)),
                    # A loop over words that are there runs: only what is around it may not.
                    branches=branches(loop),
                    items=tuple(element_items(spot.node, finds)),
                    edit=edit_elements,
                )


def _receiver(loop: cst.For, tree: Tree) -> cst.BaseExpression | None:
    """Return the list to which the loop adds each word, None where it or something else does more with them."""
    match loop.target, loop.body, loop.orelse:
        case (
            cst.Name(value=name),
            cst.IndentedBlock(body=[cst.SimpleStatementLine(body=[small])]) | cst.SimpleStatementSuite(body=[small]),
            None,
        ) if loop.asynchronous is None and _stays_inside(name, tree.syntax):
            receiver = _appended(small, name)
            return None if receiver is None or _mentions(receiver, name) else receiver
    return None


def _appended(small: cst.CSTNode, word: str) -> cst.BaseExpression | None:
    match small:
        case cst.AugAssign(
            target=receiver,
            operator=cst.AddAssign(),
            value=cst.List(elements=[cst.Element(value=cst.Name(value=name))]),
        ):
            return receiver if name == word else None
        case cst.Expr(
            value=cst.Call(
                func=cst.Attribute(value=receiver, attr=cst.Name(value="append")),
                args=[cst.Arg(keyword=None, star="", value=cst.Name(value=name))],
            )
        ):
            return receiver if name == word else None
    return None


def _stays_inside(name: str, syntax: ast.Module) -> bool:
    """Whether each use of `name` stands in one loop over it: behind its loop, or around it, it is the last word."""
    loops = (node for node in ast.walk(syntax) if isinstance(node, ast.For) and _is_name(node.target, name))
    parts = (part for loop in loops for part in (loop.target, *loop.body))
    inside = [id(node) for part in parts for node in ast.walk(part) if _is_name(node, name)]
    return sorted(inside) == sorted(id(node) for node in ast.walk(syntax) if _is_name(node, name))


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _mentions(node: cst.CSTNode, name: str) -> bool:
    """Whether `name` stands in `node`: a list that depends on the word, such as `args[flag]`."""
    return (isinstance(node, cst.Name) and node.value == name) or any(_mentions(part, name) for part in node.children)
