"""Uses of a list that go by the places or the number of its elements: where a flag goes, they find something else.

Names are followed over the whole file, by their spelling and whatever the order. What is not known to leave places and
number alone counts.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from itertools import permutations

from archpatch.rewrite.for_loops import stays_inside
from archpatch.rewrite.held import LIST, TEXT
from archpatch.rewrite.syntax import Function, is_settled, key_of, result_of
from archpatch.rewrite.values import Values

__all__ = ["counted_lines"]

_Part = ast.stmt | ast.withitem | ast.ExceptHandler | ast.match_case


def counted_lines(lines: Collection[int], syntax: ast.Module) -> list[int]:
    """Return the lines, from 1, of what counts flags whose literals begin in `lines`."""
    if not lines:
        return []
    flow = _Flow(lines, syntax)
    known = -1
    while known < flow.size:
        known = flow.size
        flow.begin()
        flow.visit(syntax, "")
    # What was never come by may be counted anywhere.
    return sorted({*flow.counted, *(line for line in lines if line not in flow.seen)})


class _Flow(Values):
    """Goes through the statements of a file, again and again, until nothing new is known."""

    def __init__(self, lines: Collection[int], syntax: ast.Module) -> None:
        super().__init__(lines, syntax)
        self._syntax = syntax

    def visit(self, node: ast.AST, function: str) -> None:
        """Go through all statements in `node`, which is part of `function`."""
        if isinstance(node, Function):
            function = node.name
            self.parameters(node.args)
        if isinstance(node, ast.Return) and node.value:
            self.bind(ast.Name(result_of(function)), node.value)
            if function in self.decorated:
                self.count(node.value)
        elif isinstance(node, _Part):
            self._statement(node)
        for part in ast.iter_child_nodes(node):
            if isinstance(part, _Part):
                self.visit(part, function)

    def _statement(self, node: ast.AST) -> None:  # noqa: C901, PLR0912 - a table of statements
        match node:
            case ast.FunctionDef(decorator_list=parts) | ast.AsyncFunctionDef(decorator_list=parts):
                for part in parts:
                    self.count(part)
            case ast.ClassDef(decorator_list=parts, bases=bases, keywords=keywords):
                for part in (*parts, *bases, *(keyword.value for keyword in keywords)):
                    self.count(part)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.bind(target, value)
                for one, other in permutations((each for each in targets if key_of(each)), 2):
                    self.bind(one, other)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                self.count(annotation)
                if value:
                    self.bind(target, value)
            case ast.AugAssign(target=target, op=ast.Add(), value=value):
                self.written(target)
                self.change(target, self.value(value))
            case ast.For() | ast.AsyncFor():
                self._loop(node)
            case ast.Delete(targets=targets):
                for target in targets:
                    self.written(target)
            case ast.Expr(value=value):
                self.value(value)
            case ast.AST():
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.count(child)

    def _loop(self, loop: ast.For | ast.AsyncFor) -> None:
        held = self.value(loop.iter)
        if TEXT in held or (LIST in held and not self._keeps_each(loop)):
            self.counted.add(loop.lineno)
        self.each(loop.target, loop.iter, held)

    def _keeps_each(self, loop: ast.For | ast.AsyncFor) -> bool:
        """Whether a loop does nothing but put its elements into lists, each one or those that a condition lets in."""
        match loop:
            case ast.For(target=ast.Name(id=name), orelse=[]):
                return stays_inside(name, self._syntax) and all(_only_puts(part, name) for part in loop.body)
        return False


def _only_puts(statement: ast.stmt, name: str) -> bool:
    """Whether a statement does nothing but put what `name` holds into a list, or not."""
    match statement:
        case ast.Pass() | ast.Continue():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append"), args=[ast.Name(id=word)])):
            return word == name
        case ast.AugAssign(op=ast.Add(), value=ast.List(elts=[ast.Name(id=word)])):
            return word == name
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"))):
            return True
        case ast.If(test=test, body=body, orelse=orelse):
            return is_settled(test, name) and all(_only_puts(part, name) for part in (*body, *orelse))
    return False
