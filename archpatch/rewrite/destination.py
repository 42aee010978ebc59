"""Where a list of flags ends up, read from the text around it: in a name, as an argument, or where nobody can tell."""

from __future__ import annotations

from typing import Final

import libcst as cst

from archpatch.rewrite.lookups import call_name
from archpatch.rewrite.refusals import shape_by_parent
from archpatch.rewrite.rows import Group, scope
from archpatch.rewrite.tree import Spot, Tree

__all__ = ["destination"]

#: Calls whose result does not follow from the elements one by one.
_COMPUTING: Final = frozenset(
    {"append", "enumerate", "filter", "from_iterable", "insert", "join", "map", "product", "reduce", "reversed", "set"}
    | {"sorted", "sum", "zip"}
)


def destination(tree: Tree, spot: Spot) -> Group | str:
    """Return the group of the list that the expression at `spot` gives, or the shape that says why it is not clear.

    All of the list has to end up there, in its order: by `=`, `+=`, `extend`, as an argument, a default, a dict's
    value or a result; by way of `+`, `*`, `list`, `tuple`, `chain`, the start of `sum`, or of one side of a conditional
    expression, which is a branch of its own.
    """
    whole, found = spot.node, ""
    for child, parent in spot.above():
        link = _link(tree, child, parent)
        if link is not None:
            found = link
            break
        whole = parent.node
    return Group(scope(spot), found[1:] or str(id(whole))) if found.startswith("=") else found


def _link(tree: Tree, child: Spot, parent: Spot) -> str | None:  # noqa: C901, PLR0911 - a table: one case per parent
    """Return what the step from `child` to `parent` says: `=name`, `=` for a list of its own, a shape; None: climb."""
    match parent.node:
        case cst.Assign(targets=[cst.AssignTarget(target=target), *_]):
            return "unpacking" if isinstance(target, cst.Tuple | cst.List) else f"={tree.name(target)}"
        case cst.AnnAssign(target=target) | cst.AugAssign(target=target, operator=cst.AddAssign()):
            return f"={tree.name(target)}"
        case cst.BinaryOperation(operator=cst.Add()):
            return None
        case cst.IfExp() if child.field != "test":
            return None
        case cst.Arg(star=""):
            return _passed(tree, parent)
        case cst.Call() if child.field == "args":
            return None  # `_passed` let the argument through
        case cst.DictElement() if child.field == "value":
            return _in_dict(tree, parent)
        case cst.Return():
            return "=return"
        case cst.Param():
            return "="
        case cst.StarredElement():
            return None
        case cst.List() | cst.Tuple() if isinstance(child.node, cst.StarredElement):
            return None
        case cst.Arg():
            return "star-unpacking"
    return shape_by_parent(parent.node)


def _passed(tree: Tree, arg: Spot) -> str | None:
    """Judge a list that is an argument."""
    match arg.parent and arg.parent.node:
        case cst.Call() as call if _gives_all(call, arg):
            return None
        case cst.Call(func=cst.Attribute(value=receiver, attr=cst.Name(value="extend"))):
            return f"={tree.name(receiver)}"
        case cst.Call() as call:
            return "helper-call" if call_name(call)[1] in _COMPUTING else "="
    return "unsupported"


def _gives_all(call: cst.Call, arg: Spot) -> bool:
    """Whether the elements of this argument are, in their order, neighbours in what the call gives."""
    match call_name(call), call.args:
        case ("", "list" | "tuple" | "chain") | ("itertools", "chain"), _:
            return True
        case ("", "sum"), [_, start]:
            return arg.node is start
    return False


def _in_dict(tree: Tree, element: Spot) -> str:
    """Name the value of a literal key in a dict that is assigned: `args = {"nvcc": [...]}` is `args["nvcc"]`."""
    target = element.parent and element.parent.parent
    match element.node, target and target.node:
        case cst.DictElement(key=cst.SimpleString() as key), cst.Assign(targets=[cst.AssignTarget(target=name)]):
            return f"={tree.name(name)}[{tree.name(key)}]"
    return "="
