"""What the text alone does not prove: the shapes that are refused, why, and what to do about each."""

from __future__ import annotations

from typing import Final

import libcst as cst

from archpatch.rewrite.lookups import call_name
from archpatch.rewrite.outcome import Refusal
from archpatch.rewrite.rows import Find
from archpatch.rewrite.tree import Spot

__all__ = ["out_of_reach", "refusal", "shape_by_parent", "shape_of"]

_LITERAL: Final = 'Write the flags as literals, for example "-gencode=arch=compute_90,code=sm_90", one per arch.'
_VARIABLE: Final = "If the package has an arch variable of its own, set that instead and leave the file alone."
_OWN: Final = f"{_LITERAL} {_VARIABLE}"
_PLACE: Final = "Put the flag itself into the list that reaches the extension."

_REASONS: Final[dict[str, tuple[str, str]]] = {
    "append-expression": ("the flag is appended inside another expression", _PLACE),
    "comprehension": ("the flags go through a comprehension", _OWN),
    "computed-value": ("the value of this option is not a literal", _OWN),
    "concatenation": ("the flag is put together at run time", _OWN),
    "conditional-expression": ("the flag depends on a condition inside an expression", "Write it as an if statement."),
    "default-argument": ("the flags are a function's default argument", _OWN),
    "dict-value": ("the flag is the value of a dict, which says nothing about where it goes", _PLACE),
    "f-string": ("the flag is put together at run time", _OWN),
    "format": ("the flag is put together at run time", _OWN),
    "gpu-code": ("-code works together with -arch, wherever that stands", "Write one -gencode per arch instead."),
    "helper-call": ("the flag is an argument of a function that may do anything with it", _PLACE),
    "insert": ("the flag is inserted at a position, which others may rely on", "Use append."),
    "join": ("the flags are joined into one string", _PLACE),
    "load": ("the flags belong to an extension that is compiled on import", "Set TORCH_CUDA_ARCH_LIST when it runs."),
    "loop": ("a loop goes over the flags", _OWN),
    "machine-dependent": ("what this flag compiles depends on the machine or the toolkit", _OWN),
    "method": ("a method makes something else of the flag", _OWN),
    "nested-list": ("the list is part of another list, which others may go over", _PLACE),
    "not-reproducible": (
        "libcst cannot give this file back byte for byte",
        "Remove form feeds and other control characters in front of statements.",
    ),
    "one-string": (
        "several arguments stand in one string, which nvcc refuses unless something splits it",
        "Write option and value as two literals.",
    ),
    "orphan-flag": ("the value of this option does not stand next to it; nvcc refuses an option alone", _PLACE),
    "orphan-value": ("the value has no -gencode in front of it; nvcc refuses it", 'Put "-gencode" in front of it.'),
    "percent-format": ("the flag is put together at run time", _OWN),
    "remove": ("the flag is taken out of a list, which fails when it is not there", "Remove that statement."),
    "replace": ("the flag is replaced in a string", _OWN),
    "returned-string": ("a function returns the flag", _PLACE),
    "set": ("the flags stand in a set, which has no order", "Use a list."),
    "split": ("the flags are split from one string", _OWN),
    "star-unpacking": ("the flags are unpacked from a list of their own", _PLACE),
    "variable": ("the flag is kept in a variable, which others may use", _PLACE),
    "subprocess": ("the flag belongs to a command that setup.py runs itself", _OWN),
    "syntax": ("this is not Python as this interpreter reads it", "Correct it, or run archpatch in a newer Python."),
    "too-deep": ("expressions or statements are nested too deeply", "Flatten the deepest ones."),
    "unknown-arch": ("the flag names an arch that is not known, or is none", "Correct it, or remove it."),
    "unpacking": ("the flags are unpacked into several names", "Assign them one by one."),
    "unsupported": ("the flag stands where it is not clear what becomes of it", _PLACE),
}

_METHODS: Final = {"split": "split", "format": "format", "replace": "replace", "join": "join"}
_ARGUMENTS: Final = {
    "append": "append-expression",
    "index": "remove",
    "insert": "insert",
    "join": "join",
    "remove": "remove",
    "replace": "replace",
    "sub": "replace",
    "subn": "replace",
}
_COMMANDS: Final = frozenset({"Popen", "call", "check_call", "check_output", "popen", "run", "system"})


def refusal(shape: str, line: int, *, detail: str = "") -> Refusal:
    """Return the refusal of `shape` at `line`; `detail` adds to its reason."""
    reason, remedy = _REASONS[shape]
    return Refusal(line=line, shape=shape, reason=f"{reason}: {detail}" if detail else reason, remedy=remedy)


def out_of_reach(spot: Spot) -> str | None:
    """Return the shape for a literal inside a call that uses it up itself; None where it goes on to the extension."""
    for _, parent in spot.above():
        if isinstance(parent.node, cst.Call):
            root, name = call_name(parent.node)
            if name in ("load", "load_inline"):
                return "load"
            if name in _COMMANDS and root in ("subprocess", "os", ""):
                return "subprocess"
    return None


def shape_of(find: Find) -> str:
    """Return the shape of a literal that is in none of those that are dealt with."""
    parent = find.spot.parent
    node = parent.node if parent else None
    if find.is_computed:
        return "f-string"
    match node:
        case cst.Attribute(attr=cst.Name(value=name)):
            return _METHODS.get(name, "method")
        case cst.BinaryOperation(operator=operator):
            return "percent-format" if isinstance(operator, cst.Modulo) else "concatenation"
        case cst.Arg():
            call = parent.parent.node if parent and parent.parent else None
            name = call_name(call)[1] if isinstance(call, cst.Call) else ""
            return _ARGUMENTS.get(name, "helper-call")
    return shape_by_parent(node)


def shape_by_parent(node: cst.CSTNode | None) -> str:
    """Return the shape of a literal, or of a list of them, directly below `node`."""
    return _BY_PARENT.get(type(node), "unsupported")


_BY_PARENT: Final[dict[type, str]] = {
    cst.AnnAssign: "variable",
    cst.Assign: "variable",
    cst.AugAssign: "variable",
    cst.BooleanOperation: "conditional-expression",
    cst.CompFor: "loop",
    cst.DictComp: "comprehension",
    cst.DictElement: "dict-value",
    cst.Element: "nested-list",
    cst.For: "loop",
    cst.GeneratorExp: "comprehension",
    cst.IfExp: "conditional-expression",
    cst.ListComp: "comprehension",
    cst.NamedExpr: "variable",
    cst.Param: "default-argument",
    cst.Return: "returned-string",
    cst.SetComp: "comprehension",
    cst.StarredElement: "star-unpacking",
}
