"""The syntax tree of a `setup.py`: parsing without surprises, walking, line numbers, and applying edits.

Built for start-up time. libcst's own visitors rebuild each node that they pass, its matchers and its position provider
cost more than the parse itself; here only nodes on the way to an edit are rebuilt, and all others stay as they are.
"""

from __future__ import annotations

import ast
import dataclasses
import io
import re
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple, TypeGuard

import libcst as cst

__all__ = ["Edits", "Spot", "StringNode", "Tree", "Unreadable", "is_string", "parse", "strings"]

StringNode = cst.SimpleString | cst.ConcatenatedString | cst.FormattedString | cst.BinaryOperation
"""What is one string literal to us; an operation only where `is_string` says so."""
Edit = Callable[[cst.CSTNode], cst.CSTNode]

#: libcst drops some white space at the end of a file, and keeps it all in front of a statement: this one.
_END: Final = "__archpatch_end__\n"

#: No literal stands here. (Class level names of libcst fields, in any node.)
_BARE: Final = frozenset(
    {"leading_lines", "lines_after_decorators", "header", "footer", "indent", "trailing_whitespace", "default_indent"}
    | {"lpar", "rpar", "lbracket", "rbracket", "lbrace", "rbrace", "comma", "semicolon", "equal", "dot", "colon"}
)

#: libcst 1.9 was seen to overflow from 4000 levels on (lambdas, 8 MiB of stack); its own writer gives up near 300.
_DEEPEST: Final = 500

_MARK: Final = "\0"  # ast.parse has refused every source that has one of its own


class Spot(NamedTuple):
    """A node and where it stands: `field` of the parent's node."""

    node: cst.CSTNode
    parent: Spot | None
    field: str

    def above(self) -> Iterator[tuple[Spot, Spot]]:
        """Yield (child, parent) from this spot up to the module."""
        child = self
        while child.parent is not None:
            yield child, child.parent
            child = child.parent


