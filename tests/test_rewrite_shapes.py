"""The shapes: found in their folder, settled where several want one literal, and what each one makes of a text."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import libcst as cst
import pytest

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import OnMissing, Policy, Request
from archpatch.rewrite import claims, shapes
from archpatch.rewrite.elements import Elements, edit_elements, element_items, holders
from archpatch.rewrite.outcome import Outcome, Rewritten, Unchanged
from archpatch.rewrite.rows import Change, Find, Group, Row, Stray
from archpatch.rewrite.source import rewrite_source
from archpatch.rewrite.tree import Tree

PROJECT = Path(__file__).parents[1]
FOLDER = PROJECT / "archpatch" / "rewrite" / "shapes"
MODULES = sorted(path for path in FOLDER.glob("*.py") if path.stem != "__init__")

A = '"-gencode=arch=compute_80,code=sm_80"'
B = '"-gencode=arch=compute_90,code=sm_90"'
PTX = B.replace("sm_90", "compute_90")
AMPERE = '"-gencode", "arch=compute_80,code=sm_80"'
HOPPER = '"-gencode", "arch=compute_90,code=sm_90"'


def rewrite(text: str, request: Request | None = None, policy: Policy | None = None) -> Outcome:
    return rewrite_source(text.encode(), request or ArchRequest.parse("9.0"), policy=policy or Policy())


def sources(outcome: Outcome) -> list[tuple[int, str, str]]:
    assert isinstance(outcome, Rewritten)
    return [(item.line, item.shape, item.reason) for item in outcome.sources]


# --- how shapes are found ----------------------------------------------------------------------


def test_each_module_of_the_folder_is_a_shape() -> None:
    assert [rows.__module__ for rows in shapes.find_shapes()] == [f"{shapes.__name__}.{path.stem}" for path in MODULES]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_shape_says_what_it_is_and_has_one_entry(path: Path) -> None:
    tree = ast.parse(path.read_bytes())
    public = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]

    assert ast.get_docstring(tree)
    assert [node.name for node in public] == ["rows"]
    assert [argument.arg for argument in public[0].args.args] == ["tree", "finds"]
    assert ast.get_docstring(public[0])


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Put the shape of CONTRIBUTING.md into the folder of shapes; return the files that it shows."""
    text = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    (name,) = (name for name in files if name.startswith("archpatch/rewrite/shapes/"))
    (tmp_path / Path(name).name).write_text(files[name], encoding="utf-8")
    monkeypatch.setattr(shapes, "__path__", [*shapes.__path__, str(tmp_path)])
    shapes.find_shapes.cache_clear()
    yield files
    shapes.find_shapes.cache_clear()
    sys.modules.pop(f"{shapes.__name__}.{Path(name).stem}", None)


def test_the_example_of_how_to_add_a_shape_works(example: dict[str, str]) -> None:
    (before,) = (text for name, text in example.items() if name.endswith("before.py"))
    (after,) = (text for name, text in example.items() if name.endswith("after.py"))

    assert rewrite(before).source.decode() == after


def test_without_the_example_its_flags_are_left_to_the_guard() -> None:
    assert sources(rewrite(f"flags.appendleft({A})\n"))[0][:2] == (1, "helper-call")


# --- a literal that several shapes want --------------------------------------------------------

Rows = Callable[[Tree, Mapping[int, Find]], Iterator[Row | Stray]]


def lists(group: str, *, only: str = "", edit: Callable[..., cst.CSTNode] = edit_elements) -> Rows:
    """Return a shape that takes each list, or those with `only` in them, for `group`."""

    def rows(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row | Stray]:
        for spot, _ in holders(finds):
            if isinstance(spot.node, Elements) and only in tree.code(spot.node):
                items = tuple(element_items(spot.node, finds))
                yield Row(container=spot, group=Group(0, group), branches=(), items=items, edit=edit)

    return rows


def complaints(reason: str) -> Rows:
    def rows(_: Tree, finds: Mapping[int, Find]) -> Iterator[Row | Stray]:
        return (Stray(find.node, "odd", reason) for find in finds.values())

    return rows


