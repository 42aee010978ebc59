"""Flags that are appended, as mamba_ssm and its kin do: `flags.append("-gencode")`, `flags.append("arch=...")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import libcst as cst

from archpatch.rewrite.calls import Put, handed_to, runs
from archpatch.rewrite.rows import Find, Row, Stray
from archpatch.rewrite.tree import Tree

__all__ = ["rows"]

_REASON: Final = "the flag is appended inside another expression"


def rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row | Stray]:
    """Yield each run of consecutive appends to one list that has an arch flag in it."""
    yield from (run.row() for run in runs(tree, finds, _append))
    yield from (Stray(find.node, "append-expression", _REASON) for find in handed_to("append", finds))


def _append(statement: cst.CSTNode) -> Put | None:
    match statement:
        case cst.Expr(
            value=cst.Call(
                func=cst.Attribute(value=receiver, attr=cst.Name(value="append")),
                args=[cst.Arg(keyword=None, star="", value=value)],
            )
        ):
            return receiver, value
    return None
