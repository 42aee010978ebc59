"""The compilers that compile when a program runs: the variables that move their caches, and how these lie on disk.

Each variable was checked against the package itself; `docs/kernel-cache.md` says at which version, and where.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

__all__ = ["COMPILERS", "SETTINGS", "Compiler"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """One compiler's cache: `name` is its folder, `variables` are what points it there, each with a path below it.

    `timed` says that its entries depend on the GPU's name: they hold measured choices, or are keyed by that name. The
    others depend on the arch alone. An entry is what lies at `depth` below the folder (0: the folder is one entry);
    where that is a file, all files that share its name up to the first dot are one entry. `addressed` says that files
    are named by what they are made of, so that one that is missing from an entry can be added. An entry of any other
    stays or is replaced as one, for it may hold an index (vLLM, numba, the driver) or digests (TileLang) of its files.
    `defaults` are the places that it writes to when no variable is set, below the `{home}` or `{tmp}` folder.
    """

    name: str
    variables: tuple[tuple[str, str], ...]
    timed: bool = False
    depth: int = 1
    addressed: bool = False
    defaults: tuple[str, ...] = ()

    def entry_of(self, path: PurePosixPath) -> str:
        """Return the name of the entry that the file `path`, relative to the folder, belongs to."""
        parts = path.parts[: self.depth]
        if len(path.parts) <= self.depth and parts:
            parts = (*parts[:-1], parts[-1].partition(".")[0] or parts[-1])
        return "/".join(parts)


COMPILERS = (
    Compiler(
        name="triton",
        addressed=True,
        variables=(("TRITON_CACHE_DIR", ""),),
        timed=True,  # TRITON_CACHE_AUTOTUNING keeps measured choices here, under keys that know the arch alone
        defaults=("{home}/.triton/cache",),
    ),
    Compiler(
        name="inductor",
        addressed=True,
        variables=(("TORCHINDUCTOR_CACHE_DIR", ""),),
        timed=True,
        depth=3,
        defaults=("{tmp}/torchinductor_*",),
    ),
    Compiler(
        name="vllm",
        variables=(("VLLM_CACHE_ROOT", ""),),
        timed=True,
        depth=3,
        defaults=("{home}/.cache/vllm/torch_compile_cache",),
    ),
    Compiler(
        name="sglang",
        variables=(("SGLANG_CACHE_DIR", ""),),
        timed=True,
        depth=3,
        defaults=("{home}/.cache/sglang",),
    ),
    Compiler(
        name="tilelang",
        variables=(("TILELANG_CACHE_DIR", ""),),
        timed=True,
        depth=3,
        defaults=("{home}/.tilelang/cache",),
    ),
    Compiler(
        name="jax",
        addressed=True,
        variables=(("JAX_COMPILATION_CACHE_DIR", ""),),
        timed=True,
    ),
    Compiler(
        name="extensions",
        variables=(("TORCH_EXTENSIONS_DIR", ""),),
        defaults=("{home}/.cache/torch_extensions",),
    ),
    Compiler(
        name="flashinfer",
        variables=(("FLASHINFER_WORKSPACE_BASE", ""),),
        depth=6,
        defaults=("{home}/.cache/flashinfer",),
    ),
    Compiler(
        name="sglang-jit",
        variables=(("SGLANG_JIT_CACHE_DIR", ""),),
        depth=3,
    ),
    Compiler(
        name="deep-gemm",
        variables=(("DG_JIT_CACHE_DIR", ""), ("SGLANG_DG_CACHE_DIR", ""), ("TRTLLM_DG_CACHE_DIR", "tensorrt-llm")),
        depth=2,
        defaults=("{home}/.deep_gemm", "{home}/.dj", "{home}/.tensorrt_llm/cache"),
    ),
    Compiler(
        name="tvm-ffi",
        variables=(("TVM_FFI_CACHE_DIR", ""),),
        defaults=("{home}/.cache/tvm-ffi",),
    ),
    Compiler(
        name="cute-dsl",
        variables=(("CUTE_DSL_CACHE_DIR", ""),),
        defaults=("{tmp}/*/cutlass_python_cache",),
    ),
    Compiler(
        name="cuda",
        variables=(("CUDA_CACHE_PATH", ""),),
        depth=0,  # its files are found through one index
        defaults=("{home}/.nv/ComputeCache",),
    ),
    Compiler(
        name="cupy",
        addressed=True,
        variables=(("CUPY_CACHE_DIR", ""),),
        defaults=("{home}/.cupy/kernel_cache",),
    ),
    Compiler(
        name="numba",
        variables=(("NUMBA_CACHE_DIR", ""),),
    ),
)

#: What goes with the folders. Triton forgets which configuration was the fastest unless told to keep it; the CUDA
#: driver throws out old kernels at 1 GiB unless told otherwise, and takes 4 GiB at most (CUDA C++ Programming Guide,
#: "CUDA Environment Variables").
SETTINGS = (("TRITON_CACHE_AUTOTUNING", "1"), ("CUDA_CACHE_MAXSIZE", str(4 << 30)))
