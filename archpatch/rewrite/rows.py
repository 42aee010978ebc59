"""What the shapes have in common: rows of neighbouring words, the flags in them, and what is to become of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import libcst as cst

from archpatch.arch.arch import Pair
from archpatch.rewrite.literals import inner, text_of
from archpatch.rewrite.spelling import HOLE, Flag, Opaque, Word, read_flags
from archpatch.rewrite.tree import Spot, StringNode, is_string

__all__ = ["Branch", "Change", "Find", "Group", "Item", "Position", "Row", "Stray", "Unit", "branches", "item", "scope"]

Position = tuple[int, ...]
"""Where an item stands in its container: (element,) of a list, (statement, part of its line) of a block."""


class Group(NamedTuple):
    """Flags that end up together: the name that they are collected in and its scope, or one list of its own."""

    scope: int
    name: str


class Branch(NamedTuple):
    """One side of a statement or conditional expression that may not run: the `id` of its node and the field of it."""

    condition: int
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
        assert is_string(node)  # noqa: S101 - narrows the type: only strings are found
        return node

    @property
    def is_computed(self) -> bool:
        """Whether part of it is only known at run time."""
        return HOLE in self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to do with one flag of a row, whose words stand at `positions`.

    Each word in `reword` becomes the text beside it. With `remove` the flag goes. Then each flag of `insert`, in as
    many words, is put behind it. Texts are as they stand between quotes.
    """

    positions: tuple[Position, ...]
    remove: bool = False
    reword: tuple[tuple[Position, str], ...] = ()
    insert: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One word of a row: `node` is the literal that it stands in, `raw` its text as it is spelled there."""

    word: Word
    raw: str
    node: cst.BaseExpression
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Neighbouring words in one `container`, in the order in which nvcc gets them.

    `edit` is how changes are carried out in the container: a function of a module, the same one for all rows of one
    container. It gets the changes of all of them at once.
    """

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
    """A literal that no edit deals with: `shape` is the short, stable name that is reported for it.

    `reason` says why the guard has to take over; it may be left out for a shape of the tables in `refusals`.
    """

    node: cst.CSTNode
    shape: str
    reason: str = ""


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
    def node(self) -> cst.BaseExpression:
        """The literal that it begins in."""
        return self.items[0].node

    @property
    def positions(self) -> tuple[Position, ...]:
        """Where its words stand in the row's container."""
        return tuple(item.position for item in self.items)


def item(node: cst.BaseExpression, finds: Mapping[int, Find], position: Position) -> Item:
    """Return the item of an expression that is one argument of nvcc, if anything is known of it."""
    find = finds.get(id(node))
    text = text_of(node) if find is None else find.text
    word: Word = Opaque.UNKNOWN if text is None else text
    if text is not None and HOLE in text:
        word = Opaque.UNKNOWN if find is None else Opaque.COMPUTED
    raw = inner(node) if is_string(node) else ""
    return Item(word=word, raw=raw, node=node, position=position)


def branches(spot: Spot) -> tuple[Branch, ...]:
    """Return the statements and conditional expressions around `spot` that may not run it, outermost first."""
    found = [Branch(id(parent.node), child.field) for child, parent in spot.above() if _may_skip(parent.node, child)]
    return tuple(reversed(found))


def _may_skip(node: cst.CSTNode, part: Spot) -> bool:
    conditional = (cst.If, cst.For, cst.While, cst.Try, cst.TryStar, cst.With, cst.MatchCase, cst.ExceptHandler)
    if isinstance(node, (*conditional, cst.FunctionDef, cst.ClassDef)):
        return part.field != "finalbody"
    return isinstance(node, cst.IfExp) and part.field != "test"


def scope(spot: Spot) -> int:
    """Return the `id` of the function or class that `spot` stands in, 0 for the module."""
    return next((id(up.node) for _, up in spot.above() if isinstance(up.node, cst.FunctionDef | cst.ClassDef)), 0)