def settled(monkeypatch: pytest.MonkeyPatch, source: str, *found: Rows) -> Outcome:
    monkeypatch.setattr(claims, "find_shapes", lambda: found)
    return rewrite(source)


TWO = f"f = [{A}]\ng = [{A}, {B}]\n"


def test_the_first_row_has_a_literal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settled(monkeypatch, TWO, lists("one"), lists("two")).source.decode() == f"f = []\ng = [{B}]\n"
    # In a group of its own, the first list would lose all.
    split = settled(monkeypatch, TWO, lists("first", only=f"[{A}]"), lists("one"))
    assert [shape for _, shape, _ in sources(split)] == ["group"]


def test_a_row_beats_a_stray_wherever_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in ([complaints("no"), lists("one")], [lists("one"), complaints("no")]):
        assert settled(monkeypatch, TWO, *found).source.decode() == f"f = []\ng = [{B}]\n"


def test_the_first_stray_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (lists("one", only=f"[{A}]"), complaints("first"), complaints("second"))

    assert sources(settled(monkeypatch, TWO, *found)) == [(2, "odd", "first")]


def test_without_a_row_and_a_stray_what_is_around_a_literal_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [shape for _, shape, _ in sources(settled(monkeypatch, TWO))] == ["nested-list", "nested-list"]


def test_of_two_edits_of_one_container_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(node: cst.CSTNode, _: Sequence[Change]) -> cst.CSTNode:
        raise AssertionError(node)

    def halves(tree: Tree, finds: Mapping[int, Find]) -> Iterator[Row | Stray]:
        for row in lists("one")(tree, finds):
            assert isinstance(row, Row)
            for index, item in enumerate(row.items):
                edit = other if index else edit_elements
                yield Row(container=row.container, group=row.group, branches=(), items=(item,), edit=edit)

    assert [line for line, _, _ in sources(settled(monkeypatch, TWO, halves))] == [2]


# --- what is split from one literal ------------------------------------------------------------

ONE, OTHER = "-gencode arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90"

#: What `9.0` leaves of a text that is split; X and Y stand for the flags of 8.0 and 9.0.
SPLITS = [
    ('"X Y".split()', '"Y".split()'),
    ('"Y X".split()', '"Y".split()'),
    ('"-a X Y -b".split()', '"-a Y -b".split()'),
    ('"-a  X   Y -b".split()', '"-a  Y -b".split()'),
    ('" X -a Y ".split()', '" -a Y ".split()'),
    ('"Y -a X  ".split()', '"Y -a  ".split()'),
    ("r'-a\\t X Y'.split()", "r'-a\\t Y'.split()"),
    ("u'X Y' . split ( )", "u'Y' . split ( )"),
    ("('X Y').split()", "('Y').split()"),
    ('"""X\n    Y\n""".split()', '"""Y\n""".split()'),
    ('"""\n    -a X\n    Y\n    X -b\n    X\n""".split()', '"""\n    -a\n    Y\n    -b\n""".split()'),
    ('"""\n  Y\n  X\n""".split()', '"""\n  Y\n""".split()'),
    ('"X -a Y".split(" ")', '"-a Y".split(" ")'),
    ("\"-a  Y X\".split(' ')", "\"-a  Y\".split(' ')"),
    ('[Y] + "X".split()', '[Y] + "".split()'),
    ('[Y] + "X".split(" ")', '[Y] + "".split()'),
    ('[Y] + """\n  X\n""".split()', '[Y] + """\n""".split()'),
    ('shlex.split("X Y -a")', 'shlex.split("Y -a")'),
    ('[Y] + shlex.split("X")', '[Y] + shlex.split("")'),
    ('"-arch=sm_90 -a".split()', '"-gencode=arch=compute_90,code=sm_90 -a".split()'),
    ('"-gencode arch=compute_90,code=[sm_90,sm_80] X".split()', '"-gencode arch=compute_90,code=sm_90".split()'),
]


def spelled(text: str) -> str:
    return re.sub("[XY]", lambda match: ONE if match[0] == "X" else OTHER, text.replace("[Y]", f"[{B}]"))


def empty_words(code: str) -> int:
    return eval(code, {"shlex": shlex}).count("")  # type: ignore[no-any-return]  # noqa: S307 - our own text


