"""What the expressions of a file hold of the flags, and which of them go by places or number."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from typing import Final

from archpatch.rewrite.held import COUNTABLE, LIST, NOTHING, TEXT, WORD, Held, union
from archpatch.rewrite.lookups import REPORTS
from archpatch.rewrite.names import Names
from archpatch.rewrite.spelling import is_arch_flag
from archpatch.rewrite.syntax import (
    Function,
    arguments_of,
    called,
    defaults,
    is_namespace,
    is_settled,
    is_super,
    is_whole,
    key_of,
    result_of,
    text_in,
)

__all__ = ["Values"]

#: These look at no element, or at all alike.
_HARMLESS: Final = REPORTS | {"callable", "hasattr", "id", "isinstance", "type"}
#: What runs or compiles with the flags, all of them; the commands are Python's own.
_COMMANDS: Final = frozenset({"Popen", "call", "check_call", "check_output", "run", "system"})
_USERS: Final = frozenset({"load", "load_inline", "setup", "spawn"})
_COPIES: Final = frozenset({"chain", "copy", "deepcopy", "deque", "list", "tuple"})
#: These are functions of a module, or methods of a text that is no flag.
_IN_MODULES: Final = frozenset({"chain", "copy", "deepcopy", "deque", "from_iterable", "join", "split"})
_PUTS: Final = frozenset({"append", "appendleft", "extend", "insert", "setdefault", "update"})
#: Methods of a list that go by no place, and of a text that keep all that is in it, with as many arguments.
_PLACELESS: Final = frozenset({"append", "appendleft", "clear", "copy", "count", "extend"})
_KEEPING: Final = {"encode": 0, "lstrip": 0, "replace": 2, "rstrip": 0, "strip": 0}
#: Methods that a list has not.
_LOOKUPS: Final = frozenset({"get", "items", "keys", "setdefault", "update", "values"})


class Values(Names):
    """Reads expressions: `seen` are the `lines` whose flags it came by, `counted` those of what counts flags."""

    def __init__(self, lines: Collection[int], syntax: ast.Module) -> None:
        super().__init__(syntax)
        self._lines = lines
        self._values: dict[int, Held] = {}
        self.seen: set[int] = set()
        self.counted: set[int] = set()

    def begin(self) -> None:
        """Read each expression anew, with what is known by now."""
        self._values.clear()

    def parameters(self, arguments: ast.arguments) -> None:
        """Have parameters hold their defaults."""
        for parameter, default in defaults(arguments):
            self.bind(ast.Name(parameter), default)

    def each(self, target: ast.expr, source: ast.expr, held: Held) -> None:
        """Have `target` be each element of `source`, which is `held`."""
        match target, source:
            case ast.Tuple(elts=[_, second]), ast.Call(func=ast.Attribute(attr="items")):
                target = second
        self.hold(target, held.item)
        self._change_back(ast.Tuple([target]), source)

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        """Have `target` be `value`."""
        match target, value:
            case (ast.Tuple(elts=targets), ast.Tuple(elts=values)) if len(targets) == len(values):
                for each, its in zip(targets, values, strict=True):
                    self.bind(each, its)
                return
        self.hold(target, self.value(value))
        self._change_back(target, value)

    def _change_back(self, target: ast.expr, value: ast.expr) -> None:
        """Have `value` hold what was put into it by the name of `target`."""
        for part in ast.walk(target):
            if key_of(part) in self.changed and not isinstance(target, ast.Subscript):
                held = self.held(key_of(part))
                self.change(value, held if part is target else held.wrapped)

    def hold(self, target: ast.expr, held: Held) -> None:
        """Have `target` hold what is `held`."""
        match target:
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                self.counts(target, held)
                for each in targets:
                    self.hold(each, held.item)
            case ast.Starred(value=each):
                self.hold(each, held.wrapped)
            case ast.Subscript(value=base):
                self.written(target)
                self.change(base, held if is_whole(target.slice) else held.wrapped)
            case ast.Name() | ast.Attribute():
                self.add(key_of(target), held)

    def written(self, target: ast.expr) -> None:
        """Look at the place that is written or deleted."""
        if isinstance(target, ast.Subscript):
            self.value(target)

    def count(self, node: ast.expr) -> None:
        """Look at what stands where all that holds flags may be counted."""
        if self.value(node) & ~WORD:
            self.counted.add(node.lineno)

    def counts(self, node: ast.expr, held: Held) -> None:
        """Note that the places or the number of what is `held` matter at `node`."""
        if held & COUNTABLE:
            self.counted.add(node.lineno)

    def value(self, node: ast.expr) -> Held:
        """Return what an expression may hold; note what it counts."""
        if id(node) not in self._values:
            self._values[id(node)] = self._read(node)
        return self._values[id(node)]

    def _read(self, node: ast.expr) -> Held:  # noqa: C901, PLR0911, PLR0912 - a table of expressions
        match node:
            case _ if self._is_flag(node):
                return TEXT
            case ast.Name() | ast.Attribute():
                if isinstance(node, ast.Attribute):
                    self.counts(node, self.value(node.value))
                return self.held(key_of(node)) | self.held(result_of(key_of(node)))
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return union(self._element(part) for part in parts)
            case ast.Dict(keys=keys, values=values):
                self._all([key for key in keys if key])
                return union(
                    self.value(value).wrapped if key else self.value(value)
                    for key, value in zip(keys, values, strict=True)
                )
            case ast.BinOp(left=left, op=ast.Add() | ast.Mult(), right=right):
                return (self.value(left) | self.value(right)) & ~WORD
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.counts(test, self.value(test))
                return self.value(body) | self.value(orelse)
            case ast.BoolOp(values=values):
                for value in values[:-1]:
                    self.counts(value, self.value(value))
                return union(map(self.value, values))
            case ast.Compare():
                self._compare(node)
                return NOTHING
            case ast.NamedExpr(target=target, value=value):
                self.bind(target, value)
                return self.value(value)
            case ast.Subscript():
                return self._subscript(node)
            case ast.ListComp() | ast.GeneratorExp():
                return self._comprehension(node)
            case ast.Call():
                return self._call(node)
            case ast.JoinedStr(values=values):
                return TEXT if union(map(self.value, values)) & ~WORD else NOTHING
            case ast.FormattedValue(value=value):
                return self.value(value)
        return self._unknown(node)

    def _is_flag(self, node: ast.expr) -> bool:
        """Whether this is one of the literals that it is all about."""
        text, first = text_in(node), node
        while isinstance(first, ast.BinOp):
            first = first.left
        is_flag = text is not None and first.lineno in self._lines and is_arch_flag(text)
        if is_flag:
            self.seen.add(first.lineno)
        return is_flag

    def _unknown(self, node: ast.expr) -> Held:
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.comprehension):
                self.generator(part, is_kept=False)
            elif isinstance(part, ast.arguments):
                self.parameters(part)
            elif isinstance(part, ast.expr):
                self.count(part)
        return NOTHING

    def _all(self, nodes: Sequence[ast.expr]) -> list[Held]:
        return [self.value(node) for node in nodes]

    def _element(self, node: ast.expr) -> Held:
        return self.value(node.value) if isinstance(node, ast.Starred) else self.value(node).wrapped

    def _compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            sides = self._all((left, right))
            if not isinstance(operator, ast.Is | ast.IsNot):
                self.counts(left, sides[0])
            if not isinstance(operator, ast.Is | ast.IsNot | ast.In | ast.NotIn):
                self.counts(right, sides[1])
            left = right

    def _subscript(self, node: ast.Subscript) -> Held:
        held = self.value(node.value)
        if is_namespace(node.value) and isinstance(node.slice, ast.Constant):
            return self.held(str(node.slice.value))
        self.count(node.slice)
        if is_whole(node.slice):
            return held
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            # Only a dict has such keys, and its texts are no words of a list.
            return held.item & ~WORD | (TEXT if LIST in held else NOTHING)
        self.counts(node, held)
        return held & ~COUNTABLE if isinstance(node.slice, ast.Slice) else held.item & ~WORD

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> Held:
        targets = [key_of(generator.target) for generator in node.generators]
        for generator, target in zip(node.generators, targets, strict=True):
            is_kept = isinstance(node.elt, ast.Name) and target == node.elt.id and targets.count(target) == 1
            self.generator(generator, is_kept=is_kept and all(is_settled(test, target) for test in generator.ifs))
        return self.value(node.elt).wrapped

    def generator(self, generator: ast.comprehension, *, is_kept: bool) -> None:
        """Look at a `for` of a comprehension; `is_kept` tells whether the comprehension gives an element as it is."""
        held = self.value(generator.iter)
        if TEXT in held or not is_kept:
            self.counts(generator.iter, held)
        self.each(generator.target, generator.iter, held)
        for test in generator.ifs:
            self.counts(test, self.value(test))

    def _call(self, node: ast.Call) -> Held:
        name, receiver = called(node)
        if name in self.functions:
            found = self._own_call(node, name)
            if name in self.rebound:
                self._unknown_call(node, name)
            if receiver is None or not self.value(receiver) & ~WORD:
                return found
        if receiver is not None and (found := self.value(receiver)) & ~WORD:
            return self._method(node, receiver, found)
        is_own = self._is_own(node.func)
        if name in (REPORTS if receiver is not None else () if is_own else _HARMLESS):
            self._all(arguments_of(node))
            return NOTHING
        result = None if is_own or (receiver is not None and name not in _IN_MODULES) else self._python_call(node, name)
        if result is not None:
            return result
        if receiver is not None and name in _PUTS:
            return self._put(node, receiver)
        self._unknown_call(node, name)
        return NOTHING

    def _is_own(self, function: ast.expr) -> bool:
        """Whether a name that Python knows is here another one's."""
        while isinstance(function, ast.Attribute):
            function = function.value
        return isinstance(function, ast.Name) and function.id in self.own

    def _python_call(self, node: ast.Call, name: str) -> Held | None:  # noqa: C901, PLR0911, PLR0912 - a table
        """Return what a function of Python's gives; None for one that is not known to leave places alone."""
        match name, node.args:
            case (("any" | "all"), [ast.GeneratorExp(generators=generators) as each]):
                for generator in generators:
                    tests = (each.elt, *generator.ifs)
                    self.generator(generator, is_kept=all(is_settled(test, key_of(generator.target)) for test in tests))
                self.counts(each.elt, self.value(each.elt))
                return NOTHING
            case name, parts if name in _COPIES and not node.keywords:
                return union(
                    self.value(part.value).item if isinstance(part, ast.Starred) else self.value(part) for part in parts
                )
            case (("eval" | "exec"), [ast.Constant(value=str(text)), *_]):
                if any(map(self.held, re.findall(r"\w+", text))):
                    self.counted.add(node.lineno)
                return NOTHING
            case "getattr", [_, ast.Constant(value=str(key)), *_]:
                return self.held(key)
            case "sum", [lists, *_]:
                others = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
                self.counts(lists, self.value(lists))
                return self.value(lists).item & ~WORD | union(self._all(others))
            case (("enumerate" | "zip"), parts) if not (found := union(self._all(parts))) & COUNTABLE:
                return found.wrapped
            case "from_iterable", [lists] if LIST not in self.value(lists):
                return self.value(lists).item & ~WORD
            case "split", [text]:
                return LIST if TEXT in self.value(text) else None
            case "join", [words] if LIST in self.value(words):
                return TEXT
            case "filter", [ast.Lambda() | ast.Constant(), words]:
                return self.value(words)
            case "dict", parts:
                own = (self.value(each.value).wrapped if each.arg else self.value(each.value) for each in node.keywords)
                return union([*own, *self._all(parts)])
        return None

    def _method(self, node: ast.Call, receiver: ast.expr, held: Held) -> Held:
        """Return what a method of something that holds flags gives."""
        name, _ = called(node)
        is_placeless = name in _PLACELESS or name in _LOOKUPS
        match name, node.args:
            case "insert", [ast.Constant(value=0), _]:
                is_placeless = True
            case (("pop" | "remove"), [ast.Constant(value=str()), *_]):
                is_placeless = True
            case "split", [] | [_] if LIST not in held and not node.keywords:
                return LIST
            case name, parts if _KEEPING.get(name) == len(parts) and LIST not in held:
                self._all(parts)
                return held
        if not is_placeless:
            self.counts(node, held)
        if name in _PUTS:
            return self._put(node, receiver) | held.item & ~WORD
        self._all(arguments_of(node))
        return held if name in ("copy", "items", "values") else held.item & ~WORD

    def _put(self, node: ast.Call, receiver: ast.expr) -> Held:
        """Have the list or dict that `receiver` gives take what a call hands to it; return what was handed over."""
        name, _ = called(node)
        held = union(self._all(node.args))
        named = union(self.value(each.value).wrapped if each.arg else self.value(each.value) for each in node.keywords)
        self.change(receiver, (held if name in ("extend", "update") else held.wrapped) | named)
        return held if name == "setdefault" else NOTHING

    def _unknown_call(self, node: ast.Call, name: str) -> None:
        """Count what a call gets, unless it makes an extension or runs a command."""
        is_user = name.endswith("Extension") or name in _USERS or is_super(node.func)
        is_user = is_user or (name in _COMMANDS and not self._is_own(node.func))
        if not isinstance(node.func, ast.Name | ast.Attribute):
            self.count(node.func)
        for part in node.args:
            value = part.value if isinstance(part, ast.Starred) else part
            if is_user:
                self.add("extra_compile_args", self.value(value))
            else:
                self.count(value)
        for keyword in node.keywords:
            held = self.value(keyword.value)
            if is_user:
                self.add(keyword.arg or "extra_compile_args", held if keyword.arg else held.item)
            elif held & ~WORD:
                self.counted.add(keyword.value.lineno)

    def _own_call(self, node: ast.Call, name: str) -> Held:
        """Have the parameters of the file's functions of this name be what a call hands over; return their result."""
        for function in self.functions[name]:
            names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
            free = iter(names[1:] if names[:1] in (["self"], ["cls"]) else names)
            for part in node.args:
                parameter = next(free, None)
                if isinstance(part, ast.Starred):
                    self.count(part.value)
                elif parameter:
                    self.bind(ast.Name(parameter), part)
                elif function.args.vararg:
                    self.add(function.args.vararg.arg, self.value(part).wrapped)
            self._own_keywords(node, function, names)
        return self.held(result_of(name))

    def _own_keywords(self, node: ast.Call, function: Function, names: Sequence[str]) -> None:
        known = {*names, *(each.arg for each in function.args.kwonlyargs)}
        rest = function.args.kwarg
        for keyword in node.keywords:
            if keyword.arg in known and keyword.arg:
                self.bind(ast.Name(keyword.arg), keyword.value)
            elif keyword.arg is None:
                for name in known:
                    self.add(name, self.value(keyword.value).item)
            if rest and keyword.arg not in known:
                held = self.value(keyword.value)
                self.add(rest.arg, held.wrapped if keyword.arg else held)
