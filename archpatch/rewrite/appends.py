"""The shape of mamba_ssm and its kin: `flags.append("-gencode")`, then `flags.append("arch=...,code=...")`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import libcst as cst

from archpatch.rewrite.blocks import edit_block, edit_suite
from archpatch.rewrite.rows import Find, Group, Item, Position, Row, branches, scope, word
from archpatch.rewrite.tree import Spot, Tree

__all__ = ["append_rows"]

_Small = cst.BaseSmallStatement


def append_rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row]:
    """Yield each run of consecutive appends to one list that has an arch flag in it."""
    blocks: dict[int, Spot] = {}
    for find in finds.values():
        block = _block_of(find.spot)
        if block is not None:
            blocks.setdefault(id(block.node), block)
    for block in blocks.values():
        yield from _runs(tree, block, finds)


def _block_of(spot: Spot) -> Spot | None:
    """Return the block in which the literal at `spot` is appended by a statement of its own."""
    chain = [spot, *(parent for _, parent in spot.above())][:6]
    match [link.node for link in chain]:
        case [_, cst.Arg(), cst.Call(), cst.Expr() as small, cst.SimpleStatementLine(), *_] if _appended(small):
            return chain[5]
        case [_, cst.Arg(), cst.Call(), cst.Expr() as small, cst.SimpleStatementSuite(), *_] if _appended(small):
            return chain[4]
    return None


def _appended(small: cst.CSTNode | None) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Return (list, what is appended) for `list.append(what)`."""
    match small:
        case cst.Expr(
            value=cst.Call(
                func=cst.Attribute(value=receiver, attr=cst.Name(value="append")),
                args=[cst.Arg(keyword=None, star="", value=value)],
            )
        ):
            return receiver, value
    return None


def _runs(tree: Tree, block: Spot, finds: Mapping[int, Find]) -> Iterator[Row]:
    edit = edit_suite if isinstance(block.node, cst.SimpleStatementSuite) else edit_block
    owner, conditions = scope(block), branches(block)
    for name, run in groupby(_statements(block.node), key=lambda entry: _receiver(tree, entry[1])):
        items = [Item(word(pair[1], finds), pair[1], at) for at, small in run if (pair := _appended(small))]
        if any(id(item.node) in finds for item in items):
            yield Row(
                container=block,
                group=Group(owner, name),
                branches=conditions,
                items=tuple(items),
                edit=lambda node, changes: edit(node, changes, _with_text),
            )


def _statements(block: cst.CSTNode) -> Iterator[tuple[Position, _Small | None]]:
    """Yield the simple statements of a block with their positions, and None for each compound one."""
    lines: Iterable[cst.CSTNode] = [block] if isinstance(block, cst.SimpleStatementSuite) else _body(block)
    for number, line in enumerate(lines):
        if isinstance(line, cst.SimpleStatementLine | cst.SimpleStatementSuite):
            yield from (((number, part), small) for part, small in enumerate(line.body))
        else:
            yield (number, 0), None


def _body(block: cst.CSTNode) -> Sequence[cst.CSTNode]:
    assert isinstance(block, cst.Module | cst.IndentedBlock)  # noqa: S101 - narrows the type: lines stand nowhere else
    return block.body


def _receiver(tree: Tree, small: _Small | None) -> str:
    appended = _appended(small)
    return "" if appended is None else tree.code(appended[0]).replace("'", '"')


def _with_text(small: _Small, literal: cst.SimpleString) -> _Small:
    """Return the append with another literal."""
    match small:
        case cst.Expr(value=cst.Call(args=[arg]) as call):
            return small.with_changes(value=call.with_changes(args=[arg.with_changes(value=literal)]))
    raise AssertionError(small)
