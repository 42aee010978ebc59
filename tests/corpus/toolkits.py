"""The CUDA releases that are stood in for: what nvcc and torch of that release say."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TOOLKITS", "Toolkit", "make_home"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """A CUDA release: `nvcc` is the compiler's version, `codes` what `--list-gpu-code` prints, in its order.

    `arch_flags` are the archs that torch's own libraries hold; torch 2.9 shows them only where a GPU is visible.
    """

    release: str
    nvcc: str
    built: str
    build: str
    torch: str
    codes: tuple[str, ...]
    arch_flags: tuple[str, ...]
    arch_flags_without_gpu: bool

    @property
    def banner(self) -> str:
        """What `nvcc --version` prints."""
        return (
            "nvcc: NVIDIA (R) Cuda compiler driver\n"
            "Copyright (c) 2005-2025 NVIDIA Corporation\n"
            f"Built on {self.built}\n"
            f"Cuda compilation tools, release {self.release}, V{self.nvcc}\n"
            f"Build cuda_{self.release}.r{self.release}/compiler.{self.build}\n"
        )

    def __str__(self) -> str:
        return self.release


def _codes(numbers: str) -> tuple[str, ...]:
    return tuple(f"sm_{number}" for number in numbers.split())


#: 13.0 as nvcc 13.0.88 and torch 2.14.1+cu130 say; 12.8 from the release notes of CUDA and torch.
TOOLKITS = {
    toolkit.release: toolkit
    for toolkit in (
        Toolkit(
            release="13.0",
            nvcc="13.0.88",
            built="Wed_Aug_20_01:58:59_PM_PDT_2025",
            build="36424714_0",
            torch="2.14.1+cu130",
            codes=_codes("75 80 86 87 88 89 90 100 110 103 120 121"),
            arch_flags=_codes("75 80 86 90 100 120"),
            arch_flags_without_gpu=True,
        ),
        Toolkit(
            release="12.8",
            nvcc="12.8.93",
            built="Fri_Feb_21_20:23:50_PST_2025",
            build="35583870_0",
            torch="2.9.1+cu128",
            codes=_codes("50 52 53 60 61 62 70 72 75 80 86 87 89 90 100 101 120"),
            arch_flags=_codes("70 75 80 86 90 100 120"),
            arch_flags_without_gpu=False,
        ),
    )
}


def make_home(toolkit: Toolkit, folder: Path) -> Path:
    """Make a `CUDA_HOME` in `folder` that has the files which a `setup.py` looks for; its programs do nothing."""
    for name in ("bin", "include/crt", "lib64/stubs", "nvvm/bin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("nvcc", "ptxas", "cuobjdump", "ninja", "gcc", "g++", "cc", "c++"):
        program = folder / "bin" / name
        program.write_text("#!/bin/sh\nexit 1\n", encoding="ascii")
        program.chmod(0o755)
    major, minor = toolkit.release.split(".")
    number = int(major) * 1000 + int(minor) * 10
    (folder / "include/cuda.h").write_text(f"#define CUDA_VERSION {number}\n", encoding="ascii")
    (folder / "include/cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {number}\n", encoding="ascii")
    (folder / "version.txt").write_text(f"CUDA Version {toolkit.nvcc}\n", encoding="ascii")
    versions = {"cuda": {"name": "CUDA SDK", "version": toolkit.nvcc}}
    versions["cuda_nvcc"] = {"name": "CUDA NVCC", "version": toolkit.nvcc}
    (folder / "version.json").write_text(json.dumps(versions), encoding="ascii")
    return folder
