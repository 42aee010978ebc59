"""Literals that are looked at, not emitted: compared, searched for, printed, documented. They stay as they are."""

from __future__ import annotations

from typing import Final

import libcst as cst

from archpatch.rewrite.tree import Spot

__all__ = ["REPORTS", "call_name", "is_looked_at"]

#: Calls that only say something.
REPORTS: Final = frozenset({"print", "warn", "warning", "info", "debug", "error", "critical", "exception", "log"})
_QUESTIONS: Final = frozenset(
    {"startswith", "endswith", "count", "find", "rfind", "fullmatch", "search", "exit", "echo"}
)
#: Of these only the first argument is a key; the others are values that can reach nvcc.
_LOOKUPS: Final = frozenset({"get", "getenv", "pop", "setdefault", "discard"})
_PROSE: Final = frozenset({"help", "description", "long_description", "msg", "message"})


def is_looked_at(spot: Spot) -> bool:  # noqa: PLR0911 - a table of contexts
    """Whether the literal at `spot` is only looked at, so that it has to stay whatever becomes of the flags."""
    is_argument = False
    for child, parent in spot.above():
        match parent.node:
            case cst.Raise() | cst.Assert():
                return True
            case cst.Comparison() | cst.ComparisonTarget() | cst.SubscriptElement() if not is_argument:
                return True
            case cst.DictElement() if child.field == "key":
                return True
            case cst.Expr():
                return child is spot
            case cst.Arg(keyword=cst.Name(value=keyword)) if keyword in _PROSE:
                return True
            case cst.Call(args=args) as call if child.field == "args" and _asks(call, child.node is args[0]):
                return True
            case cst.Arg() | cst.Lambda():
                is_argument = True
    return False


def call_name(call: cst.Call) -> tuple[str, str]:
    """Return what a call is called on and by which name: `("re", "sub")`, `("", "print")`."""
    match call.func:
        case cst.Name(value=name):
            return "", name
        case cst.Attribute(value=cst.Name(value=root), attr=cst.Name(value=name)):
            return root, name
        case cst.Attribute(attr=cst.Name(value=name)):
            return "?", name
    return "?", "?"


def _asks(call: cst.Call, is_first: bool) -> bool:  # noqa: FBT001 - private, and its one caller names it
    root, name = call_name(call)
    if name == "write" and _is_console(call.func):
        return True
    if name in REPORTS or name in _QUESTIONS or (name in _LOOKUPS and is_first):
        return True
    return root == "re" and name not in ("sub", "subn")


def _is_console(function: cst.BaseExpression) -> bool:
    match function:
        case cst.Attribute(
            value=cst.Attribute(attr=cst.Name(value="stdout" | "stderr")) | cst.Name(value="stdout" | "stderr")
        ):
            return True
    return False
