from __future__ import annotations

import ast
import sys

import pytest

from archpatch.arch.arch import Arch, ArchRequest, DeviceCode
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import KnownBad, OnMissing, Policy
from archpatch.errors import NoMatchingArch, SetupRefused
from archpatch.rewrite.outcome import Refused, Rewritten, Unchanged
from archpatch.rewrite.source import rewrite_source

HOPPER = ArchRequest.parse("9.0")
BOTH = b'flags = ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90"]\n'

#: Not Python, or none that can be edited: name, source, line and shape of the refusal.
UNREADABLE = [
    ("binary", bytes(range(256)), 1, "syntax"),
    ("nul", b'x = 1\0\nflags = ["-arch=sm_80"]\n', 1, "syntax"),
    ("syntax error", b"x = 1\ny = 2 3\n", 2, "syntax"),
    ("python 2", b'x = 1\nprint "-arch=sm_80"\n', 2, "syntax"),
    ("unknown encoding", b"# coding: klingon\nx = 1\n", 1, "syntax"),
    ("encoding without ASCII", b"# coding: cp500\nx = 1\n", 1, "syntax"),
    ("encoding that cannot be undone", b"# coding: utf-7\nx = '+AGE-'\n", 1, "encoding"),
    ("more strings than libcst takes", b"x = " + b"'a' " * 20_000, 1, "libcst"),
    ("utf-16", "x = 1\n".encode("utf-16"), 1, "syntax"),
    ("encoding that cannot hold it", b"# coding: idna\nx = '" + b"a" * 99 + b"'\n", 1, "encoding"),
    ("not utf-8 in a comment", b"# \xe9\nx = 1\n", 1, "encoding"),
    ("not utf-8 in a comment below", b"x = 1\ny = 2\n# \xe9\n", 1, "encoding"),
    ("many lambdas", b"x = " + b"lambda: " * 8000 + b"1", 1, "too-deep"),
    ("not utf-8", b'x = "\xe9"\n', 1, "syntax"),
    ("brackets", b"x = " + b"(" * 5000 + b")" * 5000, 1, "syntax"),
    ("indents", b"".join(b" " * depth + b"if 1:\n" for depth in range(500)), 101, "syntax"),
    ("long sum", b"x = " + b" + ".join([b"a"] * 20_000), 1, "too-deep"),
    ("sum too long for libcst alone", b"x = " + b" + ".join([b"a"] * 1500), 1, "too-deep"),
    ("many elif", b"if 1:\n    x\n" + b"elif 2:\n    x\n" * 600, 1, "too-deep"),
    ("form feed before a statement", b'f = ["-std=c++17"]\n\x0cx = 1\n', 1, "not-reproducible"),
]


@pytest.mark.parametrize(
    ("source", "line", "shape"), [case[1:] for case in UNREADABLE], ids=[case[0] for case in UNREADABLE]
)
def test_what_cannot_be_read_is_refused(source: bytes, line: int, shape: str) -> None:
    outcome = rewrite_source(source, HOPPER, policy=Policy(), cxx_standard=20)

    assert isinstance(outcome, Refused)
    assert outcome.source == source
    assert [item.shape for item in outcome.refusals] == [shape]
    if sys.version_info[:2] == (3, 11):  # where a syntax error is reported differs between versions
        assert outcome.refusals[0].line == line
    assert isinstance(outcome.error(), SetupRefused)


def test_what_cannot_be_edited_byte_for_byte_gets_the_guard() -> None:
    source = BOTH + b"\x0cx = 1\n"
    outcome = rewrite_source(source, HOPPER, policy=Policy())

    assert isinstance(outcome, Rewritten)
    assert [(item.line, item.shape) for item in outcome.sources] == [(1, "not-reproducible")]
    assert outcome.source.endswith(source)
    both = rewrite_source(source, ArchRequest.parse("8.0;9.0"), policy=Policy())
    assert both.outcome == "unchanged"


def test_what_only_libcst_does_not_read_is_not_called_wrong() -> None:
    source = b"y = 1\nx = " + b"'a' " * 20_000 + b"\n"
    ast.parse(source)
    outcome = rewrite_source(source, HOPPER, policy=Policy())

    assert isinstance(outcome, Refused)
    assert "Python reads this file, but libcst, which edits it, does not: " in outcome.refusals[0].reason
    assert "libcst" in outcome.refusals[0].remedy


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"   ",
        b"# only a comment",
        b"\n\n   \n",
        b"\xef\xbb\xbfx = 1\r\n",
        b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
        b"\x0cx = 1\n",
        b"if 1:\n\tx = 1\n",
        b"x = 1\ry = 2\r",
    ],
)
def test_a_file_without_flags_is_unchanged(source: bytes) -> None:
    outcome = rewrite_source(source, HOPPER, policy=Policy(), cxx_standard=20)

    assert outcome == Unchanged(source=source, pairs=(), selection=None)


