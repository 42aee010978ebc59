from __future__ import annotations

from pathlib import Path

import pytest

from archpatch.arch.arch import Arch, DeviceCode
from archpatch.arch.selection import KnownBad, Policy
from archpatch.builder.capture import Capture, CapturedExtension
from archpatch.builder.cmake import ByVariable, CMakeCommand
from archpatch.builder.cmake_net import Wanted, check_cmake
from archpatch.errors import KnownBadArch, SetupRefused
from archpatch.recipes.recipe import ArchVariable

POLICY = Policy(known_bad=(KnownBad(arch=Arch(10, 3), reason="issue 105"),))
RECIPE = ArchVariable(name="MY_ARCHS", form="number", separator=";")


def codes(text: str) -> frozenset[DeviceCode]:
    return frozenset(map(DeviceCode.parse, text.split()))


def seen(*words: str, reads: tuple[str, ...] = ("MY_ARCHS", "HOME"), has_cuda: bool = True) -> Capture:
    commands = (
        CMakeCommand(words=("cmake", "-S", "csrc", *words), folder=Path("/work"), line=30),
        CMakeCommand(words=("cmake", "--build", "b"), folder=Path("/work"), line=31),
    )
    extension = CapturedExtension(name="pkg._C", sources=(), nvcc=None, cmake=commands, cmake_has_cuda=has_cuda)
    return Capture(name="pkg", version="1", extensions=(extension,), environment=reads)


def check(
    capture: Capture,
    wanted: str = "sm_90",
    *,
    for_gpus: bool = False,
    variable: ArchVariable | None = RECIPE,
    environ: dict[str, str] | None = None,
    package: str = "pkg",
) -> ByVariable | None:
    asked = Wanted(
        codes=codes(wanted),
        is_for_gpus=for_gpus,
        package=package,
        variable=variable,
        environ={"CUDAARCHS": "90-real", "MY_ARCHS": "90"} if environ is None else environ,
        in_text=("TEXT_ARCHS",),
    )
    made = check_cmake(capture, asked, POLICY)
    return made[0] if made else None


@pytest.mark.parametrize(
    ("told", "wanted", "for_gpus", "holds"),
    [
        ("-DCMAKE_CUDA_ARCHITECTURES=90-real", "sm_90", False, "sm_90"),
        ("-DCMAKE_CUDA_ARCHITECTURES=90", "sm_90 compute_90", False, "sm_90 compute_90"),
        ("-DOWN_ARCHS=90", "sm_90", False, "sm_90"),
        ("-DOWN_ARCHS=90", "sm_90 compute_90", False, "sm_90 compute_90"),
        ("-DOWN_ARCHS=90a-real", "sm_90", True, "sm_90a"),
        ("-DCMAKE_CUDA_ARCHITECTURES=OFF", "sm_90", False, "sm_90"),
        ("-DNOTHING=1", "sm_90", True, "sm_90"),
    ],
)
def test_what_cmake_must_make(told: str, wanted: str, holds: str, *, for_gpus: bool) -> None:
    made = check(seen(told), wanted, for_gpus=for_gpus)
    assert made is not None
    assert (made.name, made.codes, made.setting, made.line) == ("pkg._C", codes(holds), "MY_ARCHS=90", 30)


@pytest.mark.parametrize(
    ("told", "wanted", "for_gpus", "says", "remedy"),
    [
        ("90", "sm_90", False, "=90, which is sm_90, compute_90, instead of sm_90", "ask for --arch '9.0+PTX'"),
        ("90", "sm_90", True, "which is sm_90, compute_90, instead of sm_90", 'form = "cmake"'),
        ("90a-real", "sm_90", False, "which is sm_90a, instead of sm_90", "ask for --arch '9.0a'."),
        ("80-real;90-real", "sm_90", False, "which is sm_80, sm_90, instead of sm_90", "makes of MY_ARCHS=90."),
        ("90-virtual", "sm_90", False, "which is compute_90, instead of sm_90", "is exact."),
        ("native", "sm_90", False, "CMAKE_CUDA_ARCHITECTURES=native instead of sm_90", "is exact."),
    ],
)
def test_what_nobody_asked_for_is_refused(told: str, wanted: str, says: str, remedy: str, *, for_gpus: bool) -> None:
    with pytest.raises(SetupRefused) as caught:
        check(seen(f"-DCMAKE_CUDA_ARCHITECTURES={told}"), wanted, for_gpus=for_gpus)
    assert says in caught.value.message
    assert remedy in str(caught.value.remedy)
    assert caught.value.exit_status == 3


