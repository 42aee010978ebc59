"""A short fuzz run with a fixed seed, and that each of its properties can fail."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz.mutations import KINDS, Input, make_input
from fuzz.runner import OUTCOMES, judge, try_one

from archpatch.arch.arch import Arch, ArchRequest, DeviceCode, Pair
from archpatch.arch.selection import Policy
from archpatch.rewrite.guard import strip_guard
from archpatch.rewrite.outcome import FlagSource, PairReport, Refused, Rewritten, Unchanged
from archpatch.rewrite.source import rewrite_source

BOTH = (
    b'x = ["a", \'b\']  # names\n\nflags = ["-gencode", "arch=compute_80,code=sm_80", "-O3"]  # A100\n'
    b'flags += ["-gencode=arch=compute_90,code=sm_90"]\n# end\n'
)


def given(source: bytes = BOTH) -> Input:
    return Input(
        number=0,
        source=source,
        kinds=(),
        request=ArchRequest.parse("9.0"),
        policy=Policy(),
        cxx_standard=None,
    )


def test_mutated_files() -> None:
    verdicts = [try_one(make_input(20_000, number)) for number in range(250)]

    assert [verdict for verdict in verdicts if verdict.failures] == []
    assert {verdict.outcome for verdict in verdicts} == set(OUTCOMES)
    assert {kind for verdict in verdicts for kind in verdict.kinds} == set(KINDS)


def test_an_input_is_the_same_again() -> None:
    assert make_input(1, 2) == make_input(1, 2) != make_input(2, 2)


def rewritten(source: bytes) -> Rewritten:
    """Return a report of the one pair that `9.0` drops, with `source` as its result."""
    dropped = Pair.of(DeviceCode(Arch(8, 0)))
    report = PairReport(pair=dropped, line=3, action="dropped", reason="not asked for")
    return Rewritten(source=source, pairs=(report,), selection=None)


RIGHT = BOTH.replace(b'"-gencode", "arch=compute_80,code=sm_80", ', b"")

#: What is wrong with a result, and the property that says so.
WRONG = [
    ("kind_fits_bytes", Unchanged(source=RIGHT, pairs=(), selection=None)),
    ("kind_fits_bytes", rewritten(BOTH)),
    ("kind_fits_bytes", Refused(source=BOTH)),
    ("result_is_python", rewritten(RIGHT + b"(")),
    ("second_run_changes_nothing", rewritten(BOTH + b"\n")),
    ("lines_are_there", replace(rewritten(RIGHT), sources=(FlagSource(line=99, shape="loop", reason=""),))),
    ("guard_comes_off", replace(rewritten(RIGHT), guarded=True)),
    ("pairs_are_whole", rewritten(BOTH.replace(b'"-gencode", ', b""))),
    ("pairs_are_whole", rewritten(BOTH.replace(b', "arch=compute_80,code=sm_80"', b""))),
    ("pairs_are_as_reported", rewritten(RIGHT.replace(b"90", b"86"))),
    ("pairs_are_as_reported", rewritten(BOTH.replace(b'"-gencode=arch=compute_90,code=sm_90"', b""))),
    ("all_else_stays", rewritten(RIGHT.replace(b'"-O3"', b""))),
    ("all_else_stays", rewritten(RIGHT.replace(b"'b'", b'"b"'))),
    ("lines_outside_stay", rewritten(RIGHT.replace(b'"a", ', b'"a",'))),
    ("line_ends_stay", rewritten(RIGHT.replace(b"\n", b"\r\n"))),
    ("line_ends_stay", rewritten(RIGHT.removesuffix(b"\n"))),
    ("line_ends_stay", rewritten(b"\xef\xbb\xbf" + RIGHT)),
    ("comments_stay", rewritten(RIGHT.replace(b"# end\n", b""))),
    ("comments_stay", rewritten(RIGHT.replace(b"# names", b""))),
    ("comments_stay", rewritten(RIGHT + b"# new\n")),
]


def test_a_right_result_has_no_failure() -> None:
    assert rewrite_source(BOTH, ArchRequest.parse("9.0"), policy=Policy()).source == RIGHT
    assert judge(given(), rewritten(RIGHT)).failures == ()


@pytest.mark.parametrize(("name", "outcome"), WRONG)
def test_a_wrong_result_is_found(name: str, outcome: Rewritten | Unchanged | Refused) -> None:
    assert name in {failure.partition(":")[0] for failure in judge(given(), outcome).failures}


def test_what_takes_too_long_has_failed() -> None:
    assert judge(given(), rewritten(RIGHT), seconds=6.0).failures == ("took 6.0 s",)


#: What earlier runs found.
NINE = '"-gencode=arch=compute_90,code=sm_90"'
PTX = NINE.replace("sm_90", "compute_90")


@pytest.mark.filterwarnings("error")
def test_what_python_warns_of_in_a_file_stops_no_run() -> None:
    outcome = rewrite_source(rb'x = "\d"; flags = f"-arch=sm_{n}"', ArchRequest.parse("9.0"), policy=Policy())

    assert isinstance(outcome, Rewritten)
    assert outcome.guarded


def test_a_guard_that_lost_its_end_is_none() -> None:
    source = f'# archpatch guard begin: broken\nflags = [f"-arch=sm_{{n}}", {NINE}]\n'.encode()
    first = rewrite_source(source, ArchRequest.parse("9.0"), policy=Policy())
    second = rewrite_source(first.source, ArchRequest.parse("9.0"), policy=Policy())

    assert strip_guard(first.source).source == source
    assert isinstance(second, Unchanged)


def test_a_comment_in_the_brackets_of_a_flag_is_not_repeated() -> None:
    source = f"flags = [(  # why\n  {NINE})]\n"
    outcome = rewrite_source(source.encode(), ArchRequest.parse("9.0+PTX"), policy=Policy())

    assert outcome.source.decode() == f"flags = [(  # why\n  {NINE}), {PTX}]\n"


def test_a_code_option_without_device_code_is_another_flag() -> None:
    source = f'flags = ["-code=xyz", {NINE.replace("90", "80")}, {NINE}]\n'
    outcome = rewrite_source(source.encode(), ArchRequest.parse("9.0"), policy=Policy())

    assert outcome.source.decode() == f'flags = ["-code=xyz", {NINE}]\n'