#: What stands around the flags has to stay, byte for byte: before, after.
SURROUNDINGS = [
    (b"\xef\xbb\xbf", b""),
    (b"# -*- coding: latin-1 -*-\nx = '\xe9'\n", b"y = '\xfc'\n"),
    (b"x = 1\r\n", b"y = 2\r\n\r\n"),
    (b"x = 1\r\ny = 2\n", b"z = 3\r\nif x:\r\n    y = 4\n"),
    (b"x = 1\ry = 2\r", b"z = 3\r"),
    (b"x=1   \n", b"y = 2   \n\n   \n\n\t\n"),
    (b"x = 1\n\x0c\n", b"\x0c\n# end\n"),
    (b"if 1:\n\tx = 1\n\telse_ = 2\n", b"if 1:\n\tx = 1;\n\ty = 2 ; z = 3  # c\n \n # c\n\n"),
    (b"x = 1 + \\\n  2\n", b"'''a\r\nb'''\nx"),
    (b"#!/usr/bin/python\n\n\n", b"y = [  1,2 ,3, ]"),
]


@pytest.mark.parametrize(("before", "after"), SURROUNDINGS)
def test_what_stands_around_stays(before: bytes, after: bytes) -> None:
    outcome = rewrite_source(before + BOTH + after, HOPPER, policy=Policy())

    assert isinstance(outcome, Rewritten)
    assert outcome.source == before + b'flags = ["-gencode=arch=compute_90,code=sm_90"]\n' + after


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("final", [True, False])
def test_removed_statements_leave_the_line_ends_of_the_others(newline: bytes, final: bool) -> None:  # noqa: FBT001
    lines = [b"# C++", b"if x:", b"\t# Ampere", b'\tf.append("-arch=sm_80")', b"y = 1"]
    lines.append(b'f.append("-gencode=arch=compute_90,code=sm_90")')
    source = newline.join(lines) + (newline if final else b"")
    outcome = rewrite_source(source, ArchRequest.parse("8.0"), policy=Policy())

    kept = [*lines[:3], b'\tf.append("-gencode=arch=compute_80,code=sm_80")', b"y = 1"]
    assert outcome.source == newline.join(kept) + (newline if final else b"")


def test_every_pair_is_reported_with_its_line_and_reason() -> None:
    source = b'# demo\nf = []\nf.append("-gencode")\nf.append("arch=compute_80,code=sm_80")\nf += ["-arch=sm_90"]\n'
    outcome = rewrite_source(source, ArchRequest.parse("8.0+PTX"), policy=Policy())

    assert [(str(item.pair), item.line, item.action) for item in outcome.pairs] == [
        ("compute_80,sm_80", 3, "kept"),
        ("compute_80,compute_80", 3, "added"),
        ("compute_90,sm_90", 5, "dropped"),
        ("compute_90,compute_90", 5, "dropped"),
    ]
    assert [item.reason for item in outcome.pairs] == [
        "8.0 was asked for",
        "8.0+PTX was asked for",
        "not asked for",
        "not asked for",
    ]


@pytest.mark.parametrize("text", ["12.0", "9.0a"])
def test_no_match_is_refused_with_its_error(text: str) -> None:
    outcome = rewrite_source(BOTH, ArchRequest.parse(text), policy=Policy())

    assert isinstance(outcome, Refused)
    assert isinstance(outcome.error(), NoMatchingArch)
    assert outcome.error() is outcome.no_match
    assert text in str(outcome.error())
    assert {item.action for item in outcome.pairs} == {"kept"}


def test_without_a_request_the_flags_stay_even_where_they_would_be_refused() -> None:
    source = BOTH + b'flags.append(f"-arch=sm_{n}")\nflags.append("-std=c++17")\n'
    outcome = rewrite_source(source, None, policy=Policy(), cxx_standard=20)

    assert outcome.source == source.replace(b"c++17", b"c++20")
    assert isinstance(outcome, Rewritten)
    assert outcome.notes == ("line 3: -std=c++17 raised to -std=c++20",)
    assert {item.action for item in outcome.pairs} == {"kept"}
    assert rewrite_source(source, None, policy=Policy()).source == source


def test_a_standard_inside_a_longer_string_is_left_and_noted() -> None:
    source = b'flags = "-O3 -std=c++17".split() + [f"-std=c++{n}", "-Xcompiler -std=c++20"]\n'
    outcome = rewrite_source(source, None, policy=Policy(), cxx_standard=20)

    assert isinstance(outcome, Unchanged)
    assert outcome.notes == ("line 1: a C++ standard below 20 is left, it is not a flag of its own",) * 2


def test_a_known_bad_arch_gives_way() -> None:
    source = b'flags = ["-gencode=arch=compute_100,code=sm_100", "-gencode=arch=compute_103,code=sm_103"]\n'
    policy = Policy(known_bad=(KnownBad(arch=Arch(10, 3), reason="wrong on B300"),))
    outcome = rewrite_source(source, GpuRequest.of("b300"), policy=policy)

    assert outcome.source == b'flags = ["-gencode=arch=compute_100,code=sm_100"]\n'


