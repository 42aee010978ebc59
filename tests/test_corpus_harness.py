"""The corpus' own parts that need no process: what is asked, what programs answer, and which file counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from corpus.files import files_in
from corpus.matrix import Matrix, parse_request
from corpus.processes import reply
from corpus.seen import Command
from corpus.toolkits import TOOLKITS

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import GpuRequest

NEW, OLD = TOOLKITS["13.0"], TOOLKITS["12.8"]


def test_the_matrix_is_whole() -> None:
    questions = list(Matrix())
    assert len(questions) == len(set(questions)) == 2 * 16 * 3


@pytest.mark.parametrize(
    ("text", "request_", "arch_list"),
    [
        ("8.0;9.0+PTX", ArchRequest.parse("8.0;9.0+PTX"), "8.0;9.0+PTX"),
        ("--gpu l4", GpuRequest.of("l4"), "8.9"),
        ("--gpu b300", GpuRequest.of("b300"), "10.3"),
    ],
)
def test_requests(text: str, request_: object, arch_list: str) -> None:
    assert parse_request(text) == request_
    assert next(iter(Matrix(requests=(text,)))).arch_list == arch_list


@pytest.mark.parametrize(
    ("command", "status", "part"),
    [
        (["/x/bin/nvcc", "-V"], 0, "Cuda compilation tools, release 12.8, V12.8.93"),
        (["nvcc", "--version"], 0, "Build cuda_12.8.r12.8/compiler"),
        (["nvcc", "--list-gpu-arch"], 0, "compute_120"),
        (["git", "rev-parse", "HEAD"], 128, ""),
        (["git", "submodule", "update"], 0, ""),
        (["which", "hipcc"], 1, ""),
        (["g++", "-dumpversion"], 0, "13.3.0"),
    ],
)
def test_programs(command: list[str], status: int, part: str) -> None:
    answer = reply(command, OLD, None)
    assert answer[0] == status
    assert part in answer[1]


@pytest.mark.parametrize("program", ["nvidia-smi", "hipcc", "rocminfo"])
def test_programs_that_are_not_there(program: str) -> None:
    with pytest.raises(FileNotFoundError):
        reply([program], NEW, None)


def test_a_visible_gpu_says_its_capability() -> None:
    assert reply(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], NEW, (9, 0))[1] == "9.0\n"


def test_what_torch_adds_is_not_the_files_own() -> None:
    flags = ("-O3", "-gencode=arch=compute_90,code=sm_90")
    own = Command(extension="e", label="", flags=flags)
    torchs = Command(extension="e", label="", flags=flags, torch_added=flags[1:])
    assert [str(pair) for pair in own.own.pairs] == ["compute_90,sm_90"]
    assert not torchs.own.pairs
    assert torchs.arch_flags == own.arch_flags


def test_which_files_count(tmp_path: Path) -> None:
    for name in ("loose.py", "a/setup.py", "a/b/setup.py", "a/other.py", "s-1.0/setup.py", "s-1.0/x/setup.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "s-1.0/PKG-INFO").touch()
    found = [file.name for file in files_in(tmp_path, tmp_path / "scratch")]
    assert found == ["a/b/setup.py", "a/setup.py", "loose.py", "s-1.0/setup.py"]
