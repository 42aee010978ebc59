"""Compile kernels with Triton, without a GPU, and print what became of each: `triton_program.py ARCH:BLOCK...`."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, N803 - Triton's language
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    tl.store(out + index, tl.load(x + index, mask=inside) + tl.load(y + index, mask=inside), mask=inside)


def compile_one(arch: int, block: int) -> dict[str, Any]:
    """Compile the kernel; `hit` is what Triton itself says of its cache."""
    hits: list[bool] = []
    triton.knobs.compilation.listener = lambda **told: hits.append(told["cache_hit"])
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(fn=add, signature=signature, constexprs={"BLOCK": block})
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32))
    cubin = hashlib.sha256(compiled.asm["cubin"]).hexdigest()
    return {"arch": arch, "block": block, "hit": hits == [True], "cubin": cubin}


def compile_all(words: Iterable[str]) -> list[dict[str, Any]]:
    """Compile a kernel for each `ARCH:BLOCK`."""
    return [compile_one(*map(int, word.split(":"))) for word in words]


if __name__ == "__main__":
    print(json.dumps({"kernels": compile_all(sys.argv[1:])}))  # noqa: T201 - the answer
