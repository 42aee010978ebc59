"""The elements of a list or tuple: read as words, taken out, put in; a last comma and the layout stay."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

import libcst as cst

from archpatch.rewrite.gaps import Gap, close_up, separator
from archpatch.rewrite.literals import respell, spelled_like
from archpatch.rewrite.rows import Change, Find, Item, Position, item
from archpatch.rewrite.spelling import Opaque
from archpatch.rewrite.tree import Spot

__all__ = ["Elements", "edit_elements", "element_items", "holders"]

Elements = cst.List | cst.Tuple


def holders(finds: Mapping[int, Find]) -> Iterator[tuple[Spot, list[Find]]]:
    """Yield each list, tuple or set that has finds among its elements, with these."""
    found: dict[int, tuple[Spot, list[Find]]] = {}
    for find in finds.values():
        element = find.spot.parent
        if element and isinstance(element.node, cst.Element) and element.parent:
            found.setdefault(id(element.parent.node), (element.parent, []))[1].append(find)
    yield from found.values()


def element_items(node: Elements, finds: Mapping[int, Find], *, below: Position = ()) -> Iterator[Item]:
    """Yield each element as a word; `below` is where the list itself stands in the container of the row."""
    for index, element in enumerate(node.elements):
        found = item(element.value, finds, (*below, index))
        # A starred element is a word by itself: it never is the value of the option before it.
        yield found if isinstance(element, cst.Element) else replace(found, word=Opaque.UNKNOWN)


def edit_elements(node: cst.CSTNode, changes: Sequence[Change]) -> cst.CSTNode:
    """Carry out `changes` among the elements of a list or tuple."""
    assert isinstance(node, Elements)  # noqa: S101 - narrows the type
    node = _reworded(node, {place: text for change in changes for (place,), text in change.reword})
    gone = {place for change in changes if change.remove for (place,) in change.positions}
    new = {change.positions[-1][0]: change for change in changes if change.insert}
    return _replaced(node, gone, new) if gone or new else node


def _reworded(node: Elements, texts: Mapping[int, str]) -> Elements:
    elements = [
        element.with_changes(value=respell(element.value, texts[index])) if index in texts else element
        for index, element in enumerate(node.elements)
    ]
    return node.with_changes(elements=elements) if texts else node


def _replaced(node: Elements, gone: Container[int], new: Mapping[int, Change]) -> Elements:
    """Return the sequence without the elements that are `gone`, and with those that are `new` behind a place."""
    gaps = _gaps(node)
    elements: list[cst.BaseElement] = []
    spaces: list[Gap] = []
    run = [gaps[0]]
    for index, element in enumerate(node.elements):
        if index not in gone:
            spaces.append(_close(run, opens=not elements, closes=False))
            elements.append(element)
            run = []
        run.append(gaps[index + 1])
        if index in new:
            literals = _literals(node, new[index])
            own = [separator(gaps[place]) for (place,) in new[index].positions]
            added, after = _insert(literals, own, run, opens=not elements)
            spaces += [space for space, _ in added]
            elements += [element for _, element in added]
            run = [after]
    spaces.append(_close(run, opens=not elements, closes=True))
    return _rebuild(node, elements, spaces)


def _literals(node: Elements, change: Change) -> list[list[cst.SimpleString]]:
    """Return the literals of each new flag, spelled like those that it stands by."""
    models = [node.elements[place].value for (place,) in change.positions]
    return [[spelled_like(model, text) for model, text in zip(models, words, strict=True)] for words in change.insert]


def _insert(
    literals: Sequence[Sequence[cst.SimpleString]], own: Sequence[Gap], run: Sequence[Gap], *, opens: bool
) -> tuple[list[tuple[Gap, cst.Element]], Gap]:
    """Return the new elements, each with the gap in front of it, and the gap behind them.

    They are spaced like the flag that they stand by, whose gaps are its `own`. `run` is the white space since the last
    element that stays.
    """
    *ahead, behind = run
    added = [(own[part], cst.Element(literal)) for words in literals for part, literal in enumerate(words)]
    first = _close(ahead, opens=opens, closes=False) if ahead else added[0][0]
    if not ahead and isinstance(first, cst.ParenthesizedWhitespace) and isinstance(behind, cst.ParenthesizedWhitespace):
        # The comment at the end of the flag's line stays on that line.
        line = first.first_line
        first, behind = first.with_changes(first_line=behind.first_line), behind.with_changes(first_line=line)
    return [(first, added[0][1]), *added[1:]], behind


def _close(run: Sequence[Gap], *, opens: bool, closes: bool) -> Gap:
    return run[0] if len(run) == 1 else close_up(run, opens=opens, closes=closes)


def _gaps(node: Elements) -> list[Gap]:
    """Return the white space behind the opening bracket, behind each comma, and before the closing bracket."""
    opening: Gap = cst.SimpleWhitespace("")
    closing: Gap = cst.SimpleWhitespace("")
    if isinstance(node, cst.List):
        opening, closing = node.lbracket.whitespace_after, node.rbracket.whitespace_before
    elif node.lpar:
        opening, closing = node.lpar[-1].whitespace_after, node.rpar[0].whitespace_before
    commas = [element.comma for element in node.elements[:-1]]
    return [opening, *(comma.whitespace_after for comma in commas if isinstance(comma, cst.Comma)), closing]


def _rebuild(node: Elements, elements: Sequence[cst.BaseElement], spaces: Sequence[Gap]) -> Elements:
    """Return the sequence with these elements and gaps; a comma after the last one stays if there was one."""
    old = node.elements[-1].comma
    last = old if isinstance(old, cst.Comma) else cst.MaybeSentinel.DEFAULT
    if isinstance(node, cst.Tuple) and len(elements) == 1 and not isinstance(last, cst.Comma):
        last = cst.Comma()
    placed = [
        element.with_changes(comma=_comma(element).with_changes(whitespace_after=space))
        for element, space in zip(elements[:-1], spaces[1:], strict=False)
    ]
    placed += [element.with_changes(comma=last) for element in elements[-1:]]
    opening, closing = (spaces[0], spaces[-1]) if elements else (spaces[0], cst.SimpleWhitespace(""))
    if isinstance(node, cst.List):
        return node.with_changes(
            elements=placed,
            lbracket=node.lbracket.with_changes(whitespace_after=opening),
            rbracket=node.rbracket.with_changes(whitespace_before=closing),
        )
    if not node.lpar:
        brackets = {} if elements else {"lpar": [cst.LeftParen()], "rpar": [cst.RightParen()]}
        return node.with_changes(elements=placed, **brackets)
    return node.with_changes(
        elements=placed,
        lpar=[*node.lpar[:-1], node.lpar[-1].with_changes(whitespace_after=opening)],
        rpar=[node.rpar[0].with_changes(whitespace_before=closing), *node.rpar[1:]],
    )


def _comma(element: cst.BaseElement) -> cst.Comma:
    return element.comma if isinstance(element.comma, cst.Comma) else cst.Comma()
