from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from archpatch.arch.arch import DeviceCode
from archpatch.builder.environment import BuildVariables, decisive_variables, without_arch_flags
from archpatch.builder.interpreter import Interpreter
from archpatch.builder.toolkit import Origin, Toolkit
from archpatch.errors import UsageError
from archpatch.recipes.recipe import Recipe, find_recipe

PYTHON = Interpreter(
    executable=Path("/venv/bin/python"),
    version="3.11.7",
    abi_tag="cp311",
    platform_tag="linux_x86_64",
    machine="x86_64",
    torch=None,
    packages=(),
)


def apply(recipe: Recipe, environ: dict[str, str], **settings: object) -> dict[str, str]:
    toolkit = Toolkit(
        root=Path("/cuda"), version=Version("13.0.88"), origin=Origin.SYSTEM, found_by="a test", codes=frozenset()
    )
    build = BuildVariables(toolkit=toolkit, interpreter=PYTHON, recipe=recipe, jobs=3, **settings)  # type: ignore[arg-type]
    return build.apply(environ)


def test_the_toolkit_the_jobs_and_the_request_are_set() -> None:
    variables = apply(
        Recipe(name="x"), {"PATH": "/bin", "TORCH_CUDA_ARCH_LIST": "8.0", "NINJA_STATUS": "%p"}, arch_list="9.0"
    )
    assert variables["CUDA_HOME"] == "/cuda"
    assert variables["PATH"].startswith("/cuda/bin:")
    assert variables["MAX_JOBS"] == "3"
    assert variables["TORCH_CUDA_ARCH_LIST"] == "9.0"
    assert variables["NINJA_STATUS"] == "[%f/%t] "


def test_a_preset_arch_list_never_reaches_the_build() -> None:
    assert "TORCH_CUDA_ARCH_LIST" not in apply(Recipe(name="x"), {"TORCH_CUDA_ARCH_LIST": "8.0"})


def test_cmake_is_told_the_request_and_nothing_preset() -> None:
    given = {"CUDAARCHS": "75", "CMAKE_BUILD_PARALLEL_LEVEL": "7"}
    variables = apply(Recipe(name="x"), given, cmake_archs="90-real")
    assert (variables["CUDAARCHS"], variables["CMAKE_BUILD_PARALLEL_LEVEL"]) == ("90-real", "7")
    assert "CUDAARCHS" not in apply(Recipe(name="x"), given)
    forced = apply(Recipe(name="x", environment=(("CUDAARCHS", "OFF"),)), {}, cmake_archs="90-real")
    assert (forced["CUDAARCHS"], forced["CMAKE_BUILD_PARALLEL_LEVEL"]) == ("OFF", "3")


def test_a_recipe_forces_its_variables() -> None:
    given = {"MAMBA_FORCE_BUILD": "FALSE", "MAMBA_LOCAL_VERSION": "mine"}
    variables = apply(find_recipe("mamba_ssm"), given)
    assert (variables["MAMBA_FORCE_BUILD"], variables["MAMBA_KEEP_CUDA_BUILD"]) == ("TRUE", "TRUE")
    assert "MAMBA_LOCAL_VERSION" not in variables
    assert apply(find_recipe("mamba_ssm"), given, local_version="cu130")["MAMBA_LOCAL_VERSION"] == "cu130"


def test_the_packages_own_arch_variable_holds_what_is_kept() -> None:
    codes = tuple(map(DeviceCode.parse, ("sm_80", "sm_90", "compute_90")))
    assert apply(find_recipe("flash_attn"), {}, codes=codes)["FLASH_ATTN_CUDA_ARCHS"] == "80;90"


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        ("-gencode arch=compute_80,code=sm_80 -O3", "-O3"),
        ("-gencode=arch=compute_80,code=sm_80", ""),
        ("-arch=sm_80 --threads 2", "--threads 2"),
        ("--gpu-architecture sm_80 --gpu-code sm_80", ""),
    ],
)
def test_arch_flags_in_nvccs_own_variables_are_taken_out(flags: str, left: str) -> None:
    assert without_arch_flags({"NVCC_APPEND_FLAGS": flags}) == ({"NVCC_APPEND_FLAGS": left}, ("NVCC_APPEND_FLAGS",))


def test_arch_flags_for_cmakes_nvcc_are_taken_out_too() -> None:
    assert without_arch_flags({"CUDAFLAGS": "-O3 -arch=sm_80"}) == ({"CUDAFLAGS": "-O3"}, ("CUDAFLAGS",))


def test_other_flags_in_nvccs_own_variables_stay_as_they_are() -> None:
    environ = {"NVCC_PREPEND_FLAGS": "-DX='a b'  -O3", "PATH": "/bin"}
    assert without_arch_flags(environ) == (environ, ())


def test_quotes_that_do_not_match_are_a_clear_error() -> None:
    with pytest.raises(UsageError, match="NVCC_APPEND_FLAGS"):
        without_arch_flags({"NVCC_APPEND_FLAGS": "-DX='a"})


def test_what_decides_the_bytes_is_picked_and_nothing_else() -> None:
    environ = {"CXXFLAGS": "-O1", "CFLAGS": "", "HOME": "/root", "USER": "me", "MAMBA_FORCE_BUILD": "TRUE"}
    assert decisive_variables(environ, find_recipe("mamba_ssm")) == {"CXXFLAGS": "-O1", "MAMBA_FORCE_BUILD": "TRUE"}
