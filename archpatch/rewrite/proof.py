"""What the text of a file proves for a request, what it leaves to the guard, and what neither can reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from archpatch.arch.selection import Policy, Request, Selection
from archpatch.errors import NoMatchingArch
from archpatch.rewrite.counting import counted_lines
from archpatch.rewrite.decide import Fate, decide, doubts, needs_no_worlds
from archpatch.rewrite.guard import torch_list
from archpatch.rewrite.outcome import FlagSource, Refusal, Refused
from archpatch.rewrite.reading import File
from archpatch.rewrite.refusals import flag_source, is_behind_guard, is_guarded, refusal
from archpatch.rewrite.rows import Stray
from archpatch.rewrite.signs import Sign, cuda_line, signs, users_of

__all__ = ["Proof", "prove"]

#: What matters only where the text has no pairs: elsewhere it is one more condition, or for other extensions.
_WITHOUT_PAIRS: Final = frozenset({"asks-gpu", "helper-module", "overwrites-arch-list", "own-variable"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What becomes of each flag; where there are `sources`, all flags stay in the text and the guard decides."""

    fates: tuple[Fate, ...]
    selection: Selection | None = None
    sources: tuple[FlagSource, ...] = ()


def prove(file: File, request: Request, policy: Policy) -> Proof | Refused:
    """Decide about each flag of `file`, or leave all to the guard, or refuse."""
    has_pairs = bool(file.units) and not file.strays
    found = tuple(signs(file.tree.text, file.tree.syntax, has_pairs=has_pairs))
    refusals = [refusal(stray.shape, file.line(stray.node)) for stray in file.strays if not _is_guards(stray)]
    sources = tuple(_sources(file, found, request))
    if file.units or sources:
        refusals += [refusal(sign.shape, _line(file, sign)) for sign in found if not is_guarded(sign.shape)]
    if refusals:
        return file.refused(refusals)
    if file.units and not sources:
        try:
            selection, fates = decide(file.units, request, policy)
        except NoMatchingArch as error:
            return file.refused(no_match=error)
        sources = tuple(doubts(fates, request, policy, file.lines))
        sources += tuple(_hindrances(file, fates, one_by_one=needs_no_worlds(request, policy)))
        if not sources:
            return Proof(fates=fates, selection=selection)
    refusals = list(_unreachable(file)) if sources else []
    if refusals:
        return file.refused(refusals)
    return Proof(fates=file.untouched, sources=_in_order(sources))


def _sources(file: File, found: Sequence[Sign], request: Request) -> Iterator[FlagSource]:
    """Yield what decides about flags only at run time."""
    strong = [
        flag_source(stray.shape, file.line(stray.node), reason=stray.reason)
        for stray in file.strays
        if _is_guards(stray)
    ]
    strong += [
        flag_source(sign.shape, _line(file, sign))
        for sign in found
        if is_guarded(sign.shape) and sign.shape not in _WITHOUT_PAIRS
    ]
    yield from strong
    if strong or not file.units:
        yield from (flag_source(sign.shape, _line(file, sign)) for sign in found if sign.shape in _WITHOUT_PAIRS)
    line = cuda_line(file.tree.text)
    if line and not file.units and torch_list(request) is None:
        yield flag_source("not-in-torch", file.stripped.line_before(line))


def _hindrances(file: File, fates: Sequence[Fate], *, one_by_one: bool) -> Iterator[FlagSource]:
    """Yield what stands in the way of edits, where there are any.

    What goes by the places of flags, or by their number, stands in the way where it would see others; and, unless each
    pair is chosen `one_by_one`, where it gives an extension only some of the flags that were chosen together.
    """
    edited = [fate for fate in fates if fate.dropped or fate.added]
    nodes = [item.node for fate in (edited if one_by_one else fates) for item in fate.unit.items]
    # A bare `sm_80` has no line of its own there: its option, which goes with it, has.
    lines = {file.stripped.line_within(file.line(node)) for node in nodes if id(node) in file.lines}
    for line in counted_lines(lines, file.tree.syntax):
        yield flag_source("counted", file.stripped.line_before(line))
    if edited:
        yield from (flag_source("tested", file.line(spot.node)) for spot in file.tested)
        if not file.is_exact:
            yield flag_source("not-reproducible", 1)


def _is_guards(stray: Stray) -> bool:
    """Whether the guard takes over for a literal; a shape that gives a reason of its own always means that."""
    return bool(stray.reason) or is_guarded(stray.shape)


def _unreachable(file: File) -> Iterator[Refusal]:
    """Yield where flags go past the guard, which sees no more than the arguments of extensions."""
    literals = [*(stray.node for stray in file.strays), *(unit.node for unit in file.units)]
    for node in literals:
        if is_behind_guard(file.spots[id(node)]):
            yield refusal("compiler-hook", file.line(node))
    for unit in file.units:
        if any(str(item.word).rpartition("/")[2] == "nvcc" for item in unit.row.items):
            yield refusal("subprocess", file.line(unit.node))
    lines = {file.stripped.line_within(file.line(node)) for node in literals}
    for sign in users_of(lines, file.tree.syntax):
        yield refusal(sign.shape, _line(file, sign))


def _line(file: File, sign: Sign) -> int:
    return file.stripped.line_before(sign.line)


def _in_order(sources: Sequence[FlagSource]) -> tuple[FlagSource, ...]:
    """Return the sources by line, one per line and shape."""
    distinct = {(source.line, source.shape): source for source in sources}
    return tuple(distinct[key] for key in sorted(distinct))
