"""A short run of mutated libraries with a fixed seed, and that what is looked for can be found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from libraries import container, library

sys.path.insert(0, str(Path(__file__).parent))

from fuzz.binaries import KINDS, BinaryInput, make_binary
from fuzz.slimming import OUTCOMES, judge_slimmed, try_binary

from archpatch.arch.arch import ArchRequest
from archpatch.arch.selection import Policy
from archpatch.wheels.slim_choice import Wanted
from archpatch.wheels.slimming import Slimming, plan_slimming

WIDE = library(container("sm_80", "sm_90", "compute_90"), container("sm_90", "sm_80"))
GIVEN = BinaryInput(
    number=0, data=WIDE.data, kinds=(), wanted=Wanted(request=ArchRequest.parse("9.0"), policy=Policy())
)


def test_mutated_libraries() -> None:
    verdicts = [try_binary(make_binary(10_000, number)) for number in range(250)]

    assert [verdict for verdict in verdicts if verdict.failures] == []
    assert {verdict.outcome for verdict in verdicts} == set(OUTCOMES)
    assert {kind for verdict in verdicts for kind in verdict.kinds} == set(KINDS)


def test_an_input_is_the_same_again() -> None:
    assert make_binary(1, 2) == make_binary(1, 2) != make_binary(2, 2)


def slimmed() -> tuple[Slimming, bytearray]:
    plan = plan_slimming(WIDE.data, path="x", wanted=GIVEN.wanted)
    assert plan is not None
    after = bytearray(WIDE.data)
    plan.apply(after)
    return plan, after


def test_a_right_result_has_no_failure() -> None:
    plan, after = slimmed()
    assert list(judge_slimmed(GIVEN, plan, bytes(after))) == []


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (0xA0 - len(WIDE.data), "bytes outside"),
        (WIDE.starts[0] + 16 + 64 + 40, "what stays is not what was there"),
    ],
)
def test_a_changed_byte_is_found(place: int, says: str) -> None:
    plan, after = slimmed()
    after[place] ^= 1
    assert any(says in failure for failure in judge_slimmed(GIVEN, plan, bytes(after)))


@pytest.mark.parametrize(
    ("unit", "says"),
    [
        (container("sm_80"), "it holds ['sm_80']"),
        (container("sm_90", "sm_80"), "came to ['sm_80', 'sm_90']"),
        (container(), "planned was ['sm_90']"),
    ],
)
def test_a_container_that_holds_something_else_is_found(unit: bytes, says: str) -> None:
    plan, after = slimmed()
    for start in WIDE.starts:
        size = max(len(unit), len(container("sm_90")))
        after[start : start + size] = unit.ljust(size, b"\0")
    assert any(says in failure for failure in judge_slimmed(GIVEN, plan, bytes(after)))


def test_other_faults_are_found() -> None:
    plan, after = slimmed()
    assert list(judge_slimmed(GIVEN, plan, bytes(after[:-1]))) == [f"{len(after)} bytes became {len(after) - 1}"]
    assert "a second time it comes to something else" in list(judge_slimmed(GIVEN, plan, WIDE.data))
