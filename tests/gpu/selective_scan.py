"""Compare mamba's compiled selective scan with its own reference on a GPU: forward and backward, all dtypes.

Run as a script by `prove.py` in an environment that has the wheel. Prints one line per case and exits 1 on a failure.
`mamba_ssm/__init__.py` imports models with dependencies of their own (tilelang, transformers), which are no part of
what was compiled: the package is entered below it.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch

#: Per dtype of the input: relative and absolute tolerance. Weights are float32, or complex64, throughout.
TOLERANCES = {torch.float32: (6e-4, 2e-3), torch.float16: (3e-3, 5e-3), torch.bfloat16: (3e-2, 5e-2)}
#: Per dtype: the largest relative error (Euclidean norm) of the output and of each gradient.
LIMITS = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
BATCH, DIM, STATE = 2, 4, 8


def enter(package: str) -> None:
    """Make the subpackages of an installed `package` importable without running its `__init__`."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    module = types.ModuleType(package)
    module.__path__ = [str(Path(spec.origin).parent)]
    sys.modules[package] = module


def tensors(dtype: torch.dtype, *, length: int, is_complex: bool, varying: bool) -> dict[str, torch.Tensor]:
    """Return inputs as upstream shapes them: B and C per channel, or varying over time (complex: pairs of reals)."""
    torch.manual_seed(0)
    weight = torch.complex64 if is_complex else torch.float32
    width = length * 2 if is_complex else length
    shape = (BATCH, STATE, width) if varying else (DIM, STATE)
    per_time = dtype if varying else weight
    made = {
        "u": torch.randn(BATCH, DIM, length, device="cuda", dtype=dtype),
        "delta": 0.5 * torch.rand(BATCH, DIM, length, device="cuda", dtype=dtype),
        "A": (-0.5 * torch.rand(DIM, STATE, device="cuda", dtype=torch.float32)).to(weight),
        "B": torch.randn(*shape, device="cuda", dtype=per_time),
        "C": torch.randn(*shape, device="cuda", dtype=per_time),
        "D": torch.randn(DIM, device="cuda"),
        "z": torch.randn(BATCH, DIM, length, device="cuda", dtype=dtype),
        "delta_bias": 0.5 * torch.rand(DIM, device="cuda") - 4.0,
    }
    return {name: tensor.requires_grad_() for name, tensor in made.items()}


def run(scan: Callable[..., torch.Tensor], given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the output of `scan` and the gradients of its sum of squares."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in given.items()}
    out = scan(**leaves, delta_softplus=True)
    torch.manual_seed(1)
    out.backward(torch.randn_like(out))
    return {"out": out.detach(), **{f"d{name}": tensor.grad for name, tensor in leaves.items()}}


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the Euclidean norm of the difference over that of what is wanted, computed in double precision."""
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    return ((got.to(wide) - wanted.to(wide)).norm() / wanted.to(wide).norm()).item()


def main() -> int:
    """Run every case; print `dtype real|complex varying length: worst error`."""
    enter("mamba_ssm")
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn, selective_scan_ref

    failed = 0
    cases = itertools.product(TOLERANCES, (False, True), (False, True), (128, 1000))
    for dtype, is_complex, varying, length in cases:
        given = tensors(dtype, length=length, is_complex=is_complex, varying=varying)
        got, wanted = run(selective_scan_fn, given), run(selective_scan_ref, given)
        rtol, atol = TOLERANCES[dtype]
        errors = {name: relative(got[name], reference) for name, reference in wanted.items()}
        bad = [f"{name} off by {error:.1e}" for name, error in errors.items() if not error <= LIMITS[dtype]]
        if not torch.allclose(got["out"].float(), wanted["out"].float(), rtol=rtol, atol=atol):
            bad.append("the output is out of tolerance")
        worst = max((error, name) for name, error in errors.items() if name != "out")
        kind = "complex" if is_complex else "real"
        label = f"{str(dtype).removeprefix('torch.'):9} {kind:8} {'B,C(t)' if varying else 'B,C':7} {length:5}"
        told = f"forward {errors['out']:.1e}, worst gradient {worst[1]} {worst[0]:.1e}"
        print(f"{label}: {told} {'; '.join(bad) or 'ok'}")
        failed += bool(bad)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
