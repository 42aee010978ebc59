from __future__ import annotations

import pytest

from archpatch.arch.arch import Arch, DeviceCode
from archpatch.arch.coverage import Verdict, best_for, runs_on

N, C, J, X = Verdict.NATIVE, Verdict.COMPATIBLE, Verdict.JIT, Verdict.NO


@pytest.mark.parametrize(
    ("code", "gpu", "verdict"),
    [
        ("sm_90", "9.0", N),
        ("sm_90a", "9.0", N),
        ("sm_100f", "10.0", N),
        ("sm_80", "8.6", C),
        ("sm_80", "8.9", C),
        ("sm_86", "8.9", C),
        ("sm_89", "8.6", X),
        ("sm_80", "9.0", X),
        ("sm_90", "10.0", X),
        ("sm_100", "10.3", C),
        ("sm_100a", "10.3", X),
        ("sm_100f", "10.3", C),
        ("sm_103f", "10.0", X),
        ("sm_120f", "12.1", C),
        ("sm_120", "12.1", C),
        ("sm_100f", "12.0", X),
        # Tegra parts and others never run each other's cubins.
        ("sm_80", "8.7", X),
        ("sm_86", "8.7", X),
        ("sm_87", "8.9", X),
        ("sm_87", "8.7", N),
        ("sm_70", "7.2", X),
        ("sm_72", "7.5", X),
        ("sm_60", "6.2", X),
        ("sm_50", "5.3", X),
        ("sm_100", "10.1", X),
        ("sm_101", "10.3", X),
        ("sm_110", "11.0", N),
        # PTX
        ("compute_90", "9.0", J),
        ("compute_80", "12.0", J),
        ("compute_80", "8.7", J),
        ("compute_90", "8.9", X),
        ("compute_90a", "9.0", J),
        ("compute_90a", "10.0", X),
        ("compute_100f", "10.3", J),
        ("compute_100f", "12.0", X),
    ],
)
def test_which_device_code_runs_where(code: str, gpu: str, verdict: Verdict) -> None:
    assert runs_on(DeviceCode.parse(code), Arch.parse(gpu)) is verdict


@pytest.mark.parametrize(
    ("codes", "gpu", "best", "verdict"),
    [
        ("sm_80 sm_90", "9.0", "sm_90", N),
        ("sm_90 sm_90a compute_90", "9.0", "sm_90 sm_90a", N),
        ("sm_75 sm_80 sm_87 sm_90", "8.9", "sm_80", C),
        ("sm_80 sm_86 compute_89", "8.9", "sm_86", C),
        ("sm_75 compute_80 compute_90", "12.0", "compute_90", J),
        ("sm_75 sm_90a compute_90a", "12.0", "", X),
        ("", "9.0", "", X),
    ],
)
def test_what_a_gpu_would_load(codes: str, gpu: str, best: str, verdict: Verdict) -> None:
    found = best_for(map(DeviceCode.parse, codes.split()), Arch.parse(gpu))
    assert found == (tuple(map(DeviceCode.parse, best.split())), verdict)
