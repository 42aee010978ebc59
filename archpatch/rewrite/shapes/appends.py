"""Flags that are appended, as mamba_ssm and its kin do: `flags.append("-gencode")`, `flags.append("arch=...")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from archpatch.rewrite.calls import handed_to, put_by, runs
from archpatch.rewrite.rows import Find, Row, Stray
from archpatch.rewrite.tree import Tree

__all__ = ["rows"]

_REASON: Final = "the flag is appended inside another expression"


def rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row | Stray]:
    """Yield each run of consecutive appends to one list that has an arch flag in it."""
    yield from (run.row() for run in runs(tree, finds, partial(put_by, "append")))
    yield from (Stray(find.node, "append-expression", _REASON) for find in handed_to("append", finds))
