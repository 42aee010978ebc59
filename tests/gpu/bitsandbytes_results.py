"""Run what bitsandbytes has kernels for, and print a digest of each result: `python bitsandbytes_results.py [DEVICE]`.

Inputs are drawn on the CPU from one seed, so two processes that load the same kernels print the same lines.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator

import bitsandbytes
import torch
from bitsandbytes import functional

SEED = 1126
ROWS, COLUMNS = 512, 1024
DTYPES = (torch.float16, torch.bfloat16, torch.float32)

Result = tuple[str, tuple[torch.Tensor, ...]]


def drawn(*shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return random numbers that are the same on every device."""
    generator = torch.Generator().manual_seed(SEED + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).to(device)


def four_bits(device: str) -> Iterator[Result]:
    """Quantise, take back, and multiply: whole matrices, and one row, which has a kernel of its own."""
    for kind in ("nf4", "fp4"):
        for dtype in DTYPES:
            for blocksize in (64, 256):
                name = f"{kind} {dtype} {blocksize}"
                weights = drawn(ROWS, COLUMNS, dtype=dtype, device=device)
                packed, state = functional.quantize_4bit(weights, quant_type=kind, blocksize=blocksize)
                yield f"{name} quantise", (packed, state.absmax)
                yield f"{name} back", (functional.dequantize_4bit(packed, state),)
                for rows in (1, 32):
                    rhs = drawn(rows, COLUMNS, dtype=dtype, device=device)
                    yield f"{name} times {rows}", (bitsandbytes.matmul_4bit(rhs, packed.t(), quant_state=state),)


def eight_bits(device: str) -> Iterator[Result]:
    """Quantise blocks and rows, and multiply in int8, as a layer does too."""
    for dtype in DTYPES:
        values = drawn(ROWS, COLUMNS, dtype=dtype, device=device)
        packed, state = functional.quantize_blockwise(values)
        yield f"blocks {dtype}", (packed, state.absmax)
        yield f"blocks {dtype} back", (functional.dequantize_blockwise(packed, state),)
    half = drawn(ROWS, COLUMNS, dtype=torch.float16, device=device)
    for threshold in (0.0, 3.0):
        rows, scales, _ = functional.int8_vectorwise_quant(half, threshold=threshold)
        yield f"int8 rows {threshold}", (rows, scales)
        product = functional.int8_linear_matmul(rows, rows)
        yield f"int8 product {threshold}", (product,)
        yield f"int8 product {threshold} back", (functional.int8_mm_dequant(product, scales, scales),)
        layer = bitsandbytes.nn.Linear8bitLt(COLUMNS, ROWS, bias=False, has_fp16_weights=False, threshold=threshold)
        layer.weight = bitsandbytes.nn.Int8Params(half.cpu(), requires_grad=False, has_fp16_weights=False)
        yield f"int8 layer {threshold}", (layer.to(device)(half).detach(),)


def optimizers(device: str) -> Iterator[Result]:
    """Take three steps with each optimizer that keeps its state in eight bits, and one that keeps it in 32."""
    for name in ("Adam8bit", "Lion8bit", "SGD8bit", "RMSprop8bit", "Adam32bit"):
        weights = torch.nn.Parameter(drawn(ROWS, COLUMNS, dtype=torch.float32, device=device))
        options = {"momentum": 0.9} if name == "SGD8bit" else {}
        optimizer = getattr(bitsandbytes.optim, name)([weights], lr=1e-2, **options)
        for step in range(3):
            weights.grad = drawn(ROWS, COLUMNS + step, dtype=torch.float32, device=device)[:, :COLUMNS].contiguous()
            optimizer.step()
        yield name, (weights.detach(),)


def main() -> None:
    """Print `name<TAB>digest` for each result."""
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    for results in (four_bits, eight_bits, optimizers):
        for name, tensors in results(device):
            parts = [tensor.contiguous().view(torch.uint8).cpu().flatten().tolist() for tensor in tensors]
            digest = hashlib.sha256(b"".join(map(bytes, parts))).hexdigest()
            assert all(torch.isfinite(tensor.float()).all() for tensor in tensors), f"{name} is not finite"
            print(f"{name}\t{digest[:16]}", flush=True)


if __name__ == "__main__":
    main()
