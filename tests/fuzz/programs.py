"""A program as Python's own parser and tokenizer see it: its flags, and all that is none. Nothing of the rewrite's."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["LINE_END", "Program", "read_program"]

LINE_END: Final = re.compile(r"\r\n|\r|\n")

_OPTIONS: Final = ("-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code", "--gpu-code")
_VALUE = re.compile(r"(?:sm|compute|lto)_\w+|native|all(?:-major)?|.*\b(?:arch|code)=.*", re.DOTALL)
_STANDARD = re.compile(r"--?std=(?:c|gnu)\+\+\w\w")
_CODE = re.compile(r"(?:sm|compute|lto)_[\w.]+")
Pair = tuple[str, str]


@dataclass(slots=True)
class Program:
    """What a source says.

    `pairs` are those of all flags in lists and appends, one count per flag; `orphans` are options without a value and
    values without an option; `words` says how many words are options, and how many are values of their own. `rest` is
    the text without these flags, C++ standards, comments and white space. `shape` is the syntax tree without them.
    """

    text: str
    pairs: Counter[Pair] = field(default_factory=Counter)
    orphans: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    rest: str = ""
    shape: str = ""
    comments: list[tuple[int, bool, str]] = field(default_factory=list)
    """(line, whether it stands on a line of its own, text)"""
    touchable: set[int] = field(default_factory=set)
    """The lines, from 0, of lists and appends with flags and of C++ standards."""

    @property
    def lines(self) -> list[str]:
        """The lines with their ends."""
        return [line for line in re.split(r"(?<=\n)|(?<=\r)(?!\n)", self.text) if line]


def read_program(source: bytes) -> Program:
    """Read `source`, which is Python."""
    encoding = tokenize.detect_encoding(io.BytesIO(source).readline)[0]
    program = Program(source.decode(encoding))
    text = LINE_END.sub("\n", program.text)
    program.comments = list(_comments(text))
    bare = _without_comments(text, program.comments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(bare)
    flags: list[ast.AST] = []
    for words, container in _rows(tree):
        if _read(words, program, flags):
            program.touchable.update(_lines_of(*container))
    standards = [node for node in ast.walk(tree) if _is_standard(node)]
    for node in standards:
        program.touchable.update(_lines_of(node))
    passes = [node for node in ast.walk(tree) if isinstance(node, ast.Pass)]
    program.rest = _rest(bare, [*_whole_appends(tree, flags), *standards, *passes])
    _Without(flags, standards).visit(tree)
    program.shape = ast.dump(tree)
    return program


def _comments(text: str) -> Iterator[tuple[int, bool, str]]:
    """Yield the comments; a source that Python's tokenizer in Python cannot take has none."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return
    for token in tokens:
        if token.type == tokenize.COMMENT:
            yield token.start[0], not token.line[: token.start[1]].strip(), token.string


def _without_comments(text: str, comments: Sequence[tuple[int, bool, str]]) -> str:
    lines = text.split("\n")
    for number, _, comment in comments:
        lines[number - 1] = lines[number - 1].removesuffix(comment)
    return "\n".join(lines)


def _rows(tree: ast.Module) -> Iterator[tuple[list[ast.expr], list[ast.AST]]]:
    """Yield neighbouring words, with the nodes that hold them: of each list or tuple, and of consecutive appends."""
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            yield node.elts, [node]
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                yield from _appends(statements)


def _appends(statements: Sequence[ast.stmt]) -> Iterator[tuple[list[ast.expr], list[ast.AST]]]:
    receiver, words, nodes = "", list[ast.expr](), list[ast.AST]()
    for statement in statements:
        appended = _appended(statement)
        name = "" if appended is None else ast.dump(appended[0])
        if name != receiver and words:
            yield words, nodes
            words, nodes = [], []
        receiver = name
        if appended is not None:
            words.append(appended[1])
            nodes.append(statement)
    if words:
        yield words, nodes


def _appended(statement: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    match statement:
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=receiver, attr="append"), args=[ast.expr() as word], keywords=[])
        ):
            return receiver, word
    return None