@pytest.mark.parametrize(("before", "after"), SPLITS)
def test_splits(before: str, after: str) -> None:
    outcome = rewrite(f"f = {spelled(before)}\n")

    assert outcome.source.decode() == f"f = {spelled(after)}\n"
    assert empty_words(spelled(before)) == empty_words(spelled(after))


#: What `9.0+PTX` makes of a text that is split.
SPLIT_ADDITIONS = [
    ('"Y".split()', f'"Y {PTX[1:-1]}".split()'),
    ('"""\n  Y\n  -a\n""".split()', f'"""\n  Y\n  {PTX[1:-1]}\n  -a\n""".split()'),
    ('"-a Y X".split(" ")', f'"-a Y {PTX[1:-1]}".split(" ")'),
    (
        '"-gencode\tarch=compute_90,code=sm_90 -a".split()',
        '"-gencode\tarch=compute_90,code=sm_90 -gencode\tarch=compute_90,code=compute_90 -a".split()',
    ),
    ('"-arch=sm_90".split()', '"-arch=sm_90".split()'),
]


@pytest.mark.parametrize(("before", "after"), SPLIT_ADDITIONS)
def test_split_additions(before: str, after: str) -> None:
    outcome = rewrite(f"f = {spelled(before)}\n", ArchRequest.parse("9.0+PTX"))

    assert outcome.source.decode() == f"f = {spelled(after)}\n"


def test_a_flag_is_replaced_where_it_stood() -> None:
    policy = Policy(on_missing=OnMissing.ADD)
    for text, result in (
        ('"X".split()', '"-gencode arch=compute_86,code=sm_86".split()'),
        ('"-a\n  X -b".split()', '"-a\n  -gencode arch=compute_86,code=sm_86 -b".split()'),
    ):
        literal = spelled(text).replace('"', '"""')
        outcome = rewrite(f"f = {literal}\n", ArchRequest.parse("8.6"), policy)

        assert outcome.source.decode() == "f = " + result.replace('"', '"""') + "\n"


#: What is split in a way that the text does not show.
NOT_SPLIT = [
    (r'"X\x20Y".split()', "split"),
    (r'"X\tY".split()', "split"),
    ("'''X Y -DNAME='a' '''.split()", "split"),
    ('"X" " Y".split()', "split"),
    ('("X " + "Y").split()', "split"),
    ('f"X Y".split()', "split"),
    ('"X,Y".split(",")', "split"),
    ('"X Y".split(None)', "split"),
    ('"X Y".split(sep=" ")', "split"),
    ('"X Y".split(" ", 1)', "split"),
    ('"X\tY".split(" ")', "split"),
    ('"X Y".rsplit()', "method"),
    ('"X Y".split()[:2]', "split"),
    ('set("X Y".split())', "split"),
    ('helper(*"X Y".split())', "split"),
    ("shlex.split(\"X Y 'a'\")", "helper-call"),
    ('shlex.split(r"X Y \\a")', "helper-call"),
    ('shlex.split("X Y", True)', "helper-call"),
    ('shlex.split("X\vY")', "helper-call"),
    ('mine.split("X Y")', "helper-call"),
]


@pytest.mark.parametrize(("text", "shape"), NOT_SPLIT)
def test_what_is_split_otherwise_is_guarded(text: str, shape: str) -> None:
    assert [found for _, found, _ in sources(rewrite(f"f = {spelled(text)}\n"))] == [shape]


# --- lists in a list ---------------------------------------------------------------------------

