"""What else in a file decides about archs, without an arch flag in a literal: questions, variables, other writers."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

__all__ = ["Sign", "cuda_line", "own_variables", "signs", "users_of"]

#: A file without any of these has no sign, and is not walked through.
_HINT = re.compile(
    r"get_gencode_flags|get_arch_list|get_device_|compute_cap|ComputeCapability|_write_ninja_file|_get_cuda_arch_flags"
    r"|COMMON_NVCC_FLAGS|ARCH|COMPUTE_CAPABILIT|^\s*(?:from|import) \S*(?:build|ext|cuda|arch|flag)",
    re.MULTILINE,
)
#: Of these, what matters even where the text has pairs: without one, such a file is not walked through either.
_STRONG_HINT = re.compile(r"get_gencode_flags|get_arch_list|_write_ninja_file|_get_cuda_arch_flags|COMMON_NVCC_FLAGS")
_CUDA = re.compile(r"CUDAExtension|cpp_extension|BuildExtension|TORCH_CUDA_ARCH_LIST|nvcc|\.cuh?\b")

_ASKS_TORCH: Final = frozenset({"get_gencode_flags", "get_arch_list"})
_ASKS_GPU: Final = frozenset({"get_device_capability", "get_device_properties", "nvmlDeviceGetCudaComputeCapability"})
_VARIABLE: Final = "TORCH_CUDA_ARCH_LIST"
_OWN_VARIABLE = re.compile(r"(?!.*(?:ROCM|HIP|GFX|PROCESSOR|ARCHFLAGS))[A-Z0-9_]*(?:ARCH|COMPUTE_CAPABILIT)[A-Z0-9_]*")
#: What torch calls between the extension and nvcc: where one of these is another, the guard comes too early.
_WRITERS = re.compile(r"_write_ninja_file\w*|_get_cuda_arch_flags|COMMON_NVCC_FLAGS")
#: A variable is set whose name stands in another: every name in a list may be meant.
_SETS_ANY = re.compile(
    r"environ(?:\[[A-Za-z_][\w.]*\]\s*=(?!=)|\.(?:pop|setdefault|update)\((?!\{)[^\"')])|putenv\([A-Za-z_]"
    r"|del\s+\S*environ\[[A-Za-z_]"
)
#: What a helper of the package's own is called that makes extensions or their flags.
_HELPER = re.compile(r"build|extension|cuda|nvcc|arch|flag|compil", re.IGNORECASE)
#: Modules that are not the package's own, beside those of Python.
_FOREIGN: Final = sys.stdlib_module_names | frozenset(
    {"Cython", "cmake", "distutils", "ninja", "numpy", "packaging", "parrots", "pip", "pkg_resources", "pybind11"}
    | {"setuptools", "setuptools_scm", "skbuild", "torch", "torch_mlu", "torch_musa", "torch_npu", "wheel"}
)
_READS: Final = frozenset({"get", "getenv"})
_COMMANDS: Final = frozenset({"Popen", "call", "check_call", "check_output", "popen", "run", "system", "spawn"})
_LOADS: Final = frozenset({"load", "load_inline"})


class Sign(NamedTuple):
    """A place at `line` that has to do with archs; `shape` is the name that it is reported by."""

    line: int
    shape: str


def cuda_line(text: str) -> int:
    """Return the first line that speaks of nvcc's work, 0 where the file seems to have none."""
    match = _CUDA.search(text)
    return 0 if match is None else len(re.findall(r"\r\n|\r|\n", text[: match.start()])) + 1


def signs(text: str, syntax: ast.Module, *, has_pairs: bool) -> Iterator[Sign]:
    """Yield what the file asks, reads, sets or replaces that has to do with archs.

    Where the text `has_pairs`, and nothing but pairs, only a question to torch or a replaced writer matters.
    """
    hint = _STRONG_HINT if has_pairs else _HINT
    if _CUDA.search(text) is None or hint.search(text) is None:
        return
    parents = {child: node for node in ast.walk(syntax) for child in ast.iter_child_nodes(node)}
    sets_any = _SETS_ANY.search(text) is not None
    for node in parents:
        shape = _shape(node, parents, sets_any=sets_any)
        if shape is not None:
            yield Sign(getattr(node, "lineno", 1), shape)


