from __future__ import annotations

import libcst as cst
import pytest

from archpatch.rewrite.literals import respell, text_of
from archpatch.rewrite.spelling import HOLE


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('"-arch=sm_80"', "-arch=sm_80"),
        (r"'a\"b\x2d'", 'a"b-'),
        (r"r'a\x2d'", r"a\x2d"),
        (r"'\d'", r"\d"),
        ('"a" "b"  f"{c}"', f"ab{HOLE}"),
        ('f"a{b}{{c}}"', f"a{HOLE}{{c}}"),
        (r'F"\x2da"', "-a"),
        ('b"a"', None),
        ('b"a" b"b"', None),
        ("name", None),
        ("\"a\" + 'b' + ('c' \"d\")", "abcd"),
        ('"a" + f"b"', None),
        ('"a" + b"b"', None),
        ('"a" + name', None),
        ('"a" % "b"', None),
    ],
)
def test_text_of(code: str, expected: str | None) -> None:
    assert text_of(cst.parse_expression(code)) == expected


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        ("'a'", "new", "'new'"),
        ('r"""a"""', "new", 'r"""new"""'),
        ("f'a'", "new", "'new'"),
        ("rf'a'", "new", "r'new'"),
        ("'a' \"b\"", "new", "'new'"),
        ("'a' + \"b\"", "new", "'new'"),
        ("('a')", "new", "('new')"),
        ("(r'a'\n + 'b')", "new", "(r'new')"),
        (r'"\"a\""', r"\"new\"", r'"\"new\""'),
        ('"a" \'"b"\'', '"new"', "'\"new\"'"),
        (r"""r'a' '\\'""", "\\", r"'\\'"),
    ],
)
def test_respell(code: str, text: str, expected: str) -> None:
    node = cst.parse_expression(code)

    assert cst.Module([]).code_for_node(respell(node, text)) == expected
