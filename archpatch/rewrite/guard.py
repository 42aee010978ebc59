"""The guard in a `setup.py`: written for a request, put near the top of the file, found again and taken out."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import Policy, Request

__all__ = ["GUARD_BEGIN", "GUARD_END", "Stripped", "baked", "put_guard", "strip_guard", "torch_list"]

GUARD_BEGIN: Final = "# archpatch guard begin: selects nvcc's arch flags right before each extension is compiled"
GUARD_END: Final = "# archpatch guard end"

_NEWLINE = re.compile(r"\r\n|\r|\n")
#: In a source decoded as latin-1, where a byte order mark is three characters. A beginning without its end, which an
#: edit by hand can leave, is none of the guard behind it.
_GUARD = re.compile(
    r"(?:(?<![^\r\n])|(?<=\xef\xbb\xbf))# archpatch guard begin\b(?:(?![\r\n]# archpatch guard begin\b).)*?"
    rf"(?<=[\r\n]){GUARD_END}(?:\r\n|\r|\n|\Z)",
    re.DOTALL,
)
_COMMENTS = re.compile(r"(?:#[^\r\n]*(?:\r\n|\r|\n|\Z))*")

#: torch 2.14 has no `f` suffix and not these archs (`torch.utils.cpp_extension._get_cuda_arch_flags`).
_NOT_IN_TORCH: Final = frozenset({(8, 8), (10, 1)})


class Stripped(NamedTuple):
    """A file without its guard, which began at `line` (from 1) and had `length` lines; 0 and 0 where there was none."""

    source: bytes
    line: int = 0
    length: int = 0

    def line_before(self, line: int) -> int:
        """Return the line of the file with its guard for a line of the one without."""
        return line + self.length if line >= self.line else line

    def line_within(self, line: int) -> int:
        """Return the line of the file without its guard for a line of the one with it."""
        return line - self.length if line >= self.line + self.length else line


def strip_guard(source: bytes) -> Stripped:
    """Take an earlier guard out: what remains are the bytes that it was put into."""
    # Each encoding that Python reads a source in has ASCII as it is; latin-1 keeps all the rest.
    text = source.decode("latin-1")
    match = _GUARD.search(text)
    if match is None:
        return Stripped(source)
    start = match.start()
    if not match[0].endswith(("\r", "\n")):
        # At the end of a file that had no line end of its own.
        start = len(re.sub(r"(?:\r\n|\r|\n)\Z", "", text[:start]))
    rest = text[:start] + text[match.end() :]
    return Stripped(rest.encode("latin-1"), len(_NEWLINE.findall(text[:start])) + 1, len(_NEWLINE.findall(match[0])))


def put_guard(text: str, request: Request, policy: Policy) -> str:
    """Return `text`, valid Python, with a guard in front of the first statement that does anything."""
    found = _NEWLINE.search(text)
    newline = found[0] if found else "\n"
    lines = _NEWLINE.sub("\n", _guard(request, policy)).replace("\n", newline)
    place = _place(text)
    head, tail = text[:place], text[place:]
    if head and not head.endswith(("\r", "\n")):
        return head + newline + lines.removesuffix(newline)
    return head + lines + tail


def torch_list(request: Request) -> str | None:
    """Return the request as `TORCH_CUDA_ARCH_LIST`, None where it holds an arch that torch does not know."""
    if any(arch.suffix == "f" or (arch.major, arch.minor) in _NOT_IN_TORCH for arch in request.archs):
        return None
    return ";".join(map(str, request.archs)) if isinstance(request, GpuRequest) else str(request)


def _place(text: str) -> int:
    """Return where the guard goes: behind the first comments, the docstring and the imports from `__future__`."""
    starts = [0, *(match.end() for match in _NEWLINE.finditer(text)), len(text)]
    behind = 0
    for index, statement in enumerate(ast.parse(text).body):
        goes_first = (index == 0 and _is_docstring(statement)) or _is_future(statement)
        if not goes_first and statement.lineno > behind:
            break
        behind = max(behind, statement.end_lineno or 0)
    if behind:
        return starts[min(behind, len(starts) - 1)]
    comments = _COMMENTS.match(text)
    return comments.end() if comments else 0


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def baked(request: Request, policy: Policy) -> dict[str, object]:
    """Return the request and the policy as the guard takes them: literals only."""
    return {
        "text": str(request),
        "archs": [] if isinstance(request, GpuRequest) else list(map(str, request.archs)),
        "ptx": [] if isinstance(request, GpuRequest) else list(map(str, request.ptx)),
        "gpus": [[gpu.name, str(gpu.arch)] for gpu in request.gpus] if isinstance(request, GpuRequest) else [],
        "on_missing": policy.on_missing_for(request).value,
        "strict": policy.strict,
        "known_bad": {str(entry.arch.base): entry.reason for entry in policy.known_bad},
        "torch_list": torch_list(request),
    }


def _guard(request: Request, policy: Policy) -> str:
    """Return the lines of a guard with the request and the policy baked in."""
    literal = "".join(f"        {key!a}: {value!a},\n" for key, value in baked(request, policy).items())
    body = "".join(f"    {line}" if line.strip() else line for line in _runtime().splitlines(keepends=True))
    return (
        f"{GUARD_BEGIN}\ndef _archpatch_guard():\n{body}\n    install({{\n{literal}    }})\n\n\n"
        f"_archpatch_guard()\n{GUARD_END}\n"
    )


@cache
def _runtime() -> str:
    """Return the part of `guard_runtime` that goes into other files, without annotations and notes for linters."""
    text = files(__package__).joinpath("guard_runtime.py").read_text(encoding="utf-8")
    module = re.split(r"^# -{100,}\n", text, flags=re.MULTILINE)[1]
    lines = module.splitlines(keepends=True)
    for start, end in sorted(_annotations(ast.parse(module)), reverse=True):
        line = lines[start[0] - 1]
        lines[start[0] - 1] = line[: start[1]] + line[end[1] :]
    plain = re.sub(r" -> (?=:$)|  # noqa.*$", "", "".join(lines), flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", plain)


def _annotations(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where each annotation begins and ends, (line, column); none goes over several lines."""
    found: list[tuple[ast.expr, int]] = []
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as annotation):
                found.append((annotation, node.col_offset + len(node.arg)))
            case ast.AnnAssign(target=target, annotation=annotation):
                found.append((annotation, target.end_col_offset or 0))
            case ast.FunctionDef(returns=ast.expr() as annotation):
                found.append((annotation, annotation.col_offset))
    return [((item.lineno, start), (item.end_lineno or 0, item.end_col_offset or 0)) for item, start in found]
