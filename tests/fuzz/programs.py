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
from itertools import groupby
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

    `pairs` are those of all flags in lists, calls in a row and split literals, one count per flag; `orphans` are
    options without a value and values without an option; `words` says how many words are options, and how many are
    values of their own. `rest` is the text without these flags, C++ standards, comments and white space. `shape` is the
    syntax tree without them.
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
    """The lines, from 0, of what holds flags and of C++ standards."""

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
    found = _Found()
    for row in _rows(tree):
        places = _read([_text(word) if isinstance(word, ast.AST) else word for word in row.words], program)
        found.add(row, places)
        if places:
            program.touchable.update(_lines_of(*row.nodes))
    found.standards = [node for node in ast.walk(tree) if _is_standard(node)]
    for node in found.standards:
        program.touchable.update(_lines_of(node))
    program.rest = _rest(bare, tree, found)
    _Without(found).visit(tree)
    program.shape = ast.dump(tree)
    return program


@dataclass(slots=True, kw_only=True)
class _Row:
    """Neighbouring words, as expressions or as texts of one literal, with the nodes that hold them."""

    words: Sequence[ast.AST | str]
    nodes: Sequence[ast.AST]
    is_split: bool = False


@dataclass(slots=True)
class _Found:
    """What is left out of a program: expressions that are flags, what is split (with its other words), standards."""

    flags: list[ast.AST] = field(default_factory=list)
    splits: dict[ast.AST, list[str]] = field(default_factory=dict)
    standards: list[ast.AST] = field(default_factory=list)

    def add(self, row: _Row, places: Sequence[int]) -> None:
        """Add the words of a row, those at `places` as flags."""
        others = [word for at, word in enumerate(row.words) if at not in places and isinstance(word, str)]
        self.flags += [word for at in places if isinstance(word := row.words[at], ast.AST)]
        if row.is_split:
            self.splits[row.nodes[0]] = others


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


def _rows(tree: ast.Module) -> Iterator[_Row]:
    """Yield each list or tuple, each run of statements that put one word each somewhere, and what is split."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Tuple):
            outer = parents[node]
            yield _Row(words=node.elts, nodes=[node, outer] if isinstance(outer, ast.List | ast.Tuple) else [node])
        elif isinstance(node, ast.Call) and (words := _split(node)) is not None:
            yield _Row(words=words, nodes=[node], is_split=True)
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                yield from _runs(statements)


def _split(call: ast.Call) -> list[str] | None:
    """Return the words that a call splits from a literal, None for another call."""
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split"), args=[]):
            return text.split()
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split"), args=[ast.Constant(value=" ")]
        ):
            return text.split(" ")
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="shlex"), attr="split"), args=[ast.Constant(value=str(text))]
        ):
            return text.split()
    return None


def _runs(statements: Sequence[ast.stmt]) -> Iterator[_Row]:
    """Yield each run of calls of one method of one thing; what is put in front comes in the other order."""
    for key, run in groupby(statements, key=lambda statement: _put(statement)[0]):
        nodes = list(run) if key else []
        words = [_put(statement)[1] for statement in nodes]
        yield _Row(words=words[::-1] if key.startswith(("insert", "appendleft")) else words, nodes=nodes)


def _put(statement: ast.AST) -> tuple[str, ast.AST]:
    """Return which method of which thing a statement calls, and the last argument; "" for any other statement."""
    match statement:
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=receiver, attr=method), args=[*others, ast.expr() as word], keywords=[]
            )
        ):
            return f"{method} {' '.join(map(ast.dump, (receiver, *others)))}", word
    return "", statement


def _text(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts) if all(isinstance(part, ast.Constant) for part in parts):
            return "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = (_text(left), _text(right))
            return None if None in texts else "".join(map(str, texts))
    return None


def _read(texts: Sequence[str | None], program: Program) -> list[int]:
    """Count what stands in a row; return the places of the words that are flags."""
    places, after_option, before = list[int](), False, ""
    for place, text in enumerate(texts):
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
            places.append(place)
    if after_option:
        program.orphans[before] += 1
    return places


def _pairs(option: str, value: str) -> set[Pair]:
    """Return the pairs of one flag as a report spells them: `sm_9.0`, which nvcc refuses, is `sm_90` there."""
    value = value.replace(".", "")
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
    text = None if isinstance(node, ast.BinOp) else _text(node)
    return text is not None and _STANDARD.fullmatch(text) is not None


def _left_out(tree: ast.Module, found: _Found) -> Iterator[ast.AST]:
    """Yield what counts as no text: flags, the statements that put them somewhere, what is split, and `pass`."""
    flags = set(map(id, found.flags))
    for node in ast.walk(tree):
        if id(node) in flags or isinstance(node, ast.Pass) or id(_put(node)[1]) in flags or node in found.splits:
            yield node


def _lines_of(*nodes: ast.AST) -> Iterator[int]:
    for node in nodes:
        yield from range(getattr(node, "lineno", 1) - 1, getattr(node, "end_lineno", 1))


def _rest(bare: str, tree: ast.Module, found: _Found) -> str:
    """Return the text without what is left out, what separates it, and lists that hold nothing; then other words."""
    starts = [0]
    data = bare.encode()
    for line in data.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    nodes = [*_left_out(tree, found), *found.standards]
    spans = [(_offset(starts, node, ""), _offset(starts, node, "end_")) for node in nodes]
    kept, end = [], 0
    for start, stop in sorted(spans):
        kept.append(data[end : max(start, end)])
        end = max(stop, end)
    text = re.sub(r"[\s,;()\\]+", "", b"".join((*kept, data[end:])).decode())
    while "[]" in text:
        text = text.replace("[]", "")
    return " ".join((text, *(word for words in found.splits.values() for word in words)))


def _offset(starts: Sequence[int], node: ast.AST, end: str) -> int:
    line, column = getattr(node, f"{end}lineno"), getattr(node, f"{end}col_offset")
    return starts[int(line) - 1] + int(column)


class _Without(ast.NodeTransformer):
    """Takes flags, their statements, lists that hold nothing and `pass` out of a tree, and the year out of a standard.

    What is split becomes its other words.
    """

    def __init__(self, found: _Found) -> None:
        self._flags = set(map(id, found.flags))
        self._standards = set(map(id, found.standards))
        self._splits = found.splits

    def visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.Pass) or id(_put(node)[1]) in self._flags or id(node) in self._flags:
            return None
        if id(node) in self._standards:
            return ast.Constant("-std")
        if node in self._splits:
            return ast.Constant(" ".join(self._splits[node]))
        visited = self.generic_visit(node)
        if isinstance(visited, ast.List | ast.Tuple):
            visited.elts = [each for each in visited.elts if not isinstance(each, ast.List | ast.Tuple) or each.elts]
        return visited
