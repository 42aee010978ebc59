"""However nvcc's optimisers share a file's work among their threads, each kernel's machine code is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import CUDA_HOME, FIXTURES, CommandLine, library, output_of
from elftools.elf.elffile import ELFFile

pytestmark = pytest.mark.integration

NVCC = CUDA_HOME / "bin/nvcc"
THREADS = 8
PACKAGES = {
    "mini_cub": str(FIXTURES / "mini_cub"),
    "causal_conv1d": "causal_conv1d==1.7.0#sha256=3202758494eaa7b597ce1c282dfa188889506bfcb92cad3c407d26736bfcd32b",
    "mamba_ssm": "mamba_ssm==2.3.2.post1",
}


def kernels(cubin: Path) -> dict[str, bytes]:
    """Return the machine code of each kernel and device function."""
    with cubin.open("rb") as stream:
        sections = [section for section in ELFFile(stream).iter_sections() if section.name.startswith(".text.")]
        return {section.name: section.data() for section in sections}


def compiled(into: Path, *flags: str) -> dict[str, bytes]:
    source = FIXTURES / "mini_cub/csrc/sort.cu"
    output_of([NVCC, "-cubin", "-arch=sm_90", "-O3", "-std=c++17", *flags, source, "-o", into])
    return kernels(into)


def test_a_file_of_cub_is_the_same_with_eight_threads_as_with_one(tmp_path: Path) -> None:
    alone = compiled(tmp_path / "alone.cubin")
    assert len(alone) >= 5
    assert compiled(tmp_path / "shared.cubin", f"--split-compile={THREADS}") == alone


def built(archpatch: CommandLine, requirement: str, cuobjdump: Path, **environ: str) -> dict[str, dict[str, bytes]]:
    """Return the kernels of each cubin in the wheel of a package."""
    house = archpatch.folder / f"{len(list(archpatch.folder.iterdir()))}"
    answer = archpatch("build", requirement, "--arch", "9.0", "--wheelhouse", house, environ=environ)
    shared = library(answer.wheel, house / "unpacked")
    output_of([cuobjdump, "-xelf", "all", shared], cwd=shared.parent)
    return {cubin.name: kernels(cubin) for cubin in sorted(shared.parent.glob("*.cubin"))}


@pytest.mark.thorough
@pytest.mark.parametrize("requirement", PACKAGES.values(), ids=PACKAGES)
def test_a_package_is_the_same_with_eight_threads_as_with_one(
    archpatch: CommandLine, cuobjdump: Path, requirement: str
) -> None:
    alone = built(archpatch, requirement, cuobjdump, NVCC_THREADS="1")
    shared = built(archpatch, requirement, cuobjdump, NVCC_APPEND_FLAGS=f"--split-compile={THREADS}")
    assert alone
    assert shared == alone