class Unreadable(Exception):
    """The source cannot be edited; `line` counts from 1, `shape` names the refusal."""

    def __init__(self, line: int, shape: str, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.shape = shape
        self.reason = reason


class Edits:
    """What to change, by node: each edit gets the node with the edits below it already applied."""

    def __init__(self) -> None:
        self._edits: dict[int, Edit] = {}
        self._on_the_way: set[int] = set()

    def add(self, spot: Spot, edit: Edit) -> None:
        """Have `edit` change the node at `spot`; one edit per node."""
        self._edits[id(spot.node)] = edit
        self._on_the_way.add(id(spot.node))
        self._on_the_way.update(id(parent.node) for _, parent in spot.above())

    def __bool__(self) -> bool:
        return bool(self._edits)

    def apply(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return `node` with all edits at and below it; what has none stays the same object."""
        if id(node) not in self._on_the_way:
            return node
        changes: dict[str, object] = {}
        for name in _fields(type(node)):
            value = getattr(node, name)
            if isinstance(value, cst.CSTNode) and id(value) in self._on_the_way:
                changes[name] = self.apply(value)
            elif isinstance(value, list | tuple) and any(id(item) in self._on_the_way for item in value):
                changes[name] = [self.apply(item) for item in value]
        updated = node.with_changes(**changes) if changes else node
        edit = self._edits.get(id(node))
        return updated if edit is None else edit(updated)


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
    """A parsed source: `module` ends with a statement of our own, which `render` takes away again.

    `syntax` is the same as Python's own parser sees it, to look at where nothing is edited.
    """

    source: bytes
    text: str
    module: cst.Module
    syntax: ast.Module

    def code(self, node: cst.CSTNode) -> str:
        """Return the text of `node`."""
        return self.module.code_for_node(node)

    def name(self, node: cst.CSTNode) -> str:
        """Return the text of `node` to compare with that of others: with one kind of quotes."""
        return self.code(node).replace("'", '"')

    def render(self, edits: Edits) -> bytes:
        """Return the source with `edits` applied; it ends in a line end only if it did before."""
        return self._without_end(_code(edits.apply(self.module))).encode(self.module.encoding)

    def lines(self, spots: Iterable[Spot]) -> tuple[dict[int, int], bool]:
        """Return the line of each string by its node's `id`, and whether libcst gives the source back exactly.

        `spots` are in the order of the source.
        """
        marks, order = Edits(), []
        for spot in spots:
            marks.add(spot, _marked)
            order.append(id(spot.node))
        parts = _code(marks.apply(self.module)).split(_MARK)
        numbers, line = [], 1
        for part in parts[:-1]:
            line += _line_ends(part)
            numbers.append(line)
        return dict(zip(order, numbers, strict=True)), self._without_end("".join(parts)) == self.text

    def _without_end(self, text: str) -> str:
        text = text.removesuffix(_END)
        return text if _closed(self.text) == self.text else text.rstrip("\r\n")


def parse(source: bytes) -> Tree:
    """Parse `source`; raises `Unreadable`, and `RecursionError` where it is nested too deeply.

    Python's own parser goes first: it stops at any depth of nesting, where libcst's native one overflows the stack.
    How deep it lets through differs between versions, so the depth is looked at too.
    """
    syntax = _syntax(source)
    _check_depth(syntax)
    text, encoding = _decoded(source)
    try:
        module = cst.parse_module(_closed(text) + _END, cst.PartialParserConfig(encoding=encoding))
    except cst.ParserSyntaxError as error:
        # It may have noticed in the line behind the last one, which is ours.
        raise Unreadable(min(error.raw_line, _line_ends(text) + 1), "libcst", error.message) from None
    return Tree(source, text, module, syntax)


def _syntax(source: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except SyntaxError as error:
        raise Unreadable(error.lineno or 1, "syntax", error.msg) from None
    except (ValueError, LookupError) as error:
        raise Unreadable(1, "syntax", str(error)) from None
    except MemoryError:
        # So says Python's parser of some nestings.
        raise RecursionError from None


def _decoded(source: bytes) -> tuple[str, str]:
    """Return the text of `source` and its encoding, in which the text is these bytes again."""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(source).readline)[0]
        text = source.decode(encoding)
        is_exact = text.encode(encoding) == source
    except (SyntaxError, ValueError, LookupError) as error:
        # Python's parser lets pass what stands in comments.
        raise Unreadable(1, "encoding", str(error)) from None
    if not is_exact:
        raise Unreadable(1, "encoding", f"{encoding} does not give the same bytes again")
    return text, encoding


def _check_depth(tree: ast.AST) -> None:
    """Raise `RecursionError` for a tree so deep that libcst might overflow the stack."""
    waiting = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth > _DEEPEST:
            raise RecursionError
        for value in vars(node).values():
            below = value if isinstance(value, list) else (value,)
            waiting.extend((item, depth + 1) for item in below if isinstance(item, ast.AST))


def _line_ends(text: str) -> int:
    return text.count("\n") + text.count("\r") - text.count("\r\n")


def _closed(text: str) -> str:
    """Return `text` with a line end of its own kind behind its last line."""
    if not text or text.endswith(("\n", "\r")):
        return text
    first = re.search(r"\r\n|\n|\r", text)
    return text + (first[0] if first else "\n")


def is_string(node: cst.CSTNode) -> TypeGuard[StringNode]:
    """Whether `node` is a string literal, or plain ones joined by `+`, which are as good as one."""
    match node:
        case cst.SimpleString() | cst.ConcatenatedString() | cst.FormattedString():
            return True
        case cst.BinaryOperation(operator=cst.Add(), left=left, right=right):
            return _is_plain(right) and _is_plain(left)
    return False


def _is_plain(node: cst.CSTNode) -> bool:
    """Whether `node` is text and nothing else: no bytes, and nothing that is only known at run time."""
    match node:
        case cst.SimpleString():
            return "b" not in node.prefix.lower()
        case cst.ConcatenatedString(left=left, right=right):
            return _is_plain(right) and _is_plain(left)
    return not isinstance(node, cst.FormattedString) and is_string(node)


def strings(module: cst.Module) -> Iterator[Spot]:
    """Yield where each string literal of `module` stands, in the order of the source."""
    waiting = [Spot(module, None, "")]
    while waiting:
        spot = waiting.pop()
        node = spot.node
        if is_string(node):
            yield spot
            if not isinstance(node, cst.FormattedString):
                continue
        for name in reversed(_fields(type(node))):
            value = getattr(node, name)
            if isinstance(value, cst.CSTNode):
                waiting.append(Spot(value, spot, name))
            elif isinstance(value, (list, tuple)):
                waiting.extend(Spot(item, spot, name) for item in reversed(value) if isinstance(item, cst.CSTNode))


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """Return the fields of a node in which an expression or a statement can stand."""
    names = (field.name for field in dataclasses.fields(kind))
    return tuple(name for name in names if name not in _BARE and not name.startswith("whitespace"))


def _marked(node: cst.CSTNode) -> cst.CSTNode:
    """Return the string `node` with a mark behind its opening quote."""
    match node:
        case cst.SimpleString():
            start = len(node.prefix) + len(node.quote)
            return node.with_changes(value=node.value[:start] + _MARK + node.value[start:])
        case cst.FormattedString():
            return node.with_changes(parts=(cst.FormattedStringText(_MARK), *node.parts))
        case cst.ConcatenatedString() | cst.BinaryOperation():
            return node.with_changes(left=_marked(node.left))
    raise AssertionError(node)


def _code(module: cst.CSTNode) -> str:
    assert isinstance(module, cst.Module)  # noqa: S101 - narrows the type: an edit never replaces the module
    return module.code
