"""Why an arch cannot be had, found before the compile: a condition that is false here, nvcc, or torch.

With the real nvcc and the real torch: CUDA 13.0 knows neither 7.0, 10.1 nor 10.7; torch 2.14 neither 8.8, 10.1 nor
any `f`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from commandline import CommandLine

from archpatch.builder.interpreter import probe

pytestmark = pytest.mark.integration

HEAD = """\
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

release = (13, 0)
"""
TAIL = """

def extension(name, flags):
    sources = ["csrc/module.cpp", "csrc/add.cu"]
    return CUDAExtension(f"archpatch_mini.{name}", sources, extra_compile_args={"nvcc": ["-O1"] + flags})


setup(
    packages=["archpatch_mini"],
    ext_modules=[extension(name, flags) for name, flags in extensions.items()],
    cmdclass={"build_ext": BuildExtension},
)
"""
OLD = 'flags = ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90"]\n'
UNDER_CONDITION = (
    OLD
    + """\
if release >= (99, 0):
    flags += ["-gencode=arch=compute_120,code=sm_120", "-gencode=arch=compute_120f,code=sm_120"]
extensions = {"_C": flags}
"""
)
GUARDED = UNDER_CONDITION.replace(OLD, 'flags = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in (80, 90)]\n')
TORCH_ONLY = 'extensions = {"_C": []}\n'
OLD_PAIRS = """\
flags = ["-gencode=arch=compute_70,code=sm_70", "-gencode=arch=compute_101,code=sm_101"]
extensions = {"_C": flags}
"""
#: One extension with pairs in the text, and one without, for which torch would add its own.
MIXED = """\
flags = ["-gencode=arch=compute_120f,code=sm_120", "-gencode=arch=compute_80,code=sm_80"]
flags += ["-gencode=arch=compute_101,code=sm_101"]
extensions = {"_C": flags, "_D": []}
"""

CONDITION = "stands in setup.py under a condition that CUDA 13.0 makes false"
DROPPED = "cannot compile it: CUDA 13 dropped every arch below 7.5"
THOR = "cannot compile it: Thor is 11.0 since CUDA 13, and was 10.1 before"


def write(mini: Path, body: str) -> None:
    (mini / "setup.py").write_text(HEAD + body + TAIL)


@pytest.mark.parametrize(
    ("body", "asked", "status", "says"),
    [
        # The pair stands under a condition that is false here; what torch would add hides it, or fails.
        (UNDER_CONDITION, ("--arch", "12.0"), 3, f"nothing remains of sm_80, sm_90; sm_120 (line 7) {CONDITION}"),
        (UNDER_CONDITION, ("--gpu", "rtx-5090"), 3, "sm_120 (line 7), sm_120f (line 7) stand in setup.py under"),
        (
            UNDER_CONDITION,
            ("--gpu", "h200,rtx-5090"),
            3,
            f"sm_120 (line 7) {CONDITION}",
        ),
        (UNDER_CONDITION, ("--arch", "12.0f"), 3, f"nothing remains of sm_80, sm_90; sm_120f (line 7) {CONDITION}"),
        (UNDER_CONDITION, ("--arch", "9.0;12.0", "--strict"), 3, f"sm_120 (line 7) {CONDITION}"),
        (GUARDED, ("--arch", "12.0"), 3, f"sm_120 (line 7) {CONDITION}"),
        # nvcc does not know it.
        (OLD_PAIRS, ("--arch", "7.0"), 4, f"compute_70,sm_70: nvcc {DROPPED}"),
        (OLD_PAIRS, ("--arch", "10.1"), 4, f"compute_101,sm_101: nvcc {THOR}"),
        (UNDER_CONDITION, ("--arch", "10.7", "--on-missing", "add"), 4, "compute_107,sm_107: nvcc cannot"),
        (TORCH_ONLY, ("--arch", "7.0"), 4, f"compute_70,sm_70: nvcc {DROPPED}"),
        (TORCH_ONLY, ("--gpu", "v100"), 4, f"compute_70,sm_70: nvcc {DROPPED}"),
        (TORCH_ONLY, ("--arch", "10.7"), 4, "compute_107,sm_107: nvcc cannot compile it: it does not know it"),
        # Neither nvcc nor torch knows it.
        (TORCH_ONLY, ("--arch", "10.1"), 4, f"compute_101,sm_101: nvcc {THOR}"),
        (MIXED, ("--arch", "10.1"), 4, f"compute_101,sm_101: nvcc {THOR}"),
    ],
)
def test_the_message_says_who_does_not_know_the_arch(
    archpatch: CommandLine, mini: Path, body: str, asked: tuple[str, ...], status: int, says: str
) -> None:
    write(mini, body)
    answer = archpatch("build", mini, *asked)
    assert says in re.sub(r"\bnvcc \d[\d.]*", "nvcc", answer.stderr)
    assert answer.status == status
    assert archpatch.published() == archpatch.left_behind() == []


@pytest.mark.parametrize(
    ("body", "asked", "extensions"),
    [
        (TORCH_ONLY, "8.8", {"archpatch_mini._C": ["sm_88"]}),
        (
            MIXED,
            "12.0f+PTX",
            {name: ["compute_120f", "sm_120f"] for name in ("archpatch_mini._C", "archpatch_mini._D")},
        ),
        (MIXED, "8.0;12.0f", {name: ["sm_120f", "sm_80"] for name in ("archpatch_mini._C", "archpatch_mini._D")}),
    ],
)
def test_what_torch_has_no_flags_for_reaches_nvcc_all_the_same(
    archpatch: CommandLine, mini: Path, body: str, asked: str, extensions: dict[str, list[str]]
) -> None:
    write(mini, body)
    record = archpatch("build", mini, "--arch", asked).record
    assert record["extensions"] == extensions
    assert "not-in-torch" in {source["shape"] for source in record["flag_sources"]}


def test_a_lost_extension_is_no_match_although_torch_would_fail(archpatch: CommandLine, mini: Path) -> None:
    write(mini, MIXED.replace('"_D": []', '"_D": flags[1:2]'))
    answer = archpatch("build", mini, "--arch", "12.0f")
    assert answer.status == 3
    assert "extension archpatch_mini._D: no matching arch for 12.0f: it compiles sm_80" in answer.stderr


@pytest.fixture
def older_torch(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with the installed torch, whose table of archs ends before 11.0."""
    torch = probe().torch
    assert torch is not None
    copy = tmp_path / "older" / "torch"
    (copy / "utils").mkdir(parents=True)
    for original in (torch.folder, torch.folder / "utils"):
        for path in original.iterdir():
            link = copy / path.relative_to(torch.folder)
            if not link.exists():
                link.symlink_to(path)
    text = (torch.folder / "utils" / "cpp_extension.py").read_text()
    assert "'11.0', '11.0a', " in text
    (copy / "utils" / "cpp_extension.py").unlink()
    (copy / "utils" / "cpp_extension.py").write_text(text.replace("'11.0', '11.0a', ", ""))
    return copy.parent


def test_a_torch_that_is_too_old_for_an_arch_is_named(archpatch: CommandLine, mini: Path, older_torch: Path) -> None:
    write(mini, TORCH_ONLY)
    path = os.pathsep.join([str(older_torch), os.environ.get("PYTHONPATH", "")])
    answer = archpatch("build", mini, "--arch", "11.0", environ={"PYTHONPATH": path})
    assert answer.status == 4
    assert "extension archpatch_mini._C has no arch flags of its own, and torch 2." in answer.stderr
    assert "has none for 11.0: Unknown CUDA arch (11.0)" in answer.stderr
    assert "Install a torch that knows this arch" in answer.stderr
    assert archpatch.published() == archpatch.left_behind() == []
