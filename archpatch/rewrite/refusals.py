"""What the text alone does not prove: the shapes that are left to the guard, and those that are refused, and why."""

from __future__ import annotations

import re
from typing import Final

import libcst as cst

from archpatch.rewrite.literals import text_of
from archpatch.rewrite.lookups import call_name
from archpatch.rewrite.outcome import FlagSource, Refusal
from archpatch.rewrite.rows import Find
from archpatch.rewrite.tree import Spot

__all__ = [
    "flag_source",
    "gives_cmake_archs",
    "is_behind_guard",
    "is_guarded",
    "out_of_reach",
    "refusal",
    "shape_by_parent",
    "shape_of",
]

_VARIABLE: Final = "If the package has an arch variable of its own, set that instead and leave the file alone."
_PLACE: Final = "Put the flags into extra_compile_args of the extension."

#: What neither an edit nor the guard can reach: why, and what to do.
_REFUSED: Final[dict[str, tuple[str, str]]] = {
    "cmake": (
        "CMake gets its archs here, and no arch flag passes through setuptools",
        "Leave the archs out, and set CUDAARCHS or the package's own variable instead.",
    ),
    "compiler-hook": (
        "the flag is added where setup.py replaces the compiler's own steps, behind all that the guard sees",
        _PLACE,
    ),
    "encoding": ("this encoding cannot be read and written again without a change", "Save the file as UTF-8."),
    "environment": (
        "the flag goes to nvcc through an environment variable",
        "Remove it, and set TORCH_CUDA_ARCH_LIST or the package's own variable.",
    ),
    "generated-code": ("the flag stands in text that becomes a program or a file of its own", _PLACE),
    "libcst": (
        "Python reads this file, but libcst, which edits it, does not",
        "Update libcst, or write what stands there in plainer Python.",
    ),
    "load": ("the flags belong to an extension that is compiled on import", "Set TORCH_CUDA_ARCH_LIST when it runs."),
    "ninja-writer": (
        "setup.py replaces a part of torch that hands nvcc its flags, behind all that an edit or the guard sees",
        _VARIABLE,
    ),
    "not-reproducible": (
        "libcst cannot give this file back byte for byte",
        "Remove form feeds and other control characters in front of statements.",
    ),
    "subprocess": (
        "the flag belongs to a command that setup.py runs itself, past all extensions",
        f"Build what it compiles through an extension, with the flags in extra_compile_args. {_VARIABLE}",
    ),
    "syntax": ("this is not Python as this interpreter reads it", "Correct it, or run archpatch in a newer Python."),
    "too-deep": ("expressions or statements are nested too deeply", "Flatten the deepest ones."),
}

#: What the text alone does not prove, so that the guard takes over, and why.
_GUARDED: Final[dict[str, str]] = {
    "asks-gpu": "setup.py asks for the GPU that is there",
    "asks-torch": "setup.py asks torch for the archs that torch was built for",
    "comprehension": "the flags go through a comprehension",
    "computed-value": "the value of this option is not a literal",
    "concatenation": "the flag is put together at run time",
    "conditional-expression": "the flag depends on a condition inside an expression",
    "counted": "something here goes by the places or the number of the flags, or nobody can tell",
    "default-argument": "the flags are a function's default argument",
    "dict-value": "the flag is the value of a dict, which says nothing about where it goes",
    "f-string": "the flag is put together at run time",
    "format": "the flag is put together at run time",
    "gpu-code": "-code works together with -arch, wherever that stands",
    "helper-call": "the flag is an argument of a function that may do anything with it",
    "helper-module": "a module of the package's own may add flags",
    "join": "the flags are joined into one string",
    "loop": "a loop goes over the flags",
    "machine-dependent": "what this flag compiles depends on the machine or the toolkit",
    "method": "a method makes something else of the flag",
    "nested-list": "the list is part of another list, which others may go over",
    "not-in-torch": "torch does not know an arch that was asked for, so nvcc gets its flags from the guard",
    "not-reproducible": "libcst cannot give this file back byte for byte, so nothing in it is edited",
    "one-string": "several arguments stand in one string, which nvcc refuses unless something splits it",
    "orphan-flag": "the value of this option does not stand next to it; nvcc refuses an option alone",
    "orphan-value": "the value has no -gencode in front of it; nvcc refuses it",
    "overwrites-arch-list": "setup.py writes TORCH_CUDA_ARCH_LIST itself",
    "own-variable": "setup.py reads an arch variable of its own",
    "percent-format": "the flag is put together at run time",
    "remove": "the flag is taken out of a list, which fails when it is not there",
    "replace": "the flag is replaced in a string",
    "returned-string": "a function returns the flag",
    "split": "the flags are split from one string",
    "star-unpacking": "the flags are unpacked from a list of their own",
    "tested": "something hangs on whether this flag is there",
    "unknown-arch": "the flag names an arch that is not known, or is none",
    "unpacking": "the flags are unpacked into several names",
    "unsupported": "the flag stands where it is not clear what becomes of it",
    "variable": "the flag is kept in a variable, which others may use",
}

