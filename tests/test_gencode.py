from __future__ import annotations

import pytest

from archpatch.arch.gencode import format_pair, parse_flags, parse_gencode


def spelled(pairs: object) -> str:
    return " ".join(map(str, pairs))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("flags", "pairs"),
    [
        ([], ""),
        (["-gencode", "arch=compute_80,code=sm_80"], "compute_80,sm_80"),
        (["-gencode=arch=compute_80,code=sm_80"], "compute_80,sm_80"),
        (["--generate-code", "arch=compute_80,code=sm_80"], "compute_80,sm_80"),
        (["--generate-code=arch=compute_90a,code=sm_90a"], "compute_90a,sm_90a"),
        (["-gencode", "code=sm_80,arch=compute_80"], "compute_80,sm_80"),
        (["-gencode", "arch=compute_80,code=[sm_80,compute_80]"], "compute_80,sm_80 compute_80,compute_80"),
        (["-gencode", 'arch=compute_80,code="sm_80,compute_80"'], "compute_80,sm_80 compute_80,compute_80"),
        (["-gencode", 'arch=compute_80,code=\\"sm_80,compute_80\\"'], "compute_80,sm_80 compute_80,compute_80"),
        (["-gencode=arch=compute_80,code=sm_80"] * 2, "compute_80,sm_80"),
        (["-arch=sm_90"], "compute_90,sm_90 compute_90,compute_90"),
        (["-arch", "sm_90"], "compute_90,sm_90 compute_90,compute_90"),
        (["--gpu-architecture=sm_90"], "compute_90,sm_90 compute_90,compute_90"),
        (["-arch=sm_90a"], "compute_90a,sm_90a compute_90a,compute_90a compute_90,compute_90"),
        (["-arch=compute_50"], "compute_50,compute_50"),
        (["-arch=sm_90", "-arch=sm_80"], "compute_80,sm_80 compute_80,compute_80"),
        (["-code=sm_86,compute_80", "-arch=compute_80"], "compute_80,sm_86 compute_80,compute_80"),
        (["--gpu-architecture", "compute_80", "--gpu-code", "sm_86"], "compute_80,sm_86"),
        (
            ["-arch=sm_70", "-gencode=arch=compute_80,code=sm_80"],
            "compute_80,sm_80 compute_70,sm_70 compute_70,compute_70",
        ),
        # False friends.
        (["-march=native", "--offload-arch=gfx90a", "-DARCH=sm_80", "-O3"], ""),
    ],
)
def test_flags_mean_pairs(flags: list[str], pairs: str) -> None:
    parsed = parse_flags(flags)
    assert spelled(parsed.pairs) == pairs
    assert parsed.problems == ()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["-gencode"], "-gencode without a value"),
        (["-gencode", "-O3"], "-gencode without a value"),
        (["arch=compute_80,code=sm_80"], "the value 'arch=compute_80,code=sm_80' without -gencode"),
        (["-gencode arch=compute_80,code=sm_80"], "'-gencode arch=compute_80,code=sm_80' as one argument"),
        (["-gencode=arch=compute_80,code=sm_80,compute_80"], "-gencode with the value"),
        (["-gencode", "arch=compute_80,code=sm_8x"], "-gencode with the value"),
        (["-gencode", "arch=compute_81,code=sm_81"], "-gencode with the value"),
        (["-arch=native"], "-arch=native"),
        (["-arch=all-major"], "-arch=all-major"),
        (["-arch=sm_80", "-code=sm_80"], "-arch=sm_80 -code=sm_80"),
        (["-code=sm_80"], "-arch= -code=sm_80"),
    ],
)
def test_what_nvcc_would_refuse_is_a_problem(flags: list[str], problem: str) -> None:
    assert any(problem in found for found in parse_flags(flags).problems)


@pytest.mark.parametrize(
    "value", ["", "arch=compute_80", "code=sm_80", "sm_80", "arch=sm_80,code=sm_80", "arch=compute_{n},code=sm_{n}"]
)
def test_what_is_no_gencode_value(value: str) -> None:
    assert parse_gencode(value) is None


def test_a_pair_is_formatted_as_it_is_parsed() -> None:
    value = "arch=compute_100f,code=sm_103"
    pairs = parse_gencode(value)
    assert pairs is not None
    assert [format_pair(pair) for pair in pairs] == [value]
