"""A page of the documentation, read as Markdown: its sections with their tables and blocks of code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from commandline import PROJECT
from markdown_it import MarkdownIt
from markdown_it.token import Token

DOCS = PROJECT / "docs"


@dataclass(frozen=True)
class Cell:
    """A cell of a table: all of its text, and what of it is set as code."""

    text: str
    code: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table by the words of its head."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __iter__(self) -> Iterator[dict[str, Cell]]:
        return (dict(zip(self.head, row, strict=True)) for row in self.rows)


@dataclass(frozen=True)
class Block:
    """A fenced block of code: its info string, its text, and its line in the page."""

    info: str
    text: str
    line: int


@dataclass
class Section:
    """What stands between one heading and the next of any level."""

    level: int
    title: str
    tables: list[Table] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)


def sections(page: Path) -> list[Section]:
    """Return the sections of a page; what stands before the first heading has no title."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    found = [Section(0, "")]
    for number, (token, after) in enumerate(pairwise([*tokens, Token("end", "", 0)])):
        if token.type == "heading_open":
            found.append(Section(int(token.tag[1]), _cell(after).text))
        elif token.type == "table_open":
            end = next(n for n in range(number, len(tokens)) if tokens[n].type == "table_close")
            found[-1].tables.append(_table(tokens[number:end]))
        elif token.type == "fence":
            found[-1].blocks.append(Block(token.info, token.content, (token.map or [0])[0] + 1))
    return found


def _table(tokens: list[Token]) -> Table:
    rows: list[list[Cell]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(_cell(token))
    head, *body = rows
    return Table(tuple(cell.text for cell in head), tuple(map(tuple, body)))


def _cell(token: Token) -> Cell:
    parts = token.children or []
    text = "".join(" " if part.type == "softbreak" else part.content for part in parts)
    return Cell(text, tuple(part.content for part in parts if part.type == "code_inline"))
