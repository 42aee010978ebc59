"""Loops that do nothing but put what they go over into a list: `for pair in [...]: flags += pair`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Final

import libcst as cst

from archpatch.rewrite.calls import Put
from archpatch.rewrite.rows import Branch, Group, branches, scope
from archpatch.rewrite.tree import Spot, Tree

__all__ = ["looped_into", "stays_inside"]

#: What stands in these runs later than the loop around them.
_LATER: Final = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.GeneratorExp)

_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

#: These read a variable without naming it.
_READERS: Final = frozenset({"globals", "locals", "vars"})


def looped_into(
    spot: Spot, tree: Tree, read_put: Callable[[cst.CSTNode], Put | None]
) -> tuple[Group, tuple[Branch, ...]] | None:
    """Return where a loop over the list at `spot` puts each element, and under which conditions it does.

    `read_put` reads the loop's one statement. None where that does more, or where anything else may see the loop's
    variable, which holds the last element behind the loop.
    """
    loop = spot.parent
    if loop is None or spot.field != "iter" or _is_in_class(loop):
        return None
    match loop.node:
        case cst.For(
            target=cst.Name(value=name),
            body=(
                cst.IndentedBlock(body=[cst.SimpleStatementLine(body=[small])]) | cst.SimpleStatementSuite(body=[small])
            ),
            orelse=None,
            asynchronous=None,
        ):
            put = read_put(small)
            if put and _is_name(put[1], name) and not _mentions(put[0], name) and stays_inside(name, tree.syntax):
                # A loop over elements that are there runs: only what is around it may not.
                return Group(scope(loop), tree.name(put[0])), branches(loop)
    return None


def _is_in_class(loop: Spot) -> bool:
    """Whether the loop's variable is an attribute of a class."""
    owners = (up.node for _, up in loop.above() if isinstance(up.node, cst.FunctionDef | cst.ClassDef))
    return isinstance(next(owners, None), cst.ClassDef)


def _is_name(node: cst.CSTNode, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name


def _mentions(node: cst.CSTNode, name: str) -> bool:
    """Whether `name` stands in `node`: a list that depends on the element, such as `args[flag]`."""
    return _is_name(node, name) or any(_mentions(part, name) for part in node.children)


def stays_inside(name: str, syntax: ast.Module) -> bool:
    """Whether each use of `name` stands in exactly one loop over it: behind or around that it is the last element.

    What a comprehension calls so is another variable.
    """
    if any(isinstance(node, ast.Name) and node.id in _READERS for node in ast.walk(syntax)):
        return False
    loops = (node for node in ast.walk(syntax) if isinstance(node, ast.For) and _uses(node.target, name))
    parts = (part for loop in loops for part in (loop.target, *loop.body))
    inside = [id(use) for part in parts for use in _at_once(part, name)]
    uses = [id(node) for node in ast.walk(syntax) if _uses(node, name)]
    other = _of_comprehensions(name, syntax)
    return sorted(use for use in inside if use not in other) == sorted(use for use in uses if use not in other)


def _of_comprehensions(name: str, syntax: ast.Module) -> set[int]:
    """Return the `id` of each use of `name` that is the variable of a comprehension, seen nowhere else."""
    found: set[int] = set()
    for node in ast.walk(syntax):
        if isinstance(node, _COMPREHENSIONS) and any(
            _uses(part, name) for each in node.generators for part in ast.walk(each.target)
        ):
            outside = {id(part) for part in ast.walk(node.generators[0].iter)}
            found |= {id(part) for part in ast.walk(node) if _uses(part, name) and id(part) not in outside}
    return found


def _at_once(node: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield the uses of `name` in `node` that run when it runs."""
    if _uses(node, name):
        yield node
    if not isinstance(node, _LATER):
        for part in ast.iter_child_nodes(node):
            yield from _at_once(part, name)


def _uses(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Name(id=used):
            return used == name
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            return name in names
    return False