#: What `9.0` leaves of lists in a list; X and Y stand for the words of 8.0 and 9.0.
NESTED = [
    ("f = sum([[X], [Y]], [])", "f = sum([[Y]], [])"),
    ("f = sum([[Y], [X]], g)", "f = sum([[Y]], g)"),
    ("f = sum(([X], [Y]), start=[])", "f = sum(([Y],), start=[])"),
    ("f = sum([[X, '-a'], [Y], g], [X])", "f = sum([['-a'], [Y], g], [])"),
    ("f = sum([[X]], [Y])", "f = sum([], [Y])"),
    ("f = sum([\n  [X],  # 8.0\n  # 9.0\n  [Y],\n], [])", "f = sum([\n  # 9.0\n  [Y],\n], [])"),
    ("f = sum([[X,\n  # 8.0\n], [Y]], [])", "f = sum([[\n  # 8.0\n], [Y]], [])"),
    ("f = list(chain([X], (Y,)))", "f = list(chain([], (Y,)))"),
    ("f = [*itertools.chain([X], g, [Y])]", "f = [*itertools.chain([], g, [Y])]"),
    ("f += chain.from_iterable([[X], [Y]])", "f += chain.from_iterable([[Y]])"),
    ("f = list(itertools.chain.from_iterable(((X,), (Y,))))", "f = list(itertools.chain.from_iterable(((Y,),)))"),
    ("for p in [[X], [Y]]:\n    f += p", "for p in [[Y]]:\n    f += p"),
    ("for p in [X], [Y]: f.extend(p)", "for p in [Y],: f.extend(p)"),
    ("for p in [X], [Y],: f.extend(p)", "for p in [Y],: f.extend(p)"),
    ("f = [Y]\nfor p in [X],: f += p", "f = [Y]\nfor p in (): f += p"),
    ("for p in [[X], [Y]]: f += p\nfor p in g: h += p", "for p in [[Y]]: f += p\nfor p in g: h += p"),
]


def nested(text: str) -> str:
    return re.sub("[XY]", lambda match: AMPERE if match[0] == "X" else HOPPER, text)


@pytest.mark.parametrize(("before", "after"), NESTED)
def test_lists_in_a_list(before: str, after: str) -> None:
    outcome = rewrite(nested(before) + "\n")

    assert outcome.source.decode() == nested(after) + "\n"
    compile(outcome.source, "setup.py", "exec")


#: What is done with the lists that the text does not show, or is more than to put them together.
NOT_PUT_TOGETHER = [
    ("f = sum([[X], [Y]])", "nested-list"),
    ("f = sum([[X], [Y]], [])[0]", "nested-list"),
    ("f = sum([X, Y], [])", "helper-call"),
    ("f = chain(*[[X], [Y]])", "nested-list"),
    ("f = mine.from_iterable([[X], [Y]])", "nested-list"),
    ("for p in [[X], [Y]]:\n    f += p\nprint(p)", "nested-list"),
    ("for p in [[X], [Y]]:\n    f += p\nfor p in p: g", "nested-list"),
    ("for p in [[X], [Y]]:\n    f += p\n    n += 1", "nested-list"),
    ("for p in [[X], [Y]]:\n    f.append(p)", "nested-list"),
    ("for p in [[X], [Y]]:\n    f += q", "nested-list"),
    ("for p in [[X], [Y]]:\n    f = f + p", "nested-list"),
    ("for p in [[X], [Y]]:\n    if p: f += p", "nested-list"),
    ("for p in [[X], [Y]]:\n    f += p\nelse:\n    g", "nested-list"),
    ("for p, q in [[X], [Y]]:\n    f += [p, q]", "nested-list"),
    ("async def g():\n    async for p in [[X], [Y]]:\n        f += p", "nested-list"),
    ("f = [p for p in [[X], [Y]]]", "nested-list"),
]


@pytest.mark.parametrize(("text", "shape"), NOT_PUT_TOGETHER)
def test_lists_that_are_not_put_together_are_guarded(text: str, shape: str) -> None:
    assert {found for _, found, _ in sources(rewrite(nested(text) + "\n"))} == {shape}


# --- inserts in front --------------------------------------------------------------------------

#: What `9.0` leaves of inserts.
INSERTS = [
    (f"f.insert(0, {A})\nf.insert(0, {B})\n", f"f.insert(0, {B})\n"),
    (
        'f.insert(0, "arch=compute_80,code=sm_80")  # A100\nf.insert(0, "-gencode")\n# Hopper\nf.insert(0, '
        + B
        + ")\n",
        f"# Hopper\nf.insert(0, {B})\n",
    ),
    (f"f = [{B}]\nif x:\n    f.insert(0, {A})\n", f"f = [{B}]\nif x:\n    pass\n"),
    (f"f = [{B}]\nif x: f.insert(0, {A}); f.append({A}); y\n", f"f = [{B}]\nif x: y\n"),
    (
        f"f.insert(0, {A})\nf.insert(0, {B})\nf.insert(0, x)\ng[0] = f\n",
        f"f.insert(0, {B})\nf.insert(0, x)\ng[0] = f\n",
    ),
    ("a['f'].insert(0, \"-arch=sm_90\")\n", "a['f'].insert(0, \"-gencode=arch=compute_90,code=sm_90\")\n"),
]