@pytest.mark.parametrize(
    ("source", "is_proven"),
    [
        (b'f = ["-arch=sm_86"]\nif x:\n    f += ["-gencode=arch=compute_80,code=sm_80"]\n', True),
        (b'f = []\nif x:\n    f += ["-arch=sm_86"]\n    f += ["-gencode=arch=compute_80,code=sm_80"]\n', True),
        (b'f = ["-gencode=arch=compute_80,code=sm_80"]\nif x:\n    f += ["-arch=sm_86"]\n', False),
        (b'try:\n    f = ["-arch=sm_86"]\nexcept E:\n    f = ["-gencode=arch=compute_80,code=sm_80"]\n', False),
        (b'f = ["-arch=compute_80"]\nif x:\n    f += ["-gencode=arch=compute_86,code=sm_86"]\n', False),
        (
            b'f = ["-gencode=arch=compute_75,code=sm_75"]\nif x:\n    f += ["-gencode=arch=compute_86,code=sm_86"]\n',
            True,
        ),
    ],
)
def test_a_choice_between_flags_needs_the_chosen_one_to_be_there(source: bytes, is_proven: bool) -> None:  # noqa: FBT001
    outcome = rewrite_source(source, GpuRequest.of("a10"), policy=Policy())

    assert isinstance(outcome, Rewritten)
    assert outcome.guarded is not is_proven
    assert [item.shape for item in outcome.sources] == ([] if is_proven else ["conditional"])


def test_add_puts_the_pair_into_every_list() -> None:
    source = b'a = ["-gencode=arch=compute_80,code=sm_80"]\nb = ["-gencode", "arch=compute_90,code=sm_90"]\n'
    outcome = rewrite_source(source, ArchRequest.parse("8.9"), policy=Policy(on_missing=OnMissing.ADD))

    assert (
        outcome.source
        == b'a = ["-gencode=arch=compute_89,code=sm_89"]\nb = ["-gencode", "arch=compute_89,code=sm_89"]\n'
    )
    assert isinstance(outcome, Rewritten)
    assert outcome.selection is not None
    assert outcome.selection.device_code == {DeviceCode(Arch(8, 9))}


def test_lists_that_reach_the_same_name_are_one_group() -> None:
    source = (
        b'args = {"nvcc": ["-gencode=arch=compute_80,code=sm_80"]}\n'
        b"args['nvcc'] += ['-gencode=arch=compute_90,code=sm_90']\n"
    )
    outcome = rewrite_source(source, HOPPER, policy=Policy())

    assert outcome.source == b"args = {\"nvcc\": []}\nargs['nvcc'] += ['-gencode=arch=compute_90,code=sm_90']\n"


def test_what_remains_under_a_condition_of_its_own_is_noted() -> None:
    source = (
        b"if use_cuda:\n"
        b"    f = ['-gencode=arch=compute_80,code=sm_80']\n"
        b"    if nvcc >= 11.8:\n"
        b"        f += ['-gencode=arch=compute_90,code=sm_90']\n"
        b"    f += [x] if y else []\n"
        b"    f += (\n        ['-gencode=arch=compute_100,code=sm_100']\n        if new\n        else []\n    )\n"
        b"    if nvcc < 12: f += ['-gencode=arch=compute_80,code=sm_80']\n"
    )
    outcome = rewrite_source(source, ArchRequest.parse("8.0;9.0;10.0"), policy=Policy())

    assert isinstance(outcome, Unchanged)
    assert outcome.notes == (
        "line 4: compute_90,sm_90 depends on the condition at line 3",
        "line 7: compute_100,sm_100 depends on the condition at line 8",
    )
    assert rewrite_source(source, ArchRequest.parse("8.0"), policy=Policy()).notes == ()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "source",
    [
        b"if x:\n    f = ['-arch=compute_90']\n",
        b"def f():\n    return ['-gencode=arch=compute_90,code=sm_90']\n",
        b"f = ['-arch=compute_80']\nfor n in x:\n    f += ['-gencode=arch=compute_90,code=sm_90']\n",
    ],
)
def test_what_no_condition_sets_apart_is_not_noted(source: bytes) -> None:
    outcome = rewrite_source(source, ArchRequest.parse("9.0"), policy=Policy(on_missing=OnMissing.NEAREST))

    assert not isinstance(outcome, Refused)
    assert outcome.notes == ()


def test_strict_is_passed_on() -> None:
    request = ArchRequest.parse("9.0;12.0")

    assert rewrite_source(BOTH, request, policy=Policy()).outcome == "rewritten"
    assert rewrite_source(BOTH, request, policy=Policy(strict=True)).outcome == "refused"