def own_variables(syntax: ast.Module) -> tuple[str, ...]:
    """Return the variables that the file reads and that are named for archs, other than torch's."""
    names = (_read_variable(node) for node in ast.walk(syntax))
    return tuple(sorted({name for name in names if name}))


def users_of(lines: Collection[int], syntax: ast.Module) -> Iterator[Sign]:
    """Yield the commands that `setup.py` runs, and what it compiles on import, with flags that come from `lines`.

    A name that is assigned from them counts as the flags themselves, and so does the function that they stand in.
    """
    tainted: set[str] = set()
    for _ in range(3):
        tainted |= {name for node in ast.walk(syntax) for name in _tainted_by(node, lines, tainted)}
    for node in ast.walk(syntax):
        name = _called(node)
        if isinstance(node, ast.Call) and (name in _LOADS or (name in _COMMANDS and _runs_a_command(node.func))):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(_names(argument) & tainted for argument in arguments):
                yield Sign(node.lineno, "load" if name in _LOADS else "subprocess")


def _shape(  # noqa: PLR0911 - a table of what stands where
    node: ast.AST, parents: dict[ast.AST, ast.AST], *, sets_any: bool
) -> str | None:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name) if isinstance(node.ctx, ast.Store):
            return "ninja-writer" if _WRITERS.fullmatch(name) else None
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return "asks-torch" if name in _ASKS_TORCH else "asks-gpu" if name in _ASKS_GPU else None
        case ast.Constant(value=str(text)):
            if text == _VARIABLE:
                return None if _is_only_read(node, parents, sets_any=sets_any) else "overwrites-arch-list"
            return _shape_of_text(node, text, parents)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            return _helper(module, (name.name for name in names))
        case ast.Import(names=names):
            shapes = (_helper(name.name, ()) for name in names)
            return next((shape for shape in shapes if shape), None)
    return "own-variable" if _read_variable(node) else None


def _shape_of_text(node: ast.Constant, text: str, parents: dict[ast.AST, ast.AST]) -> str | None:
    if _WRITERS.fullmatch(text) and _called(parents.get(node)) in ("setattr", "patch", "object"):
        return "ninja-writer"
    return "asks-gpu" if "compute_cap" in text and "compute_capability" not in text else None


def _helper(module: str, names: Iterable[str]) -> str | None:
    """Tell whether an import brings in what the package itself builds its extensions with."""
    is_own = module.partition(".")[0] not in _FOREIGN
    return "helper-module" if is_own and _HELPER.search(" ".join((module, *names))) else None


def _is_only_read(node: ast.Constant, parents: dict[ast.AST, ast.AST], *, sets_any: bool) -> bool:
    """Tell whether the variable of this name is only looked at where the name stands."""
    parent = parents.get(node)
    match parent:
        case ast.Compare() | ast.JoinedStr() | ast.Expr():
            return True
        case ast.Subscript():
            return isinstance(parent.ctx, ast.Load)
        case ast.List() | ast.Tuple() | ast.Set():
            return not sets_any
    return _called(parent) in _READS


def _read_variable(node: ast.AST) -> str | None:
    """Return the variable that is named for archs and read here."""
    match node:
        case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _called(node) in _READS:
            pass
        case ast.Subscript(
            value=ast.Attribute(attr="environ") | ast.Name(id="environ"), slice=ast.Constant(value=str(name))
        ):
            pass
        case _:
            return None
    return name if name != _VARIABLE and _OWN_VARIABLE.fullmatch(name) else None


def _called(node: ast.AST | None) -> str | None:
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
    return None


def _runs_a_command(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(value=ast.Name(id="os" | "subprocess")) | ast.Attribute(attr="spawn") | ast.Name():
            return True
    return False


def _tainted_by(node: ast.AST, lines: Collection[int], tainted: set[str]) -> set[str]:
    """Return the names that hold, after this statement, what comes from `lines` or from a tainted name."""
    match node:
        case ast.Assign(targets=targets, value=value):
            names = set[str]().union(*map(_names, targets))
        case ast.AugAssign(target=target, value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
            names = _names(target)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=receiver), args=[value, *_])):
            names = _names(receiver)
        case ast.FunctionDef(name=function, lineno=first, end_lineno=int(last)):
            return {function} if any(first <= line <= last for line in lines) else set()
        case _:
            return set()
    touched = any(node.lineno <= line <= (node.end_lineno or 0) for line in lines)
    return names if touched or _names(value) & tainted else set()


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} - {"self"}