@pytest.mark.parametrize(("before", "after"), INSERTS)
def test_inserts(before: str, after: str) -> None:
    assert rewrite(before).source.decode() == after


def test_an_insert_that_is_added_has_its_words_in_the_order_of_the_others() -> None:
    text = "f.insert(0, 'arch=compute_90,code=sm_90')  # H100\nf.insert(0, '-gencode')\n"
    outcome = rewrite(text, ArchRequest.parse("9.0+PTX"))

    assert outcome.source.decode() == text + text.replace("sm_90", "compute_90").replace("  # H100", "")


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (f"f.insert(1, {A})", ["insert"]),
        (f"f.insert(True, {A})", ["insert"]),
        (f"f.insert(n, {A})", ["insert"]),
        (f"x = f.insert(0, {A})", ["insert"]),
        ('f.insert(0, "-gencode")\nf.insert(0, "arch=compute_80,code=sm_80")', ["orphan-flag", "orphan-value"]),
        ('f.insert(0, "arch=compute_80,code=sm_80")\nx\nf.insert(0, "-gencode")', ["orphan-value", "orphan-flag"]),
        ('f.insert(0, "arch=compute_80,code=sm_80")\nf.append("-gencode")', ["orphan-value", "orphan-flag"]),
    ],
)
def test_other_inserts_are_guarded(text: str, shapes: list[str]) -> None:
    assert [shape for _, shape, _ in sources(rewrite(text + "\n"))] == shapes


# --- conditional expressions -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"f = [{A}, {B}] if x else [{B}]", f"f = [{B}] if x else [{B}]"),
        (f"f = g + ([{A}, {B}] if x else [])", f"f = g + ([{B}] if x else [])"),
        (f"f = [{B}] if x else (({A},) if y else [])", f"f = [{B}] if x else (() if y else [])"),
        (f"f.extend([{A}, {B}] if x else g)", f"f.extend([{B}] if x else g)"),
        (f'f = {{"nvcc": [{A}, {B}] if x else []}}', f'f = {{"nvcc": [{B}] if x else []}}'),
    ],
)
def test_sides_of_conditional_expressions(before: str, after: str) -> None:
    assert rewrite(before + "\n").source.decode() == after + "\n"


#: A choice between flags, for an A10 (8.6), in statements and in the same words as an expression.
WORLDS = [
    ("f = {86}\nf += {80} if x else []", True),
    ("f = {80}\nf += {86} if x else []", False),
    ("f = {86} if x else {80}", False),
    ("f = {86} if x else {86}", True),
    ("f = {86} + ({80} if x else {75})", True),
    ("f = ({86} if y else {80}) if x else {80}", False),
    ("f = ({75} if y else {75}) if x else {86}", True),
]


@pytest.mark.parametrize(("text", "is_proven"), WORLDS)
def test_each_side_is_a_world_as_with_statements(text: str, is_proven: bool) -> None:  # noqa: FBT001
    expression = re.sub(r"\{(\d\d)\}", r'["-gencode=arch=compute_\1,code=sm_\1"]', text)
    outcome = rewrite(expression + "\n", GpuRequest.of("a10"))

    assert isinstance(outcome, Rewritten | Unchanged)
    assert outcome.guarded is not is_proven
    assert [item.shape for item in outcome.sources] == ([] if is_proven else ["conditional"])


@pytest.mark.parametrize(
    "text", [f"f = x if [{A}] else []", f"f = [{A} if x else {B}]", f"f = ([{A}] if x else [])[0]", f"f = x and [{A}]"]
)
def test_other_conditional_expressions_are_guarded(text: str) -> None:
    assert {shape for _, shape, _ in sources(rewrite(text + "\n"))} <= {"conditional-expression", "unsupported"}
