"""Small questions to the syntax tree as Python's own parser gives it: what is called, named, bound and defined."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import Final

__all__ = [
    "Function",
    "arguments_of",
    "bound_names",
    "called",
    "class_names",
    "defaults",
    "functions_of",
    "is_decorated",
    "is_namespace",
    "is_settled",
    "is_super",
    "is_whole",
    "key_of",
    "result_of",
    "text_in",
]

#: What gives something else each time.
_STATEFUL: Final = frozenset({"next", "pop", "popitem", "popleft", "send"})
#: These leave what a function returns as it is.
_DECORATORS: Final = frozenset({"cache", "cached_property", "classmethod", "lru_cache", "property", "staticmethod"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def text_in(node: ast.expr) -> str | None:
    """Return the text of a literal, also in parts; None where there is none, or more than that."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            texts = list(map(text_in, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = [text_in(left), text_in(right)]
        case _:
            return None
    return None if None in texts else "".join(map(str, texts))


def key_of(node: ast.AST) -> str:
    """Return what a name or an attribute is followed by."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def result_of(function: str) -> str:
    """Return what the result of a function is followed by."""
    return f"{function}()"


def called(node: ast.Call) -> tuple[str, ast.expr | None]:
    """Return the name that is called, and on what."""
    match node.func:
        case ast.Name(id=name):
            return name, None
        case ast.Attribute(value=receiver, attr=name):
            return name, receiver
    return "", None


def arguments_of(node: ast.Call) -> list[ast.expr]:
    """Return what a call hands over, without stars and keywords."""
    positional = [part.value if isinstance(part, ast.Starred) else part for part in node.args]
    return [*positional, *(keyword.value for keyword in node.keywords)]


def is_super(function: ast.expr) -> bool:
    """Whether this is a method of a base class: `super().method`."""
    match function:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
            return True
    return False


def is_whole(index: ast.expr) -> bool:
    """Whether a subscript is `[:]`."""
    match index:
        case ast.Slice(lower=None, upper=None, step=None):
            return True
    return False


def is_namespace(node: ast.expr) -> bool:
    """Whether the names of a module, a function or an object are looked up in what this gives."""
    match node:
        case ast.Call(func=ast.Name(id="globals" | "locals" | "vars")) | ast.Attribute(attr="__dict__"):
            return True
    return False


def is_settled(test: ast.expr, name: str) -> bool:
    """Whether a condition is about what `name` holds, and not about how often it was asked."""
    return not any(
        isinstance(part, ast.NamedExpr)
        or (isinstance(part, ast.Call) and (called(part)[0] in _STATEFUL or not _mentions(part, name)))
        for part in ast.walk(test)
    )


def _mentions(node: ast.expr, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


def defaults(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    """Yield each parameter that has a default, with it."""
    positional = [*arguments.posonlyargs, *arguments.args]
    yield from zip(
        (each.arg for each in positional[len(positional) - len(arguments.defaults) :]), arguments.defaults, strict=True
    )
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default:
            yield each.arg, default


def functions_of(syntax: ast.Module) -> dict[str, list[Function]]:
    """Return the functions of each name, and those that make an object of a class of that name."""
    found: dict[str, list[Function]] = {}
    for node in ast.walk(syntax):
        if isinstance(node, Function):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, Function) and part.name == "__init__":
                    found.setdefault(node.name, []).append(part)
    return found


def is_decorated(function: Function) -> bool:
    """Whether something may have made another function of it."""
    names = (key_of(each.func if isinstance(each, ast.Call) else each) for each in function.decorator_list)
    return not _DECORATORS.issuperset(names)


def class_names(syntax: ast.Module) -> set[str]:
    """Return the names of the classes."""
    return {node.name for node in ast.walk(syntax) if isinstance(node, ast.ClassDef)}


def bound_names(syntax: ast.Module) -> Iterator[str]:
    """Yield each variable, each parameter, and each import that is none of Python's own."""
    for node in ast.walk(syntax):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.Import(names=names):
                yield from (_bound(each) for each in names if not _is_pythons(each.name))
            case ast.ImportFrom(names=names) if not _is_pythons(node.module or ""):
                yield from map(_bound, names)


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _is_pythons(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names
