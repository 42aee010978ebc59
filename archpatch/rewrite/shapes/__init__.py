"""The shapes of arch flags that are edited in the text: one module each, found because it lies here.

A module is a shape. Its docstring says in its first line what it looks like, and its one public name is

    rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row | Stray]

which yields what the module makes of `finds`, the string literals that have to do with arch flags, by the `id` of
their node: a `Row` for words that are neighbours for nvcc, and a `Stray`, which need not be, for a literal that looks
like the shape and cannot be dealt with, to say why. What nobody yields a row for is left to the guard.

Shapes are asked in the order of their modules' names; `archpatch.rewrite.claims` says which one has a literal that
several want.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module

from archpatch.rewrite.rows import Find, Row, Stray
from archpatch.rewrite.tree import Tree

__all__ = ["Rows", "find_shapes"]

Rows = Callable[[Tree, Mapping[int, Find]], Iterator[Row | Stray]]


@cache
def find_shapes() -> tuple[Rows, ...]:
    """Return what each shape yields rows with, in the order of their names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(import_module(f"{__name__}.{name}").rows for name in names)
