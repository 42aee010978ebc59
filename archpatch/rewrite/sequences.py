"""Flags that are neighbouring elements of a list or a tuple: assigned, extended, added, or passed on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import libcst as cst

from archpatch.rewrite.gaps import Gap, close_up, separator
from archpatch.rewrite.lookups import call_name
from archpatch.rewrite.refusals import shape_by_parent
from archpatch.rewrite.rows import Change, Find, Group, Item, Row, Stray, branches, scope, word
from archpatch.rewrite.spelling import Opaque
from archpatch.rewrite.tree import Spot, Tree

__all__ = ["sequence_rows"]

_Sequence = cst.List | cst.Tuple

#: Calls whose result does not follow from the elements one by one.
_COMPUTING: Final = frozenset(
    {"append", "enumerate", "filter", "insert", "join", "map", "product", "reduce", "reversed", "set", "sorted"}
    | {"zip"}
)


def sequence_rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row | Stray]:
    """Yield each list or tuple that has an arch flag in it, or a stray for each flag where the list is out of reach."""
    lists: dict[int, tuple[Spot, list[Find]]] = {}
    for find in finds.values():
        element = find.spot.parent
        if element and isinstance(element.node, cst.Element) and element.parent:
            lists.setdefault(id(element.parent.node), (element.parent, []))[1].append(find)
    for spot, inside in lists.values():
        if not isinstance(spot.node, _Sequence):
            yield from (Stray(find.node, "set") for find in inside)
            continue
        group = _group(tree, spot)
        if isinstance(group, str):
            yield from (Stray(find.node, group) for find in inside)
        else:
            yield Row(
                container=spot,
                group=group,
                branches=branches(spot),
                items=tuple(_items(spot.node, finds)),
                edit=_edit,
            )


def _items(node: _Sequence, finds: Mapping[int, Find]) -> Iterator[Item]:
    for index, element in enumerate(node.elements):
        # A starred element is a word by itself: it never is the value of the option before it.
        value = element.value
        yield Item(word(value, finds) if isinstance(element, cst.Element) else Opaque.UNKNOWN, value, (index,))


def _group(tree: Tree, spot: Spot) -> Group | str:
    """Return the group that the list at `spot` belongs to, or the shape that its refusal names."""
    whole, found = spot.node, ""
    for child, parent in spot.above():
        link = _link(tree, child, parent)
        if link is not None:
            found = link
            break
        whole = parent.node
    return Group(scope(spot), found[1:] or str(id(whole))) if found.startswith("=") else found


def _link(tree: Tree, child: Spot, parent: Spot) -> str | None:  # noqa: C901, PLR0911 - a table: one case per parent
    """Return what the step from `child` to `parent` says: `=name`, `=` for a list of its own, a shape; None: climb."""
    match parent.node:
        case cst.Assign(targets=[cst.AssignTarget(target=target), *_]):
            return "unpacking" if isinstance(target, cst.Tuple | cst.List) else _named(tree, target)
        case cst.AnnAssign(target=target) | cst.AugAssign(target=target, operator=cst.AddAssign()):
            return _named(tree, target)
        case cst.BinaryOperation(operator=cst.Add()):
            return None
        case cst.Arg(star=""):
            return _passed(tree, parent)
        case cst.Call(func=cst.Name(value="list" | "tuple")) if child.field == "args":
            return None
        case cst.DictElement() if child.field == "value":
            return _in_dict(tree, parent)
        case cst.Return():
            return "=return"
        case cst.Param():
            return "="
        case cst.StarredElement():
            return None
        case cst.List() | cst.Tuple() if isinstance(child.node, cst.StarredElement):
            return None
        case cst.Arg():
            return "star-unpacking"
    return shape_by_parent(parent.node)


def _passed(tree: Tree, arg: Spot) -> str | None:
    """Judge a list that is an argument."""
    match arg.parent and arg.parent.node:
        case cst.Call(func=cst.Name(value="list" | "tuple")):
            return None
        case cst.Call(func=cst.Attribute(value=receiver, attr=cst.Name(value="extend"))):
            return _named(tree, receiver)
        case cst.Call() as call:
            return "helper-call" if call_name(call)[1] in _COMPUTING else "="
    return "unsupported"


def _in_dict(tree: Tree, element: Spot) -> str:
    """Name the value of a literal key in a dict that is assigned: `args = {"nvcc": [...]}` is `args["nvcc"]`."""
    target = element.parent and element.parent.parent
    match element.node, target and target.node:
        case cst.DictElement(key=cst.SimpleString() as key), cst.Assign(targets=[cst.AssignTarget(target=name)]):
            return f"{_named(tree, name)}[{_quoted(tree, key)}]"
    return "="


def _named(tree: Tree, target: cst.BaseExpression) -> str:
    return f"={_quoted(tree, target)}"


def _quoted(tree: Tree, node: cst.CSTNode) -> str:
    return tree.code(node).replace("'", '"')


def _edit(node: cst.CSTNode, changes: Sequence[Change]) -> cst.CSTNode:
    """Carry out `changes` among the elements of a list or tuple."""
    assert isinstance(node, _Sequence)  # noqa: S101 - narrows the type
    gaps = _gaps(node)
    gone = {place[0] for change in changes if change.remove for place in change.positions}
    new = {change.positions[-1][0]: change for change in changes if change.insert}
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
            added, after = _insert(gaps, new[index], run, opens=not elements)
            spaces += [space for space, _ in added]
            elements += [element for _, element in added]
            run = [after]
    spaces.append(_close(run, opens=not elements, closes=True))
    return _rebuild(node, elements, spaces)


def _insert(
    gaps: Sequence[Gap], change: Change, run: Sequence[Gap], *, opens: bool
) -> tuple[list[tuple[Gap, cst.Element]], Gap]:
    """Return the new elements, each with the gap in front of it, and the gap behind them.

    They are spaced like the flag that they stand by. `run` is the white space since the last element that stays.
    """
    own = [separator(gaps[index]) for (index,) in change.positions]
    *ahead, behind = run
    added = [
        (own[min(part, len(own) - 1)], cst.Element(literal))
        for words in change.insert
        for part, literal in enumerate(words)
    ]
    first = _close(ahead, opens=opens, closes=False) if ahead else added[0][0]
    if not ahead and isinstance(first, cst.ParenthesizedWhitespace) and isinstance(behind, cst.ParenthesizedWhitespace):
        # The comment at the end of the flag's line stays on that line.
        line = first.first_line
        first, behind = first.with_changes(first_line=behind.first_line), behind.with_changes(first_line=line)
    return [(first, added[0][1]), *added[1:]], behind


def _close(run: Sequence[Gap], *, opens: bool, closes: bool) -> Gap:
    return run[0] if len(run) == 1 else close_up(run, opens=opens, closes=closes)


def _gaps(node: _Sequence) -> list[Gap]:
    """Return the white space behind the opening bracket, behind each comma, and before the closing bracket."""
    opening: Gap = cst.SimpleWhitespace("")
    closing: Gap = cst.SimpleWhitespace("")
    if isinstance(node, cst.List):
        opening, closing = node.lbracket.whitespace_after, node.rbracket.whitespace_before
    elif node.lpar:
        opening, closing = node.lpar[-1].whitespace_after, node.rpar[0].whitespace_before
    commas = [element.comma for element in node.elements[:-1]]
    return [opening, *(comma.whitespace_after for comma in commas if isinstance(comma, cst.Comma)), closing]


def _rebuild(node: _Sequence, elements: Sequence[cst.BaseElement], spaces: Sequence[Gap]) -> _Sequence:
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
