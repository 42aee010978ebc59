"""Flags that are split from one literal: `"-gencode arch=...,code=...".split()`, `.split(" ")`, `shlex.split("...")`.

Words go and come inside the literal; the white space between those that stay is as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import libcst as cst

from archpatch.rewrite.destination import destination
from archpatch.rewrite.literals import inner, respell, text_of
from archpatch.rewrite.rows import Change, Find, Item, Row, branches
from archpatch.rewrite.tree import Spot, Tree

__all__ = ["rows"]

#: What stands between words: for `split()` and shlex, and for `split(" ")`, which finds an empty word in two spaces.
_BLANK: Final = re.compile(r"(\s+)")
_SPACE: Final = re.compile(r"( )")
_NOT_SPACE = re.compile(r"[^\S ]")
#: What is more than a word to a shell, and white space that is none to it.
_SHELL = re.compile(r"['\"\\]|[^\S \t\r\n]")


def rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row]:
    """Yield each literal that is split into nvcc's arguments, where all of them end up in one place."""
    for find in finds.values():
        call = _call(find.spot)
        split = call and _read(call.node)
        group = destination(tree, call) if call and split and _is_plain(call.node, *split) else ""
        if call and split and not isinstance(group, str):
            literal, blank = split
            words, _ = _apart(inner(literal), blank)
            items = (Item(word=word, raw=word, node=literal, position=(at,)) for at, word in enumerate(words))
            yield Row(container=call, group=group, branches=branches(call), items=tuple(items), edit=_edit)


def _call(spot: Spot) -> Spot | None:
    """Return the call that splits the literal at `spot`, if one does."""
    call = spot.parent and spot.parent.parent
    split = call and _read(call.node)
    return call if split and split[0] is spot.node else None


def _read(call: cst.CSTNode) -> tuple[cst.SimpleString, re.Pattern[str]] | None:
    """Return the literal that is split, and what stands between its words."""
    match call:
        case cst.Call(
            func=cst.Attribute(value=cst.Name(value="shlex"), attr=cst.Name(value="split")),
            args=[cst.Arg(keyword=None, star="", value=cst.SimpleString() as literal)],
        ):
            return literal, _BLANK
        case cst.Call(func=cst.Attribute(value=cst.SimpleString() as literal, attr=cst.Name(value="split")), args=args):
            match args:
                case []:
                    return literal, _BLANK
                case [cst.Arg(keyword=None, star="", value=blank)] if text_of(blank) == " ":
                    return literal, _SPACE
    return None


def _is_plain(call: cst.CSTNode, literal: cst.SimpleString, blank: re.Pattern[str]) -> bool:
    """Whether each word stands in the literal as nvcc gets it, and can go without a trace."""
    raw = inner(literal)
    if ("\\" in raw and "r" not in literal.prefix.lower()) or literal.quote[0] in raw:
        return False
    if blank is _SPACE:
        return _NOT_SPACE.search(raw) is None
    is_method = isinstance(call, cst.Call) and not call.args
    return is_method or _SHELL.search(raw) is None


def _apart(raw: str, blank: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Return the words of a text, and the gaps before, between and behind them."""
    parts = blank.split(raw)
    words, gaps = parts[::2], ["", *parts[1::2], ""]
    if blank is _BLANK:
        # White space at an end leaves no empty word there.
        for end in (0, -1):
            if words and not words[end]:
                words.pop(end)
                gaps.pop(end)
    return words, gaps


def _edit(node: cst.CSTNode, changes: Sequence[Change]) -> cst.CSTNode:
    """Carry out `changes` in the literal that a call splits."""
    split = _read(node)
    assert split is not None  # noqa: S101 - narrows the type
    assert isinstance(node, cst.Call)  # noqa: S101 - narrows the type
    literal, blank = split
    words, gaps = _apart(inner(literal), blank)
    parts = _together(words, gaps, changes)
    new = respell(literal, "".join(parts))
    if not isinstance(node.func, cst.Attribute) or node.func.value is not literal:
        return node.with_changes(args=[node.args[0].with_changes(value=new)])
    # "".split(" ") is one empty word, "".split() is none.
    args = node.args if len(parts) > 1 else ()
    return node.with_changes(func=node.func.with_changes(value=new), args=args)


def _together(words: Sequence[str], gaps: Sequence[str], changes: Sequence[Change]) -> list[str]:
    """Return what the text becomes: each word behind its gap, and the last gap."""
    texts = {place: text for change in changes for (place,), text in change.reword}
    gone = {place for change in changes if change.remove for (place,) in change.positions}
    new = {change.positions[-1][0]: change for change in changes if change.insert}
    parts: list[str] = []
    run = [gaps[0]]
    for index, word in enumerate(words):
        if index not in gone:
            parts += [_close(run, opens=not parts), texts.get(index, word)]
            run = []
        run.append(gaps[index + 1])
        if index in new:
            added = _added(gaps, new[index])
            *ahead, behind = run
            parts += [_close(ahead, opens=not parts) if ahead else added[0], *added[1:]]
            run = [behind]
    return [*parts, run[-1]]


def _added(gaps: Sequence[str], change: Change) -> list[str]:
    """Return each new word behind its gap, spaced like the flag that they stand by."""
    own = [gaps[place] or " " for (place,) in change.positions]
    return [part for words in change.insert for pair in zip(own, words, strict=True) for part in pair]


def _close(run: Sequence[str], *, opens: bool) -> str:
    """Return the one gap for those between which all words have gone: a line break stays."""
    if opens:
        return run[0]
    return next((gap for gap in (run[0], run[-1]) if "\n" in gap or "\r" in gap), run[0])
