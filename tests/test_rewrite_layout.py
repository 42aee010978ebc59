"""White space and comments around flags that go or come: one row per way in which they can stand."""

from __future__ import annotations

import pytest

from archpatch.arch.arch import ArchRequest
from archpatch.arch.selection import OnMissing, Policy
from archpatch.rewrite.source import rewrite_source

A = '"-gencode=arch=compute_80,code=sm_80"'
B = '"-gencode=arch=compute_90,code=sm_90"'
PTX = '"-gencode=arch=compute_90,code=compute_90"'
FLAG, VALUE = '"-gencode"', '"arch=compute_80,code=sm_80"'

#: What `9.0` leaves of a list.
LISTS = [
    (f"[{A}, {B}]", f"[{B}]"),
    (f"[ {B}, {A} ]", f"[ {B} ]"),
    (f"[{B}, {A},]", f"[{B},]"),
    (f"[{B} , {A} , ]", f"[{B} , ]"),
    (f"[x, {A}, {B}]", f"[x, {B}]"),
    (f"[x,\n    {A},  # A100\n    {B}]", f"[x,\n    {B}]"),
    (f"[x,  # first\n    {A}, {B}]", f"[x,  # first\n    {B}]"),
    (f"[{B},  # H100\n    {A}]", f"[{B}  # H100\n    ]"),
    (f"[{B},\n    {A}]", f"[{B}]"),
    (f"[\n    {B},\n    # Ampere\n    {A}]", f"[\n    {B}\n    # Ampere\n    ]"),
    (f"[{B}, {A}  # all\n]", f"[{B}  # all\n]"),
    (f"[{B}, {A},  # all\n  x]", f"[{B},  # all\n  x]"),
    (f"[{A},  # A100\n {B}]", f"[{B}]"),
    (f"[{A},  # A100\n # Hopper\n {B}]", f"[\n # Hopper\n {B}]"),
    (f"[{B}, {FLAG},\n  # value\n  {VALUE}, x]", f"[{B},\n  # value\n  x]"),
    (f"[{B},\n  {FLAG},\n  # value\n  {VALUE}, x]", f"[{B},\n  # value\n  x]"),
    (f"({B}, {A})", f"({B},)"),
    (f"({A}, {B},)", f"({B},)"),
    (f"{A}, {B}", f"{B},"),
    (f"{B}, {A},", f"{B},"),
    (f"[{B}] + [ {A} ]", f"[{B}] + [ ]"),
    (f"[{B}] + [\n  {A},\n]", f"[{B}] + [\n]"),
    (f"[{B}] + [{A},  # A100\n]", f"[{B}] + []"),
    (f"[{B}] + [  # flags\n  {A}]", f"[{B}] + [  # flags\n  ]"),
    (f"[{B}] + list(({A},))", f"[{B}] + list(())"),
]


@pytest.mark.parametrize(("before", "after"), LISTS)
def test_lists(before: str, after: str) -> None:
    outcome = rewrite_source(f"f = {before}\n".encode(), ArchRequest.parse("9.0"), policy=Policy())

    assert outcome.source.decode() == f"f = {after}\n"
    compile(outcome.source, "setup.py", "exec")


#: What `9.0+PTX` makes of a list.
ADDITIONS = [
    (f"[{B}]", f"[{B}, {PTX}]"),
    (f"({B},)", f"({B}, {PTX},)"),
    (f"[x,\n  {B},  # H100\n]", f"[x,\n  {B},  # H100\n  {PTX},\n]"),
    (f"[x,\n  {B}  # H100\n]", f"[x,\n  {B},  # H100\n  {PTX}\n]"),
    (f"[x,  # x\n\n  # Hopper\n  {B}]", f"[x,  # x\n\n  # Hopper\n  {B},\n  {PTX}]"),
    (f"[{A}, {B}, x]", f"[{B}, {PTX}, x]"),
]


@pytest.mark.parametrize(("before", "after"), ADDITIONS)
def test_additions(before: str, after: str) -> None:
    outcome = rewrite_source(f"f = {before}\n".encode(), ArchRequest.parse("9.0+PTX"), policy=Policy())

    assert outcome.source.decode() == f"f = {after}\n"


#: What `9.0` with `--on-missing add` makes of statements that only have 8.0.
REPLACEMENTS = [
    ("# all\nf.append({})  # A100\n\ny = 1\n", "# all\nf.append({})\n\ny = 1\n"),
    ("f.append({}); y = 1\n", "f.append({}); y = 1\n"),
    ("y = 1; f.append({})  # A100\n", "y = 1; f.append({})  # A100\n"),
    ("if y: f.append({})\n", "if y: f.append({})\n"),
    ("f = [{}]\n", "f = [{}]\n"),
    ("f = [x,\n    {}]\n", "f = [x,\n    {}]\n"),
]


@pytest.mark.parametrize(("before", "after"), REPLACEMENTS)
def test_replacements(before: str, after: str) -> None:
    request, policy = ArchRequest.parse("9.0"), Policy(on_missing=OnMissing.ADD)
    outcome = rewrite_source(before.format(A).encode(), request, policy=policy)

    assert outcome.source.decode() == after.format(B)


#: What `9.0` leaves of statements; each case also has 9.0 in the same list.
STATEMENTS = [
    ("\n\nf.append({})\n\n\n\ny = 1\n", "\n\n\ny = 1\n"),
    ("\n\n\nf.append({})\n\ny = 1\n", "\n\n\ny = 1\n"),
    ("# A\nf.append({})\n\n# y\ny = 1\n", "# A\n\n# y\ny = 1\n"),
    ("if y:\n    # A\n    f.append({})  # A100\n", "if y:\n    # A\n    pass\n"),
    ("if y:\n    z\n    # A\n    f.append({})\n    # end\n", "if y:\n    z\n    # A\n    # end\n"),
    ("if y:\n    z\n\n    f.append({})\n", "if y:\n    z\n"),
    ("if y: z; f.append({})\n", "if y: z\n"),
    ("if y: f.append({}); z;\n", "if y: z;\n"),
    ("y = 1 ; f.append({}) ;  z = 2\n", "y = 1 ; z = 2\n"),
    ("for y in z:\n\tf.append({})\nelse:\n\ty\n", "for y in z:\n\tpass\nelse:\n\ty\n"),
    ("try:\n  f.append({})\nexcept E:\n  y\n", "try:\n  pass\nexcept E:\n  y\n"),
    ("f.append({})\nclass C:\n  y = 1\n", "class C:\n  y = 1\n"),
    ("# A\nf.append({})\n@d\ndef g(): pass\n", "# A\n@d\ndef g(): pass\n"),
    ("# A\nf.append({})", "# A"),
    ("# A\n\nf.append({})", "# A"),
]


@pytest.mark.parametrize(("before", "after"), STATEMENTS)
def test_statements(before: str, after: str) -> None:
    head = f"f = [{B}]\n"
    outcome = rewrite_source((head + before.format(A)).encode(), ArchRequest.parse("9.0"), policy=Policy())

    assert outcome.source.decode() == head + after
    compile(outcome.source, "setup.py", "exec")