_METHODS: Final = {"split": "split", "format": "format", "replace": "replace", "join": "join"}
_ARGUMENTS: Final = {
    "index": "remove",
    "join": "join",
    "remove": "remove",
    "replace": "replace",
    "sub": "replace",
    "subn": "replace",
}
_COMMANDS: Final = frozenset(
    {"Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput", "popen", "run", "system"}
)
_GENERATORS: Final = frozenset({"eval", "exec", "write", "write_bytes", "write_text", "writelines"})
_VARIABLE_SETTERS: Final = frozenset({"putenv", "setdefault", "setenv"})
_COMMAND_TEXT = re.compile(r"\bnvcc\s")
_CMAKE_TEXT = re.compile(r"CMAKE_CUDA_")
_CMAKE_ARCHS = re.compile(
    r"-D\s*(?:CMAKE_CUDA_ARCHITECTURES|CUDA_ARCHITECTURES|CUDA_ARCH_BIN|CUDA_ARCH_LIST|TORCH_CUDA_ARCH_LIST)"
    r"(?::\w+)?=\W*(?:\d|native|all)"
)
#: Steps of setuptools' compilers and of torch that come after `build_extension`.
_HOOKS: Final = re.compile(r"_?compile|spawn|_write_ninja_file\w*|unix_\w+|_get_cuda_arch_flags")


def is_guarded(shape: str) -> bool:
    """Whether the guard takes over for `shape`, so that it is no reason to refuse."""
    return shape in _GUARDED


def refusal(shape: str, line: int, *, detail: str = "") -> Refusal:
    """Return the refusal of `shape` at `line`; `detail` adds to its reason."""
    reason, remedy = _REFUSED[shape]
    return Refusal(line=line, shape=shape, reason=f"{reason}: {detail}" if detail else reason, remedy=remedy)


def flag_source(shape: str, line: int, *, reason: str = "") -> FlagSource:
    """Return the flag source of `shape` at `line`, which is the guard's; a shape of none of the tables has a reason."""
    return FlagSource(line=line, shape=shape, reason=reason or _GUARDED[shape])


def gives_cmake_archs(text: str) -> bool:
    """Whether `text` is an argument of CMake that names archs."""
    return _CMAKE_ARCHS.search(text) is not None


def out_of_reach(find: Find) -> str | None:
    """Return the shape for a literal that something else than the extension uses up; None where it goes on to that."""
    if gives_cmake_archs(find.text) or _CMAKE_TEXT.search(find.text):
        return "cmake"
    if _COMMAND_TEXT.search(find.text):
        return "subprocess"
    shapes = (_used_up(parent.node) for _, parent in find.spot.above())
    return next((shape for shape in shapes if shape), None)


def is_behind_guard(spot: Spot) -> bool:
    """Whether the literal at `spot` stands in a function that runs after the guard has looked at the extension."""
    functions = (parent.node for _, parent in spot.above() if isinstance(parent.node, cst.FunctionDef))
    return any(_HOOKS.fullmatch(function.name.value) for function in functions)


def _used_up(node: cst.CSTNode) -> str | None:
    match node:
        case cst.Call():
            return _used_up_by_call(node)
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript(slice=[cst.SubscriptElement(slice=index)]))]):
            is_variable = isinstance(index, cst.Index) and (text_of(index.value) or "").isupper()
            return "environment" if is_variable else None
    return None


def _used_up_by_call(call: cst.Call) -> str | None:
    root, name = call_name(call)
    if name in ("load", "load_inline"):
        return "load"
    if name == "spawn" or (name in _COMMANDS and root in ("subprocess", "os", "")):
        return "subprocess"
    if name in _GENERATORS or (name, root) == ("compile", ""):
        return "generated-code"
    if name in _VARIABLE_SETTERS and call.args and (text_of(call.args[0].value) or "").isupper():
        return "environment"
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
