"""What each name of a file may hold of the flags; by its spelling, whatever the scope and the order."""

from __future__ import annotations

import ast

from archpatch.rewrite.held import COUNTABLE, NOTHING, Held
from archpatch.rewrite.syntax import bound_names, class_names, functions_of, is_decorated, key_of, result_of

__all__ = ["Names"]


class Names:
    """What is known of the names of a file. It only ever grows.

    `functions` are those of the file by their names, `decorated` the names of those that may be others when they are
    called, `rebound` the names that stand for something else too, `own` all that are not what Python calls so.
    """

    def __init__(self, syntax: ast.Module) -> None:
        self.functions = functions_of(syntax)
        self.decorated = {name for name, them in self.functions.items() if any(map(is_decorated, them))}
        self.rebound = frozenset(bound_names(syntax))
        self.own = self.rebound | self.functions.keys() | class_names(syntax)
        self.changed: set[str] = set()
        self._held: dict[str, Held] = {}

    @property
    def size(self) -> int:
        """How much is known."""
        return sum(held.value.bit_count() for held in self._held.values()) + len(self.changed)

    def held(self, key: str) -> Held:
        """Return what a name may hold."""
        return self._held.get(key, NOTHING)

    def add(self, key: str, held: Held) -> None:
        """Have a name hold what is `held` too."""
        if held:
            self._held[key] = self.held(key) | held

    def change(self, node: ast.expr, held: Held) -> None:  # noqa: C901, PLR0912 - a table
        """Have the list that `node` gives hold what is `held`, and so all the names that it goes by."""
        match node:
            case _ if not held:
                return
            case ast.Name() | ast.Attribute():
                self.add(key_of(node), held)
                self.changed.add(key_of(node))
            case ast.Subscript(value=base) | ast.Call(func=ast.Attribute(value=base, attr="get" | "setdefault")):
                self.change(base, held.wrapped)
            case ast.Call(func=ast.Attribute(value=base, attr="items" | "values")):
                self.change(base, held)
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                for keyword in keywords:
                    self.change(keyword.value, held.item if keyword.arg else held)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in self.functions:
                self.add(result_of(name), held)
                self.changed.add(result_of(name))
            case ast.Call(args=parts):
                # What is in a copy, or in what numbers the elements, is in what that was made from.
                for part in parts:
                    self.change(part, held & ~COUNTABLE)
            case ast.IfExp(body=one, orelse=other):
                self.change(one, held)
                self.change(other, held)
            case ast.BoolOp(values=parts):
                for part in parts:
                    self.change(part, held)
            case ast.NamedExpr(value=part):
                self.change(part, held)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Dict(values=parts):
                for part in parts:
                    self.change(part, held.item)
