"""Each way of giving nvcc its flags, with the real nvcc: the library holds exactly what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import CommandLine

pytestmark = pytest.mark.integration

HEAD = """
import os
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
"""
TAIL = """
setup(
    packages=["archpatch_mini"],
    ext_modules=[
        CUDAExtension("archpatch_mini._C", ["csrc/module.cpp", "csrc/add.cu"], extra_compile_args={"nvcc": flags}),
    ],
    cmdclass={"build_ext": BuildExtension},
)
"""
TORCH_ONLY = "flags = ['-O1']\n"
LITERAL = """
flags = ["-O1", "-gencode", "arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=[sm_90,compute_90]"]
flags += ["--generate-code=arch=compute_120,code=sm_120"]
"""
LOOP = "flags = [f'-gencode=arch=compute_{n},code=sm_{n}' for n in (80, 90, 120)]\n"
ARCH_OPTION = "flags = ['-O1', '-arch=sm_90']\n"
OWN_VARIABLE = """
archs = os.environ.get("MINI_ARCHS", "80;90").split(";")
flags = []
if "80" in archs:
    flags += ["-gencode", "arch=compute_80,code=sm_80"]
if "90" in archs:
    flags += ["-gencode", "arch=compute_90,code=sm_90"]
if not flags:
    raise RuntimeError(f"MINI_ARCHS={archs} leaves nothing")
"""
CLEARS = "os.environ['TORCH_CUDA_ARCH_LIST'] = '7.5'\nflags = ['-O1']\n"

RECIPE = """
[recipes.archpatch_mini.arch-variable]
name = "MINI_ARCHS"
form = "number"
separator = ";"
"""


@pytest.mark.parametrize(
    ("flags", "asked", "codes"),
    [
        (LITERAL, ["--arch", "8.0"], ["sm_80"]),
        (LITERAL, ["--arch", "9.0+PTX"], ["sm_90", "compute_90"]),
        (LITERAL, ["--gpu", "rtx-5090"], ["sm_120"]),
        (LITERAL, ["--arch", "8.9", "--on-missing", "add"], ["sm_89"]),
        (LOOP, ["--gpu", "l4"], ["sm_80"]),
        (LOOP, ["--arch", "8.0;12.0+PTX"], ["sm_80", "sm_120", "compute_120"]),
        (TORCH_ONLY, ["--arch", "8.6;9.0+PTX"], ["sm_86", "sm_90", "compute_90"]),
        (TORCH_ONLY, ["--gpu", "l4"], ["sm_89"]),
        (TORCH_ONLY, ["--arch", "12.0f"], ["sm_120f"]),
        (ARCH_OPTION, ["--arch", "9.0"], ["sm_90"]),
        (ARCH_OPTION, ["--arch", "9.0+PTX"], ["sm_90", "compute_90"]),
        (OWN_VARIABLE, ["--gpu", "l4"], ["sm_80"]),
        (OWN_VARIABLE, ["--arch", "8.9", "--on-missing", "add"], ["sm_89"]),
        (CLEARS, ["--arch", "9.0"], ["sm_90"]),
    ],
)
def test_the_library_holds_exactly_what_was_asked_for(
    archpatch: CommandLine, mini: Path, flags: str, asked: list[str], codes: list[str]
) -> None:
    (mini / "setup.py").write_text(HEAD + flags + TAIL)
    config = archpatch.folder / "archpatch.toml"
    config.write_text(RECIPE)
    assert archpatch("--config", config, "build", mini, *asked).record["device_code"] == codes


TWO = (
    HEAD
    + """
def extension(name, sources, *archs):
    pairs = [word for n in archs for word in ("-gencode", f"arch=compute_{n},code=sm_{n}")]
    return CUDAExtension(name, sources, extra_compile_args={"nvcc": pairs})


setup(
    packages=["archpatch_mini"],
    ext_modules=[
        extension("archpatch_mini._C", ["csrc/module.cpp", "csrc/add.cu"], 80, 90),
        extension("archpatch_mini._D", ["csrc/module.cpp", "csrc/add.cu"], "90", "90a"),
        extension("archpatch_mini._E", ["csrc/module.cpp", "csrc/add.cu"]),
    ],
    cmdclass={"build_ext": BuildExtension},
)
"""
)


def test_each_extension_is_selected_for_itself(archpatch: CommandLine, mini: Path) -> None:
    (mini / "setup.py").write_text(TWO)
    extensions = archpatch("build", mini, "--gpu", "h200").record["extensions"]
    assert extensions == {
        "archpatch_mini._C": ["sm_90"],
        "archpatch_mini._D": ["sm_90", "sm_90a"],
        "archpatch_mini._E": ["sm_90"],
    }


def test_an_extension_that_loses_all_is_named(archpatch: CommandLine, mini: Path) -> None:
    (mini / "setup.py").write_text(TWO)
    answer = archpatch("build", mini, "--arch", "8.0")
    assert answer.status == 3
    assert "archpatch_mini._D" in answer.stderr
    assert archpatch.published() == []
