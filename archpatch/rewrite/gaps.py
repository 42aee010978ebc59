"""The white space between the elements of a list: what becomes of it, and of the comments in it, when elements go.

A comment on a line of its own stays. A comment at the end of a line goes when all elements on that line go.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

__all__ = ["Gap", "close_up", "has_comment", "separator"]

Gap = cst.BaseParenthesizableWhitespace
_Lines = cst.ParenthesizedWhitespace


def close_up(gaps: Sequence[Gap], *, opens: bool, closes: bool) -> Gap:  # noqa: PLR0911 - a table of what meets what
    """Return the one gap for `gaps`, between which every element was removed.

    `opens` and `closes` tell whether the bracket stands at that end, not an element.
    """
    before, *inside, after = gaps
    comments = [line for gap in inside for line in _own_lines(gap) if line.comment]
    match before, after:
        case _Lines(), _Lines():
            return after.with_changes(
                first_line=before.first_line, empty_lines=[*before.empty_lines, *comments, *after.empty_lines]
            )
        case _Lines(), _:
            if closes and not comments and not has_comment(before):
                return after
            return before.with_changes(empty_lines=[*before.empty_lines, *comments])
        case _, _Lines() if opens:
            return _after_bracket(before, after, comments, closes=closes)
        case _, _Lines():
            return after.with_changes(empty_lines=[*comments, *after.empty_lines])
    if comments:
        return _on_lines(next(gap for gap in inside if isinstance(gap, _Lines)), comments)
    return before if opens else after


def separator(gap: Gap) -> Gap:
    """Return a gap like `gap` to put between new elements: the same line break and indent, without any comment."""
    if isinstance(gap, _Lines):
        return _on_lines(gap, ())
    return cst.SimpleWhitespace(" ") if gap.empty else gap


def has_comment(gap: Gap) -> bool:
    """Whether there is a comment in `gap`."""
    return isinstance(gap, _Lines) and (
        gap.first_line.comment is not None or any(line.comment for line in gap.empty_lines)
    )


def _after_bracket(before: Gap, after: _Lines, comments: Sequence[cst.EmptyLine], *, closes: bool) -> Gap:
    """Close up from an opening bracket to a line end: the elements' line is gone, its comment with it."""
    lines = [*comments, *after.empty_lines]
    if any(line.comment for line in lines):
        return _on_lines(after, lines)
    return cst.SimpleWhitespace("") if closes else before


def _on_lines(gap: _Lines, lines: Sequence[cst.EmptyLine]) -> _Lines:
    first = gap.first_line.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
    return gap.with_changes(first_line=first, empty_lines=lines)


def _own_lines(gap: Gap) -> Sequence[cst.EmptyLine]:
    return gap.empty_lines if isinstance(gap, _Lines) else ()
