"""Statements in a row that put one word each into the same list: `flags.append("-gencode")` and what comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import libcst as cst

from archpatch.rewrite.blocks import edit_block
from archpatch.rewrite.lookups import call_name
from archpatch.rewrite.rows import Find, Group, Item, Position, Row, branches, item, scope
from archpatch.rewrite.tree import Spot, Tree

__all__ = ["Put", "Run", "handed_to", "put_by", "runs"]

Put = tuple[cst.BaseExpression, cst.BaseExpression]
"""(the list, the word that is put into it); the word is the last argument of the call."""

_Small = cst.BaseSmallStatement
_ReadPut = Callable[[cst.CSTNode], Put | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive statements of one `block` that put `items` into the list that `receiver` stands for."""

    block: Spot
    receiver: cst.BaseExpression
    name: str
    items: tuple[Item, ...]

    def row(self, *, backwards: bool = False) -> Row:
        """Return the words as a row; `backwards` where each statement puts its word in front of those before it."""
        return Row(
            container=self.block,
            group=Group(scope(self.block), self.name),
            branches=branches(self.block),
            items=self.items[::-1] if backwards else self.items,
            edit=edit_block,
        )


def runs(tree: Tree, finds: Mapping[int, Find], read_put: _ReadPut) -> Iterator[Run]:
    """Yield each run of statements in which `read_put` sees words put into one list, one of them an arch flag."""
    blocks: dict[int, Spot] = {}
    for find in finds.values():
        block = _block_of(find.spot, read_put)
        if block is not None:
            blocks.setdefault(id(block.node), block)
    for block in blocks.values():
        for name, run in groupby(_puts(block.node, read_put), key=lambda put: tree.name(put[0]) if put else ""):
            puts = [put for put in run if put]
            items = tuple(item(value, finds, position) for _, value, position in puts)
            if any(id(found.node) in finds for found in items):
                yield Run(block=block, receiver=puts[0][0], name=name, items=items)


def put_by(method: str, statement: cst.CSTNode) -> Put | None:
    """Return what a statement that calls `method` of a list with one argument puts into it; None for any other."""
    match statement:
        case cst.Expr(
            value=cst.Call(
                func=cst.Attribute(value=receiver, attr=cst.Name(value=name)),
                args=[cst.Arg(keyword=None, star="", value=value)],
            )
        ) if name == method:
            return receiver, value
    return None


def handed_to(method: str, finds: Mapping[int, Find]) -> Iterator[Find]:
    """Yield each literal that is an argument of `method`, whatever that is called on and wherever it stands."""
    for find in finds.values():
        call = find.spot.parent and find.spot.parent.parent
        if call and isinstance(call.node, cst.Call) and call_name(call.node)[1] == method:
            yield find


def _block_of(spot: Spot, read_put: _ReadPut) -> Spot | None:
    """Return the block in which the literal at `spot` is put into a list by a statement of its own."""
    chain = [spot, *(parent for _, parent in spot.above())][:6]
    match [link.node for link in chain]:
        case [_, cst.Arg(), cst.Call(), cst.Expr() as small, cst.SimpleStatementLine(), *_] if read_put(small):
            return chain[5]
        case [_, cst.Arg(), cst.Call(), cst.Expr() as small, cst.SimpleStatementSuite(), *_] if read_put(small):
            return chain[4]
    return None


def _puts(
    block: cst.CSTNode, read_put: _ReadPut
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression, Position] | None]:
    """Yield (list, word, position) of each simple statement of a block, None for what is something else."""
    lines: Iterable[cst.CSTNode] = [block] if isinstance(block, cst.SimpleStatementSuite) else _body(block)
    for number, line in enumerate(lines):
        if isinstance(line, cst.SimpleStatementLine | cst.SimpleStatementSuite):
            puts = [read_put(small) for small in line.body]
            yield from ((*put, (number, part)) if put else None for part, put in enumerate(puts))
        else:
            yield None


def _body(block: cst.CSTNode) -> Sequence[cst.CSTNode]:
    assert isinstance(block, cst.Module | cst.IndentedBlock)  # noqa: S101 - narrows the type: lines stand nowhere else
    return block.body
