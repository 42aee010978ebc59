"""Flags that are put in front of a list: `flags.insert(0, "arch=..."), flags.insert(0, "-gencode")`, last one first."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final

import libcst as cst

from archpatch.rewrite.calls import Put, handed_to, runs
from archpatch.rewrite.rows import Find, Row, Stray
from archpatch.rewrite.tree import Tree

__all__ = ["rows"]

_REASON: Final = "the flag is inserted at a position, which others may rely on"


def rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row | Stray]:
    """Yield each run of inserts in front of one list that has an arch flag in it, where nobody counts its elements."""
    for run in runs(tree, finds, _insert):
        if not _is_counted(tree.code(run.receiver), tree.syntax):
            yield run.row(backwards=True)
    yield from (Stray(find.node, "insert", _REASON) for find in handed_to("insert", finds))


def _insert(statement: cst.CSTNode) -> Put | None:
    match statement:
        case cst.Expr(
            value=cst.Call(
                func=cst.Attribute(value=receiver, attr=cst.Name(value="insert")),
                args=[
                    cst.Arg(keyword=None, star="", value=cst.Integer(value="0")),
                    cst.Arg(keyword=None, star="", value=value),
                ],
            )
        ):
            return receiver, value
    return None


def _is_counted(receiver: str, syntax: ast.Module) -> bool:
    """Whether something in the file goes by the places of the list's elements, which flags that go would shift."""
    name = ast.unparse(ast.parse(f"({receiver})", mode="eval"))
    lists = (_counted(node) for node in ast.walk(syntax))
    return any(ast.unparse(node) == name for node in lists if node)


def _counted(node: ast.AST) -> ast.expr | None:
    """Return the list of which an element is named by its place, or gets one."""
    match node:
        case ast.Call(func=ast.Attribute(attr="insert"), args=[ast.Constant(value=0), _]):
            return None
        case ast.Call(func=ast.Attribute(value=value, attr="insert")) | ast.Subscript(value=value):
            return value
        case ast.Call(func=ast.Attribute(value=value, attr="pop"), args=[_]):
            return value
    return None
