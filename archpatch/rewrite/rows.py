"""What the shapes have in common: rows of neighbouring words, the flags in them, and what is to become of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import libcst as cst

from archpatch.arch.arch import Pair
from archpatch.rewrite.literals import text_of
from archpatch.rewrite.spelling import HOLE, Flag, Opaque, Word, read_flags
from archpatch.rewrite.tree import Spot, StringNode

__all__ = ["Branch", "Change", "Find", "Group", "Item", "Position", "Row", "Stray", "Unit", "branches", "scope", "word"]

Position = tuple[int, ...]
"""Where an item stands in its container: (element,) of a list, (statement, part of its line) of a block."""


class Group(NamedTuple):
    """Flags that end up together: the name that they are collected in and its scope, or one list of its own."""

    scope: int
    name: str


class Branch(NamedTuple):
    """One side of a statement that may not run: the `id` of its node and the field of it."""

    statement: int
    side: str


@dataclass(frozen=True, slots=True)
class Find:
    """A string literal that has to do with arch flags and is not merely looked at."""

    spot: Spot
    text: str

    @property
    def node(self) -> StringNode:
        """The literal."""
        node = self.spot.node
        assert isinstance(node, StringNode)  # noqa: S101 - narrows the type: only strings are found
        return node

    @property
    def is_computed(self) -> bool:
        """Whether part of it is only known at run time."""
        return HOLE in self.text


@dataclass(frozen=True, slots=True)
class Change:
    """What to do with one flag of a row: `remove` it, then put each of `insert` (one or two words) in its place."""

    positions: tuple[Position, ...]
    remove: bool = False
    insert: tuple[tuple[cst.SimpleString, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """One word of a row."""

    word: Word
    node: cst.BaseExpression
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Neighbouring words in one `container`; `edit` is how its shape carries out changes there."""

    container: Spot
    group: Group
    branches: tuple[Branch, ...]
    items: tuple[Item, ...]
    edit: Callable[[cst.CSTNode, Sequence[Change]], cst.CSTNode]

    def flags(self) -> Iterator[Unit | Stray]:
        """Yield the flags of the row, and the words that look like one and are none."""
        for found in read_flags([item.word for item in self.items]):
            if isinstance(found, Flag):
                yield Unit(row=self, flag=found, items=self.items[found.start : found.stop])
            else:
                yield Stray(self.items[found.start].node, found.shape)


@dataclass(frozen=True, slots=True)
class Stray:
    """A literal that cannot be dealt with, and the shape that its refusal names."""

    node: cst.CSTNode
    shape: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One arch flag with its value, which live and die together."""

    row: Row
    flag: Flag
    items: tuple[Item, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs that it means; several for `code=[...]` and for `-arch`."""
        return self.flag.pairs

    @property
    def nodes(self) -> tuple[StringNode, ...]:
        """Its literals: the whole flag, or option and value."""
        return tuple(item.node for item in self.items if isinstance(item.node, StringNode))

    @property
    def positions(self) -> tuple[Position, ...]:
        """Where its words stand in the row's container."""
        return tuple(item.position for item in self.items)


def word(node: cst.BaseExpression, finds: Mapping[int, Find]) -> Word:
    """Return what is known of one argument."""
    find = finds.get(id(node))
    if find is not None:
        return Opaque.COMPUTED if find.is_computed else find.text
    text = text_of(node)
    return Opaque.UNKNOWN if text is None or HOLE in text else text


def branches(spot: Spot) -> tuple[Branch, ...]:
    """Return the statements around `spot` that may not run, outermost first."""
    conditional = (cst.If, cst.For, cst.While, cst.Try, cst.TryStar, cst.With, cst.MatchCase, cst.ExceptHandler)
    found = [
        Branch(id(parent.node), child.field)
        for child, parent in spot.above()
        if isinstance(parent.node, (*conditional, cst.FunctionDef, cst.ClassDef)) and child.field != "finalbody"
    ]
    return tuple(reversed(found))


def scope(spot: Spot) -> int:
    """Return the `id` of the function or class that `spot` stands in, 0 for the module."""
    return next((id(up.node) for _, up in spot.above() if isinstance(up.node, cst.FunctionDef | cst.ClassDef)), 0)
