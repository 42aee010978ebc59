"""Which device code runs on which GPU.

Source: CUDA C++ Programming Guide, "Binary Compatibility", "PTX Compatibility" and "Family-Specific Features".
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from archpatch.arch.arch import Arch, DeviceCode

__all__ = ["Verdict", "best_for", "runs_on"]


class Verdict(str, Enum):
    """How a GPU runs a piece of device code."""

    NATIVE = "native"
    """A cubin of this very arch."""
    COMPATIBLE = "compatible"
    """A cubin of an earlier arch of the same major version, or of the family."""
    JIT = "jit"
    """PTX, compiled by the driver on first use; the driver must know that PTX version."""
    NO = "no"
    """It does not run."""


def runs_on(code: DeviceCode, gpu: Arch) -> Verdict:
    """Tell how a GPU of arch `gpu` (no suffix) runs `code`."""
    if code.ptx:
        return Verdict.JIT if _ptx_runs(code.arch, gpu) else Verdict.NO
    if code.arch.base == gpu:
        return Verdict.NATIVE
    if code.arch.suffix != "a" and _same_line(code.arch, gpu):
        return Verdict.COMPATIBLE
    return Verdict.NO


def best_for(codes: Iterable[DeviceCode], gpu: Arch) -> tuple[tuple[DeviceCode, ...], Verdict]:
    """Return what a GPU of arch `gpu` would load of `codes`, and how it runs.

    Exact cubins, whatever the suffix (which of them the driver takes is its choice), else the nearest cubin that
    runs, else the nearest PTX; nothing and `Verdict.NO` where none does.
    """
    verdicts = {code: runs_on(code, gpu) for code in codes}
    native = tuple(sorted(code for code, verdict in verdicts.items() if verdict is Verdict.NATIVE))
    if native:
        return native, Verdict.NATIVE
    for wanted in (Verdict.COMPATIBLE, Verdict.JIT):
        running = [code for code, verdict in verdicts.items() if verdict is wanted]
        if running:
            nearest = max(code.arch.base for code in running)
            return tuple(sorted(code for code in running if code.arch.base == nearest)), wanted
    return (), Verdict.NO


def _same_line(arch: Arch, gpu: Arch) -> bool:
    """Tell whether they share the major version, the minor is not lower, and both are Tegra parts or neither is."""
    return arch.major == gpu.major and arch.minor <= gpu.minor and arch.is_tegra == gpu.is_tegra


def _ptx_runs(arch: Arch, gpu: Arch) -> bool:
    if arch.suffix == "a":
        return arch.base == gpu
    if arch.suffix == "f":
        return _same_line(arch, gpu)
    return arch <= gpu