def _text(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts) if all(isinstance(part, ast.Constant) for part in parts):
            return "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
    return None


def _read(words: Sequence[ast.expr], program: Program, flags: list[ast.AST]) -> bool:
    """Count what stands in a row; return whether there are flags in it."""
    texts = [_text(word) for word in words]
    found, after_option, before = False, False, ""
    for word, text in zip(words, texts, strict=True):
        option, equals, value = (text or "").partition("=")
        is_value = text is not None and _VALUE.fullmatch(text) is not None and not text.startswith("-")
        if after_option and not is_value:
            program.orphans[before] += 1
        if text in _OPTIONS:
            program.words["option"] += 1
            before = text
        elif option in _OPTIONS and equals:
            program.pairs.update(_pairs(option, value))
        elif is_value and text is not None:
            program.words["value"] += 1
            if after_option:
                program.pairs.update(_pairs(before, text))
            else:
                program.orphans[text] += 1
        after_option = text in _OPTIONS
        if after_option or is_value or option in _OPTIONS:
            flags.append(word)
            found = True
    if after_option:
        program.orphans[before] += 1
    return found


def _pairs(option: str, value: str) -> set[Pair]:
    """Return the pairs of one flag as a report spells them."""
    codes = _CODE.findall(value.lower())
    if option in ("-gencode", "--generate-code"):
        computes = [code for code in codes if re.search(rf"arch={re.escape(code)}\b", value.lower())][:1]
        stored = codes if len(codes) == 1 else _CODE.findall(value.lower().partition("code=")[2].partition(",arch=")[0])
        return {(compute, code) for compute in computes for code in stored}
    return {pair for code in codes[:1] for pair in _pairs_of_arch(code)}


def _pairs_of_arch(code: str) -> Iterator[Pair]:
    kind, _, number = code.partition("_")
    if kind == "sm":
        yield f"compute_{number}", code
    yield f"compute_{number}", f"compute_{number}"
    if kind == "sm" and number[-1] in "af":
        yield f"compute_{number[:-1]}", f"compute_{number[:-1]}"


def _is_standard(node: ast.AST) -> bool:
    text = _text(node)
    return text is not None and _STANDARD.fullmatch(text) is not None


def _whole_appends(tree: ast.Module, flags: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the flags, each with the append that it stands in."""
    of_flags = {id(flag) for flag in flags}
    for node in ast.walk(tree):
        appended = _appended(node)
        if id(node) in of_flags or (appended and id(appended[1]) in of_flags):
            yield node


def _lines_of(*nodes: ast.AST) -> Iterator[int]:
    for node in nodes:
        yield from range(getattr(node, "lineno", 1) - 1, getattr(node, "end_lineno", 1))


def _rest(bare: str, nodes: Sequence[ast.AST]) -> str:
    """Return the text without `nodes` and what separates them."""
    starts = [0]
    data = bare.encode()
    for line in data.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    spans = [(_offset(starts, node, ""), _offset(starts, node, "end_")) for node in nodes]
    kept, end = [], 0
    for start, stop in sorted(spans):
        kept.append(data[end : max(start, end)])
        end = max(stop, end)
    return re.sub(r"[\s,;()\\]+", "", b"".join((*kept, data[end:])).decode())


def _offset(starts: Sequence[int], node: ast.AST, end: str) -> int:
    line, column = getattr(node, f"{end}lineno"), getattr(node, f"{end}col_offset")
    return starts[int(line) - 1] + int(column)


class _Without(ast.NodeTransformer):
    """Takes flags, appends of flags and `pass` out of a tree, and the year out of a C++ standard."""

    def __init__(self, flags: Sequence[ast.AST], standards: Sequence[ast.AST]) -> None:
        self._flags = {id(flag) for flag in flags}
        self._standards = {id(node) for node in standards}

    def visit(self, node: ast.AST) -> ast.AST | None:
        appended = _appended(node)
        if isinstance(node, ast.Pass) or (appended and id(appended[1]) in self._flags):
            return None
        if id(node) in self._flags:
            return None
        if id(node) in self._standards:
            return ast.Constant("-std")
        return self.generic_visit(node)
