"""String literals: their text as Python reads it, and literals with another text in the same spelling."""

from __future__ import annotations

import ast
import re
import warnings

import libcst as cst

from archpatch.rewrite.spelling import HOLE
from archpatch.rewrite.tree import StringNode, is_string

__all__ = ["inner", "respell", "spelled_like", "text_of"]


def text_of(node: cst.BaseExpression) -> str | None:
    """Return the text of a string literal, with `HOLE` for each placeholder of an f-string; None for anything else."""
    match node:
        case cst.SimpleString():
            return _evaluate(node.prefix, node.quote, inner(node))
        case cst.ConcatenatedString(left=left, right=right):
            return _joined(left, right)
        case cst.BinaryOperation(left=left, right=right) if is_string(node):
            return _joined(left, right)
        case cst.FormattedString():
            raw = "".join(part.value if isinstance(part, cst.FormattedStringText) else HOLE for part in node.parts)
            plain = raw.replace("{{", "{").replace("}}", "}")
            return _evaluate(node.prefix.lower().replace("f", ""), node.quote, plain)
    return None


def inner(node: StringNode) -> str:
    """Return what stands between the quotes of a plain literal, escapes and all; of any other one its text."""
    if not isinstance(node, cst.SimpleString):
        return text_of(node) or ""
    start, end = len(node.prefix) + len(node.quote), len(node.quote)
    return node.value[start:-end]


def respell(node: cst.BaseExpression, text: str) -> cst.SimpleString:
    """Return a literal with the quotes, the prefix and the brackets of `node`, and between them `text`, as `inner`."""
    first = node
    while isinstance(first, cst.ConcatenatedString | cst.BinaryOperation):
        first = first.left
    if isinstance(first, cst.FormattedString):
        start, end = first.start.lower().replace("f", ""), first.end
    else:
        assert isinstance(first, cst.SimpleString)  # noqa: S101 - narrows the type: nothing else can stand there
        start, end = first.prefix + first.quote, first.quote
    # What is one literal now may have had parts in other quotes.
    is_quoted = not isinstance(node, cst.SimpleString) and re.search(r"[\"'\\]", text)
    return cst.SimpleString(repr(text) if is_quoted else f"{start}{text}{end}", lpar=node.lpar, rpar=node.rpar)


def spelled_like(node: cst.BaseExpression, text: str) -> cst.SimpleString:
    """Return a new literal beside `node`, without its brackets: the comments in these stay with `node`."""
    return respell(node, text).with_changes(lpar=(), rpar=())


def _joined(left: cst.BaseExpression, right: cst.BaseExpression) -> str | None:
    texts = (text_of(left), text_of(right))
    return None if None in texts else "".join(map(str, texts))


def _evaluate(prefix: str, quote: str, raw: str) -> str | None:
    if "b" in prefix.lower():
        return None
    if "\\" not in raw or "r" in prefix.lower():
        return raw
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(ast.literal_eval(f"{prefix}{quote}{raw}{quote}"))
