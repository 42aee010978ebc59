"""Flags that are appended, as mamba_ssm and its kin do: `flags.append("-gencode")`, `flags.append("arch=...")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from archpatch.rewrite.calls import Put, runs
from archpatch.rewrite.rows import Find, Row
from archpatch.rewrite.tree import Tree

__all__ = ["rows"]


def rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row]:
    """Yield each run of consecutive appends to one list that has an arch flag in it."""
    return (run.row() for run in runs(tree, finds, _append))


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
