from __future__ import annotations

import pytest

from archpatch.arch.arch import Arch, ArchRequest, DeviceCode, Pair
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import KnownBad, OnMissing, Policy, Request, select
from archpatch.errors import NoMatchingArch

#: The pairs of mamba_ssm 2.3.2 under CUDA 13, in its order.
MAMBA = tuple(Pair.of(DeviceCode.parse(f"sm_{n}")) for n in (75, 80, 87, 90, 100, 120, 103, 110, 121))
BAD = (KnownBad(arch=Arch(10, 3), reason="issue 105"),)


def request(text: str) -> Request:
    return ArchRequest.parse(text) if text[0].isdecimal() else GpuRequest.of(*text.split(","))


def pairs(text: str) -> tuple[Pair, ...]:
    return tuple(Pair.of(DeviceCode.parse(word)) for word in text.split())


@pytest.mark.parametrize(
    ("asked", "policy", "there", "codes"),
    [
        ("9.0", Policy(), MAMBA, "sm_90"),
        ("12.0", Policy(), MAMBA, "sm_120"),
        ("8.0;9.0+PTX", Policy(), MAMBA, "sm_80 sm_90 compute_90"),
        ("9.0+PTX", Policy(), pairs("sm_90 compute_90 sm_80 compute_80"), "sm_90 compute_90"),
        ("9.0", Policy(), pairs("sm_90 compute_90"), "sm_90"),
        ("9.0a", Policy(), pairs("sm_90 sm_90a"), "sm_90a"),
        ("8.9;9.0", Policy(), MAMBA, "sm_90"),
        ("8.9", Policy(on_missing=OnMissing.NEAREST), MAMBA, "sm_80"),
        ("9.0a", Policy(on_missing=OnMissing.NEAREST), MAMBA, "sm_90"),
        ("8.9", Policy(on_missing=OnMissing.NEAREST), pairs("sm_75 compute_80"), "compute_80"),
        ("8.9+PTX", Policy(on_missing=OnMissing.NEAREST), pairs("sm_80 compute_89"), "sm_80 compute_89"),
        ("8.9+PTX", Policy(on_missing=OnMissing.ADD), MAMBA, "sm_89 compute_89"),
        ("9.0;8.9", Policy(on_missing=OnMissing.ADD), MAMBA, "sm_89 sm_90"),
        ("h200", Policy(), MAMBA, "sm_90"),
        ("h200", Policy(), pairs("sm_90 sm_90a compute_90"), "sm_90 sm_90a"),
        ("l4", Policy(), MAMBA, "sm_80"),
        ("h200,l4", Policy(), MAMBA, "sm_80 sm_90"),
        ("l4", Policy(), pairs("sm_75 compute_75"), "compute_75"),
        ("l4", Policy(on_missing=OnMissing.ADD), MAMBA, "sm_89"),
        ("b300", Policy(), MAMBA, "sm_103"),
        ("b300", Policy(known_bad=BAD), MAMBA, "sm_100"),
        ("10.3", Policy(known_bad=BAD, on_missing=OnMissing.NEAREST), MAMBA, "sm_100"),
        ("9.0+PTX", Policy(can_compile=False), MAMBA, "sm_90"),
        ("9.0+PTX", Policy(can_compile=False), pairs("sm_90 compute_90"), "sm_90 compute_90"),
        (
            "8.9+PTX",
            Policy(can_compile=False, on_missing=OnMissing.NEAREST),
            pairs("sm_80 compute_89"),
            "sm_80 compute_89",
        ),
    ],
)
def test_what_is_kept_and_added(asked: str, policy: Policy, there: tuple[Pair, ...], codes: str) -> None:
    selection = select(there, request(asked), policy)
    assert selection.device_code == frozenset(map(DeviceCode.parse, codes.split()))
    assert {decision.pair for decision in selection.decisions} == {*there, *selection.added}
    assert set(selection.kept) | set(selection.dropped) == set(there)
    assert not set(selection.added) & set(there)


