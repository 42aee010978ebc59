"""Which device code of a finished library stays, container by container."""

from __future__ import annotations

import pytest

from archpatch.arch.arch import Arch, ArchRequest, DeviceCode
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import KnownBad, OnMissing, Policy, Request
from archpatch.errors import KnownBadArch, NoMatchingArch, UsageError
from archpatch.wheels.slim_choice import Codes, Wanted, choose


def codes(text: str) -> Codes:
    return frozenset(map(DeviceCode.parse, text.split()))


def request(text: str) -> Request:
    return ArchRequest.parse(text) if text[0].isdigit() else GpuRequest.of(*text.split(","))


def kept(asked: str, *units: str, others: tuple[str, ...] = (), **policy: object) -> list[str]:
    """Return what stays of each unit, in words, and check what every choice has to be."""
    wanted = Wanted(request=request(asked), policy=Policy(**policy))  # type: ignore[arg-type]
    choice = choose(map(codes, units), map(codes, others), wanted)
    assert all(choice.kept[unit] <= unit for unit in choice.kept)
    assert all(choice.kept[unit] for unit in choice.kept if unit)
    return [" ".join(map(str, sorted(choice.kept[codes(unit)]))) for unit in (*units, *others)]


def warnings(asked: str, *units: str, **policy: object) -> tuple[str, ...]:
    wanted = Wanted(request=request(asked), policy=Policy(**policy))  # type: ignore[arg-type]
    return choose(map(codes, units), (), wanted).warnings


WIDE = "sm_75 sm_80 sm_90 sm_90a sm_100 sm_120 compute_120"


@pytest.mark.parametrize(
    ("asked", "units", "expected"),
    [
        ("9.0", ["sm_80 sm_90 compute_90"], ["sm_90"]),
        ("9.0+PTX", ["sm_80 sm_90 compute_90"], ["sm_90 compute_90"]),
        ("8.0;9.0", ["sm_80 sm_90 sm_100"], ["sm_80 sm_90"]),
        ("9.0a", [WIDE], ["sm_90a"]),
        ("h200", [WIDE], ["sm_90 sm_90a"]),
        ("l4", [WIDE], ["sm_80"]),
        ("l4,h200", [WIDE], ["sm_80 sm_90 sm_90a"]),
        ("b300", [WIDE, "sm_100 sm_103f"], ["sm_100", "sm_103f"]),
        ("rtx-50", ["sm_90 compute_90"], ["compute_90"]),
        ("h200", [WIDE, "sm_80 sm_90", "sm_75 compute_75"], ["sm_90 sm_90a", "sm_90", "compute_75"]),
        # What only other GPUs run stays as it is: nvcc's empty cubin, and kernels for one arch.
        ("9.0", ["sm_80 sm_90", "sm_75"], ["sm_90", "sm_75"]),
        ("h200", ["sm_80 sm_90", "sm_100f"], ["sm_90", "sm_100f"]),
        ("l4,h200", ["sm_80 sm_90", "sm_90a sm_100f"], ["sm_80 sm_90", "sm_90a"]),
        ("8.0;9.0", ["sm_80 sm_90", "sm_80 sm_100"], ["sm_80 sm_90", "sm_80"]),
        ("9.0", ["sm_80 sm_90", ""], ["sm_90", ""]),
    ],
)
def test_each_container_keeps_what_was_asked_of_it(asked: str, units: list[str], expected: list[str]) -> None:
    assert kept(asked, *units) == expected


def test_the_policy_is_heard() -> None:
    assert kept("8.9", WIDE, on_missing=OnMissing.NEAREST) == ["sm_80"]
    assert kept("b300", "sm_100 sm_103", known_bad=(KnownBad(arch=Arch(10, 3), reason="wrong"),)) == ["sm_100"]
    with pytest.raises(NoMatchingArch, match=r"b300 \(10\.3\): it holds sm_100"):
        kept("b300", "sm_100", on_missing=OnMissing.ERROR)
    with pytest.raises(KnownBadArch, match=r"it holds sm_103; sm_103 is known bad: wrong"):
        kept("10.3", "sm_103", known_bad=(KnownBad(arch=Arch(10, 3), reason="wrong"),))
    with pytest.raises(NoMatchingArch, match=r"12\.0: it holds"):
        kept("9.0;12.0", "sm_80 sm_90", strict=True)


def test_what_is_not_loaded_is_cut_alike_and_rescues_nothing() -> None:
    assert kept("9.0", "sm_80 sm_90", others=("sm_80 sm_90 compute_90",)) == ["sm_90", "sm_90"]
    with pytest.raises(NoMatchingArch, match=r"b200 \(10\.0\): it holds sm_80, sm_90"):
        kept("b200", "sm_80 sm_90", others=("sm_80 sm_90 compute_90",))


@pytest.mark.parametrize(
    ("asked", "units", "says"),
    [
        ("8.9", [WIDE], "sm_80 would run on a GPU of 8.9: take it with --on-missing nearest."),
        ("h200", ["sm_80"], "h200 (9.0): it holds sm_80"),
        ("9.0", ["sm_90", "sm_75 compute_75"], "it holds sm_75, compute_75 (in one of its containers)"),
        ("10.0", ["sm_100", "sm_100f"], "it holds sm_100f (in one of its containers)"),
        ("9.0", [""], "it holds nothing"),
    ],
)
def test_nothing_left_is_an_error_that_names_the_nearest(asked: str, units: list[str], says: str) -> None:
    with pytest.raises(NoMatchingArch) as raised:
        kept(asked, *units)
    assert says in str(raised.value)
    assert "--on-missing add" not in str(raised.value)


def test_nothing_can_be_added() -> None:
    with pytest.raises(UsageError, match="nothing can be added"):
        Wanted(request=request("9.0"), policy=Policy(on_missing=OnMissing.ADD))


@pytest.mark.parametrize(
    ("asked", "units", "expected"),
    [
        ("9.0", ["sm_80 sm_90"], []),
        ("h200", [WIDE, "sm_100f"], []),
        ("9.0;8.9", ["sm_80 sm_90"], ["8.9 was asked for, but it does not hold sm_89: left out."]),
        ("9.0+PTX", ["sm_80 sm_90"], ["9.0+PTX was asked for, but it does not hold compute_90: left out."]),
        (
            "8.0;9.0",
            ["sm_80 sm_90", "sm_80 compute_80"],
            ["where it holds sm_80, compute_80: 9.0 was asked for, but it does not hold sm_90: left out."],
        ),
        (
            "9.0",
            ["sm_90 sm_90a"],
            [
                (
                    "where it holds sm_90, sm_90a: a GPU of 9.0 has sm_90 left of sm_90, sm_90a; "
                    "--gpu keeps all that it may load."
                )
            ],
        ),
        (
            "h200",
            ["sm_90", "sm_75 compute_75"],
            [
                (
                    "where it holds sm_75, compute_75: h200 (9.0) compiles compute_75 just in time: "
                    "its driver must know that PTX version."
                )
            ],
        ),
    ],
)
def test_warnings_say_what_a_gpu_loses(asked: str, units: list[str], expected: list[str]) -> None:
    assert list(warnings(asked, *units)) == expected