TABLE = '\n[tool.archpatch.recipes.pkg]\narch-variable = { name = "MY_ARCHS", form = "cmake", separator = ";" }'


@pytest.mark.parametrize("variable", [None, ArchVariable(name="OTHER", form="cmake", separator=";")])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "the project reads its archs from MY_ARCHS, which nothing sets"),
        (("-DCMAKE_CUDA_ARCHITECTURES=80",), "nothing sets (CMake would be told CMAKE_CUDA_ARCHITECTURES=80)"),
    ],
)
def test_a_variable_that_nothing_sets_is_refused_with_the_table_to_write(
    variable: ArchVariable | None, words: tuple[str, ...], says: str
) -> None:
    with pytest.raises(SetupRefused) as caught:
        check(seen(*words), variable=variable, environ={"OTHER": "90-real"})
    assert caught.value.message.startswith("extension pkg._C: ")
    assert caught.value.message.endswith(says)
    assert str(caught.value.remedy).endswith(TABLE)


def test_the_name_of_a_package_is_a_key_of_toml() -> None:
    with pytest.raises(SetupRefused) as caught:
        check(seen(), variable=None, environ={}, package="a.b")
    assert '[tool.archpatch.recipes."a.b"]' in str(caught.value.remedy)


def test_a_default_that_is_what_was_asked_for_needs_no_variable() -> None:
    made = check(seen("-DCMAKE_CUDA_ARCHITECTURES=90-real"), variable=None, environ={})
    assert made is not None
    assert made.codes == codes("sm_90")


def test_the_environment_may_set_the_variable() -> None:
    made = check(seen(), variable=None, environ={"MY_ARCHS": "9.0"})
    assert made is not None
    assert made.setting == "MY_ARCHS=9.0"
    with pytest.raises(SetupRefused, match="instead of sm_90") as caught:
        check(seen("-DMY_ARCHS=80-real"), variable=None, environ={"MY_ARCHS": "8.0"})
    assert str(caught.value.remedy).startswith("MY_ARCHS=8.0 decides about them")
    assert str(caught.value.remedy).endswith(TABLE)


def test_a_project_without_a_variable_takes_cmakes_own() -> None:
    for variable in (None, RECIPE):
        made = check(seen(reads=("HOME",)), variable=variable)
        assert made is not None
        assert made.setting == "CUDAARCHS=90-real"
    made = check(seen(reads=("TORCH_CUDA_ARCH_LIST",)), environ={"CUDAARCHS": "90-real", "TORCH_CUDA_ARCH_LIST": "9.0"})
    assert made is not None
    assert made.setting == "TORCH_CUDA_ARCH_LIST=9.0"
    with pytest.raises(SetupRefused) as caught:
        check(seen("-DCMAKE_CUDA_ARCHITECTURES=80", reads=()), variable=None)
    assert str(caught.value.remedy).startswith("setup.py names them itself")
    assert 'name = "TEXT_ARCHS"' in str(caught.value.remedy)


def test_cmake_without_cuda_is_no_concern() -> None:
    assert check(seen(has_cuda=False, reads=())) is None


def test_nothing_built_for_want_of_a_variable_is_refused() -> None:
    nothing = Capture(name="pkg", version="1", extensions=(), environment=("MY_ARCHS",))
    with pytest.raises(SetupRefused, match="builds no CUDA extension here; it reads MY_ARCHS") as caught:
        check(nothing, variable=None, environ={})
    assert 'form = "number"' in str(caught.value.remedy)
    assert check(nothing) is None


def test_a_known_bad_arch_is_not_compiled_by_cmake_either() -> None:
    with pytest.raises(KnownBadArch, match=r"extension pkg\._C: sm_103 is known bad: issue 105"):
        check(seen(), "sm_103")
