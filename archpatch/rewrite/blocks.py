"""Statements taken out of a block, or put into it: comments above them move on, an emptied block gets `pass`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from archpatch.rewrite.literals import respell, spelled_like
from archpatch.rewrite.rows import Change, Position

__all__ = ["edit_block"]

_Small = cst.BaseSmallStatement


@dataclass(frozen=True, slots=True)
class _Plan:
    """Changes by place: what goes, and which statements are put behind which place."""

    gone: frozenset[Position]
    new: dict[Position, list[_Small]]


def edit_block(node: cst.CSTNode, changes: Sequence[Change]) -> cst.CSTNode:
    """Carry out `changes` in a module, an indented block, or the statements behind a colon (`if x: f.append(...)`).

    Each word is the last argument of a statement that is a call.
    """
    texts = {place: text for change in changes for place, text in change.reword}
    if isinstance(node, cst.SimpleStatementSuite):
        body = _reworded(node.body, 0, texts)
        return node.with_changes(body=_edit_line(body, 0, _plan([body], changes)) or [cst.Pass()])
    assert isinstance(node, cst.Module | cst.IndentedBlock)  # noqa: S101 - narrows the type
    lines = [
        line.with_changes(body=_reworded(line.body, number, texts))
        if isinstance(line, cst.SimpleStatementLine)
        else line
        for number, line in enumerate(node.body)
    ]
    bodies = [line.body if isinstance(line, cst.SimpleStatementLine) else () for line in lines]
    return _edit_lines(node.with_changes(body=lines), _plan(bodies, changes))


def _edit_lines(node: cst.Module | cst.IndentedBlock, plan: _Plan) -> cst.CSTNode:
    body: list[cst.BaseStatement] = []
    above: list[cst.EmptyLine] = []
    for number, line in enumerate(node.body):
        edited = _edit_statement(line, number, plan)
        if edited:
            first, *others = edited
            body += [first.with_changes(leading_lines=_meet(above, _leading(first))), *others]
            above = []
        else:
            above = _meet(above, _leading(line))
    if not body:
        return node.with_changes(body=[_pass_instead(node.body[-1], above)])
    footer = [*(line for line in _meet(above, ()) if line.comment), *node.footer] if above else node.footer
    return node.with_changes(body=body, footer=footer)


def _plan(bodies: Sequence[Sequence[_Small]], changes: Sequence[Change]) -> _Plan:
    gone = {place for change in changes if change.remove for place in change.positions}
    new: dict[Position, list[_Small]] = {}
    for change in changes:
        # A new flag's statements stand in the order of those that they are spelled like.
        for words in change.insert:
            placed = sorted(zip(change.positions, words, strict=True))
            statements = [_new(bodies[line][part], text) for (line, part), text in placed]
            new.setdefault(max(change.positions), []).extend(statements)
    return _Plan(frozenset(gone), new)


def _reworded(body: Sequence[_Small], number: int, texts: Mapping[Position, str]) -> list[_Small]:
    """Return the statements of a line in which each word that becomes another one is that."""
    return [
        _with_text(small, texts[number, part], respell) if (number, part) in texts else small
        for part, small in enumerate(body)
    ]


def _new(small: _Small, text: str) -> _Small:
    """Return a statement like `small` for a new word; the comments in its brackets stay with `small`."""
    copy = small.visit(_Uncommented())
    assert isinstance(copy, cst.BaseSmallStatement)  # noqa: S101 - narrows the type: it removes no statement
    return _with_text(copy, text, spelled_like)


def _with_text(small: _Small, text: str, spell: Callable[[cst.BaseExpression, str], cst.SimpleString]) -> _Small:
    """Return the call with another text as its last argument."""
    match small:
        case cst.Expr(value=cst.Call(args=[*others, last]) as call):
            word = last.with_changes(value=spell(last.value, text))
            return small.with_changes(value=call.with_changes(args=[*others, word]))
    raise AssertionError(small)


class _Uncommented(cst.CSTTransformer):
    def leave_TrailingWhitespace(  # noqa: N802 - libcst's name
        self, original_node: cst.TrailingWhitespace, updated_node: cst.TrailingWhitespace
    ) -> cst.TrailingWhitespace:
        if original_node.comment is None:
            return updated_node
        return updated_node.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)

    def leave_EmptyLine(  # noqa: N802 - libcst's name
        self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine
    ) -> cst.EmptyLine | cst.RemovalSentinel:
        return cst.RemovalSentinel.REMOVE if original_node.comment else updated_node


def _edit_statement(line: cst.BaseStatement, number: int, plan: _Plan) -> list[cst.BaseStatement]:
    """Return what `line` becomes: nothing, itself, or itself with lines of the same make behind it."""
    if not isinstance(line, cst.SimpleStatementLine):
        return [line]
    if len(line.body) > 1:
        small = _edit_line(line.body, number, plan)
        return [line if small == list(line.body) else line.with_changes(body=small)] if small else []
    kept: list[cst.BaseStatement] = [] if (number, 0) in plan.gone else [line]
    ending = line.trailing_whitespace.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
    model = line.with_changes(leading_lines=(), trailing_whitespace=ending)
    added = [model.with_changes(body=[small.with_changes(semicolon=_NONE)]) for small in plan.new.get((number, 0), ())]
    if added and not kept:
        added[0] = added[0].with_changes(leading_lines=line.leading_lines)
    return [*kept, *added]


_NONE = cst.MaybeSentinel.DEFAULT


def _edit_line(body: Sequence[_Small], number: int, plan: _Plan) -> list[_Small]:
    """Return the statements that remain of a line of several."""
    result: list[_Small] = []
    for part, small in enumerate(body):
        if (number, part) not in plan.gone:
            result.append(small)
        result += plan.new.get((number, part), ())
    if not result or result == list(body):
        return result
    semicolon = cst.Semicolon(whitespace_after=cst.SimpleWhitespace(" "))
    joined = [
        small if isinstance(small.semicolon, cst.Semicolon) else small.with_changes(semicolon=semicolon)
        for small in result
    ]
    return [*joined[:-1], joined[-1].with_changes(semicolon=body[-1].semicolon)]


def _leading(statement: cst.BaseStatement) -> Sequence[cst.EmptyLine]:
    lines = getattr(statement, "leading_lines", ())
    assert isinstance(lines, Sequence)  # noqa: S101 - narrows the type: each statement that libcst has carries them
    return lines


def _meet(above: Sequence[cst.EmptyLine], below: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """Return the lines above a statement when those above a removed one come on top: no comment is lost.

    Blank lines alone do not add up: the longer stretch stands.
    """
    if any(line.comment for line in above):
        return [*above, *below]
    blank = next((index for index, line in enumerate(below) if line.comment), len(below))
    return list(below) if blank >= len(above) else [*above, *below[blank:]]


def _pass_instead(removed: cst.BaseStatement, above: Sequence[cst.EmptyLine]) -> cst.SimpleStatementLine:
    """Return a `pass` with the line end of what it stands for."""
    assert isinstance(removed, cst.SimpleStatementLine)  # noqa: S101 - narrows the type: no other line is ever removed
    ending = removed.trailing_whitespace.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
    return cst.SimpleStatementLine([cst.Pass()], leading_lines=above, trailing_whitespace=ending)
