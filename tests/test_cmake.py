from __future__ import annotations

from pathlib import Path

import pytest

from archpatch.arch.arch import DeviceCode
from archpatch.builder.capture import Capture, CapturedExtension
from archpatch.builder.cmake import ByVariable, CMakeCommand, read_cmake_files

HERE = Path("/work")


def command(*words: str, folder: Path = HERE, variables: tuple[tuple[str, str], ...] = ()) -> CMakeCommand:
    return CMakeCommand(words=words, folder=folder, variables=variables)


@pytest.mark.parametrize(
    ("words", "codes", "is_exact"),
    [
        ("-DCMAKE_CUDA_ARCHITECTURES=90-real", "sm_90", True),
        ("-DCMAKE_CUDA_ARCHITECTURES=80;90", "sm_80 compute_80 sm_90 compute_90", True),
        ("-DCMAKE_CUDA_ARCHITECTURES:STRING=90-real;90-virtual", "sm_90 compute_90", True),
        ("-D CMAKE_CUDA_ARCHITECTURES=90a-real", "sm_90a", True),
        ("-DCMAKE_CUDA_ARCHITECTURES='120f-real'", "sm_120f", True),
        ("-DCMAKE_CUDA_ARCHITECTURES=native", "", True),
        ("-DCMAKE_CUDA_ARCHITECTURES=80 -DCMAKE_CUDA_ARCHITECTURES=90-virtual", "compute_90", True),
        ("-DMY_CUDA_ARCHS=75-real -DCMAKE_CUDA_ARCHITECTURES=80-real", "sm_80", True),
        ("-DMY_CUDA_ARCHS=90a-real;120-virtual", "sm_90a compute_120", True),
        ("-DMY_CUDA_ARCHS=80;90", "sm_80 sm_90", False),
        ("-DMY_CUDA_ARCHS=9.0+PTX,8.0", "sm_90 sm_80", False),
        ("-DTORCH_CUDA_ARCH_LIST=8.0;9.0+PTX", "sm_80 sm_90 compute_90", True),
        ("-DCMAKE_OSX_ARCHITECTURES=arm64 -DMY_ARCHS=sm_90", "sm_90", False),
    ],
)
def test_what_definitions_say_of_archs(words: str, codes: str, *, is_exact: bool) -> None:
    told = command("cmake", "..", *words.split()).told
    assert told is not None
    assert told.codes == frozenset(map(DeviceCode.parse, codes.split()))
    assert told.is_exact is is_exact


@pytest.mark.parametrize(
    "words",
    [
        "",
        "-DCMAKE_BUILD_TYPE=Release -B 90",
        "-DCMAKE_CUDA_ARCHITECTURES=OFF",
        "-DCMAKE_CUDA_ARCHITECTURES=",
        "-DCMAKE_CUDA_ARCHITECTURES=OFF -DMY_ARCHS=80",
        "-DCMAKE_ARCHIVE_OUTPUT_DIRECTORY=/build/90",
        "-DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu",
        "-DMY_ARCHS=90-fast",
        "-DMY_ARCHS=$ARCHS",
    ],
)
def test_what_says_nothing_of_archs(words: str) -> None:
    assert command("cmake", *words.split()).told is None


def test_the_number_of_jobs_decides_nothing() -> None:
    built = command("cmake", "--build", "b", "-j", "8", "--parallel", "4", "--target", "kernels")
    assert built.decisive == ("cmake", "--build", "b", "--target", "kernels")
    assert command("cmake", "--build", "b", "-j=8").decisive == ("cmake", "--build", "b")
    assert command("cmake", "..", "-DCMAKE_JOB_POOLS:STRING=compile=8").decisive == ("cmake", "..")
    assert command("ninja", "-j16", "-C", "b").decisive == ("ninja", "-C", "b")
    assert command("cmake", "..", "-D", "LEVEL", "-j", "8").decisive == ("cmake", "..", "-D", "LEVEL", "-j", "8")


def test_the_folders_that_are_configured(tmp_path: Path) -> None:
    for name in ("csrc", "other", "build"):
        (tmp_path / name).mkdir()
    (tmp_path / "csrc" / "CMakeLists.txt").touch()
    (tmp_path / "other" / "CMakeLists.txt").touch()
    assert command("cmake", "../csrc", "-DX=../other", "x" * 300, folder=tmp_path / "build").projects == (
        tmp_path / "build" / "../csrc",
    )
    assert command("cmake", "-Sother", "-B", "build", folder=tmp_path).projects == (tmp_path / "other",)
    assert command("cmake", "-B", "build", folder=tmp_path / "csrc").projects == (tmp_path / "csrc" / ".",)
    assert command("cmake", "--preset", "default", folder=tmp_path).projects == ()


@pytest.mark.parametrize(
    ("text", "has_cuda", "variables"),
    [
        ("project(x LANGUAGES CXX CUDA)", True, set()),
        ("enable_language(CUDA)", True, set()),
        ("find_package(CUDAToolkit)", True, set()),
        ("add_library(x kernel.cu)", True, set()),
        ("project(x LANGUAGES CXX)\nset(BARRACUDA 1)", False, set()),
        ("find_package( Torch REQUIRED)\n# CUDA", True, {"TORCH_CUDA_ARCH_LIST"}),
        ('set(A "$ENV{MY_ARCHS}")\nif(DEFINED ENV{OTHER})\nset(P $ENV{P})', False, {"MY_ARCHS", "P"}),
    ],
)
def test_what_cmake_files_show(tmp_path: Path, text: str, variables: set[str], *, has_cuda: bool) -> None:
    below = tmp_path / "cmake" / "more.cmake"
    below.parent.mkdir()
    below.write_text(text)
    (tmp_path / "CMakeLists.txt").write_text("include(cmake/more.cmake)")
    (tmp_path / "README").write_text("CUDA $ENV{NO}")
    files = read_cmake_files([tmp_path])
    assert files.has_cuda is has_cuda
    assert files.variables == variables


def test_a_record_says_that_archs_came_through_a_variable() -> None:
    made = ByVariable(name="m", codes=frozenset(), setting="CUDAARCHS=90-real", line=7)
    assert made.to_json() == {
        "line": 7,
        "shape": "cmake",
        "action": "variable",
        "reason": "CMake gets the archs through CUDAARCHS=90-real",
    }


def flags(words: str, *, temporary: str = "/tmp/a", variables: tuple[tuple[str, str], ...] = ()) -> str:
    seen = command("cmake", *words.split(), folder=Path(temporary), variables=variables)
    extension = CapturedExtension(name="m", sources=(), nvcc=None, cmake=(seen,), cmake_has_cuda=True)
    return Capture(name="m", version="1", extensions=(extension,), roots={"<temporary>": temporary}).flags


def test_what_cmake_is_told_decides_about_a_wheel_and_passing_folders_do_not() -> None:
    given = flags("-B /tmp/a/tmpx8f_1 -DX_ARCHS=90")
    assert given == flags("-B /tmp/b/tmp77zq -DX_ARCHS=90", temporary="/tmp/b")
    others = [
        flags("-B /tmp/a/tmpx8f_1 -DX_ARCHS=80"),
        flags("-B /tmp/a/tmpx8f_1 -DX_ARCHS=90", variables=(("CUDAFLAGS", "-O1"),)),
        flags("-B /tmp/a/tmpx8f_1/sub -DX_ARCHS=90"),
    ]
    assert len({given, *others}) == 4
