"""Flags that are put in front of a list: `flags.insert(0, "arch=..."), flags.insert(0, "-gencode")`, last one first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import libcst as cst

from archpatch.rewrite.calls import Put, handed_to, runs
from archpatch.rewrite.rows import Find, Row, Stray
from archpatch.rewrite.tree import Tree

__all__ = ["rows"]

_REASON: Final = "the flag is inserted at a position, which others may rely on"


def rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row | Stray]:
    """Yield each run of inserts in front of one list that has an arch flag in it."""
    for run in runs(tree, finds, _insert):
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
