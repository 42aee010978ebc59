"""From decisions to edits: the words of each flag, and of each C++ standard, written anew in their own spelling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import libcst as cst

from archpatch.arch.arch import Pair
from archpatch.arch.gencode import GENCODE_OPTIONS, format_pair
from archpatch.rewrite.cxx_standard import falls_short, raised
from archpatch.rewrite.decide import Fate
from archpatch.rewrite.literals import respell
from archpatch.rewrite.refusals import out_of_reach, shape_of
from archpatch.rewrite.rows import Change, Find, Position, Row, Unit
from archpatch.rewrite.spelling import gencode_option, keep_codes
from archpatch.rewrite.tree import Edits

__all__ = ["write_flags", "write_standards"]

#: Calls that look a standard up in a string or list, or work on its text.
_NOT_EMITTED: Final = frozenset({"concatenation", "format", "join", "percent-format", "remove", "replace", "split"})


def write_flags(edits: Edits, fates: Iterable[Fate]) -> None:
    """Add to `edits` what `fates` demand, for each container once."""
    by_container: dict[int, tuple[Row, list[Change]]] = {}
    for fate in fates:
        change = _change(fate)
        if change.remove or change.reword or change.insert:
            row = fate.unit.row
            by_container.setdefault(id(row.container.node), (row, []))[1].append(change)
    for row, changes in by_container.values():
        edits.add(row.container, _carry_out(row, changes))


def write_standards(
    edits: Edits, finds: Iterable[Find], lines: Mapping[int, int], standard: int | None
) -> tuple[str, ...]:
    """Add to `edits` what raises each C++ standard to `standard`; return what is to be said about it."""
    if standard is None:
        return ()
    notes = []
    for find in finds:
        line = lines[id(find.node)]
        flag = raised(find.text, standard) if isinstance(find.node, cst.SimpleString) else None
        if flag is not None and shape_of(find) not in _NOT_EMITTED and out_of_reach(find) != "subprocess":
            edits.add(find.spot, _put(respell(find.node, flag)))
            notes.append(f"line {line}: {find.text} raised to {flag}")
        elif falls_short(find.text, standard):
            notes.append(f"line {line}: a C++ standard below {standard} is left, it is not a flag of its own")
    return tuple(notes)


def _change(fate: Fate) -> Change:
    """Return what changes in the row for one flag."""
    unit = fate.unit
    new = [_words(unit, pair) for pair in fate.added]
    reword: tuple[tuple[Position, str], ...] = ()
    if fate.kept and fate.dropped:
        if unit.flag.option in GENCODE_OPTIONS:
            value = unit.items[-1]
            reword = ((value.position, keep_codes(value.raw, fate.kept)),)
        else:
            # An -arch says several things at once; what is left of them takes a -gencode each.
            first, *others = (_words(unit, pair) for pair in fate.kept)
            reword = tuple(zip(unit.positions, first, strict=True))
            new = [*others, *new]
    return Change(positions=unit.positions, remove=not fate.kept, reword=reword, insert=tuple(new))


def _words(unit: Unit, pair: Pair) -> tuple[str, ...]:
    """Return the words of a `-gencode` for `pair`, spelled like `unit`: one or two of them."""
    option, value = gencode_option(unit.flag.option), format_pair(pair)
    return (f"{option}={value}",) if len(unit.items) == 1 else (option, value)


def _put(literal: cst.SimpleString) -> Callable[[cst.CSTNode], cst.CSTNode]:
    return lambda _: literal


def _carry_out(row: Row, changes: Sequence[Change]) -> Callable[[cst.CSTNode], cst.CSTNode]:
    return lambda node: row.edit(node, changes)