@pytest.mark.parametrize(
    ("asked", "policy", "there", "says"),
    [
        ("12.0a", Policy(), MAMBA, "sm_120 would run on a GPU of 12.0"),
        ("8.9", Policy(), MAMBA, "sm_80 would run on a GPU of 8.9"),
        ("8.9", Policy(), pairs("compute_80"), "compute_80 would be compiled just in time"),
        ("9.0+PTX", Policy(), pairs("compute_90 sm_80"), "no matching arch for 9.0, 9.0+PTX"),
        ("8.9;9.0", Policy(strict=True), MAMBA, "no matching arch for 8.9"),
        ("7.0", Policy(), MAMBA, "--on-missing add compiles 7.0 all the same"),
        ("v100", Policy(), MAMBA, "no matching arch for v100 (7.0)"),
        ("h200,v100", Policy(), MAMBA, "no matching arch for v100 (7.0)"),
        ("l4", Policy(on_missing=OnMissing.ERROR), MAMBA, "sm_80 would run"),
        ("10.3", Policy(known_bad=BAD), MAMBA, "sm_103 is known bad: issue 105"),
        ("10.3", Policy(known_bad=BAD), MAMBA, "--allow-known-bad"),
        ("10.3", Policy(known_bad=BAD, on_missing=OnMissing.ADD), MAMBA, "sm_103 is known bad"),
        ("b300", Policy(known_bad=BAD, on_missing=OnMissing.ADD), MAMBA, "sm_103 is known bad"),
    ],
)
def test_nothing_left_raises(asked: str, policy: Policy, there: tuple[Pair, ...], says: str) -> None:
    with pytest.raises(NoMatchingArch) as caught:
        select(there, request(asked), policy)
    assert says in str(caught.value)
    assert caught.value.exit_status == 3


def test_a_known_bad_arch_is_not_offered_for_adding() -> None:
    with pytest.raises(NoMatchingArch) as caught:
        select(MAMBA, request("10.3"), Policy(known_bad=BAD))
    assert "on-missing add" not in str(caught.value)


def test_a_missing_arch_beside_others_is_a_warning() -> None:
    selection = select(MAMBA, request("8.9+PTX;9.0"), Policy())
    assert selection.missing == (DeviceCode.parse("sm_89"), DeviceCode.parse("compute_89"))
    assert [text.split(",")[0] for text in selection.warnings] == ["8.9 was asked for", "8.9+PTX was asked for"]


def test_ptx_in_want_of_a_cubin_is_a_warning() -> None:
    selection = select(pairs("sm_75 compute_80"), request("l4"), Policy())
    assert "just in time" in selection.warnings[0]


def test_a_known_bad_arch_that_is_missing_says_why() -> None:
    selection = select(MAMBA, request("10.3;9.0"), Policy(known_bad=BAD))
    assert "issue 105" in selection.warnings[0]
    reasons = {str(d.pair.device_code): d.reason for d in selection.decisions}
    assert reasons["sm_103"] == "known bad: issue 105"
    assert reasons["sm_75"] == "not asked for"


def test_family_code_counts_as_its_family() -> None:
    family = Pair(Arch(10, 0, "f"), DeviceCode.parse("sm_100"))
    assert select([family], request("10.0f"), Policy()).kept == (family,)
    with pytest.raises(NoMatchingArch):
        select([family], request("10.0"), Policy())


def test_what_cannot_compile_is_told_so() -> None:
    policy = Policy(can_compile=False)
    selection = select(pairs("sm_90"), request("9.0+PTX"), policy)
    assert selection.missing == (DeviceCode.parse("compute_90"),)
    assert selection.warnings == ("9.0+PTX was asked for, but it does not hold compute_90: left out.",)
    with pytest.raises(NoMatchingArch) as raised:
        select(pairs("sm_80"), request("8.9"), policy)
    assert raised.value.message == "no matching arch for 8.9: it holds sm_80"
    assert raised.value.remedy == "sm_80 would run on a GPU of 8.9: take it with --on-missing nearest."
