"""What a value in a `setup.py` may hold of the flags: one, a text or list of them, lists of these, something deeper."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Flag, auto
from typing import Final

__all__ = ["COUNTABLE", "DEEPER", "LIST", "LISTS", "NOTHING", "TEXT", "WORD", "Held", "union"]


class Held(Flag):
    """What a value may be; several where it is not clear. `LISTS` is a list, tuple or dict of lists."""

    NOTHING = 0
    WORD = auto()
    TEXT = auto()
    LIST = auto()
    LISTS = auto()
    DEEPER = auto()

    @property
    def item(self) -> Held:
        """What is in it."""
        held = Held.NOTHING
        if self & (Held.TEXT | Held.LIST):
            held |= Held.WORD
        if Held.LISTS in self:
            held |= Held.LIST
        return held | Held.LISTS | Held.DEEPER if Held.DEEPER in self else held

    @property
    def wrapped(self) -> Held:
        """What a list or dict is that it is in."""
        held = Held.NOTHING
        if self & (Held.WORD | Held.TEXT):
            held |= Held.LIST
        if Held.LIST in self:
            held |= Held.LISTS
        return held | Held.DEEPER if self & (Held.LISTS | Held.DEEPER) else held


def union(parts: Iterable[Held]) -> Held:
    """Return all that any of the parts is."""
    held = Held.NOTHING
    for part in parts:
        held |= part
    return held


NOTHING: Final = Held.NOTHING
WORD: Final = Held.WORD
TEXT: Final = Held.TEXT
LIST: Final = Held.LIST
LISTS: Final = Held.LISTS
DEEPER: Final = Held.DEEPER
#: Where a flag that goes shifts others, or makes one less.
COUNTABLE: Final = TEXT | LIST
