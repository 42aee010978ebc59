from __future__ import annotations

import pytest

from archpatch.arch.arch import Arch
from archpatch.arch.gpu import GpuRequest, find_gpu, gpu_types
from archpatch.errors import UnknownGpu


@pytest.mark.parametrize(
    ("text", "name", "arch"),
    [
        ("v100", "v100", "7.0"),
        ("Tesla V100-SXM2-16GB", "v100", "7.0"),
        ("T4", "t4", "7.5"),
        ("Tesla T4", "t4", "7.5"),
        ("NVIDIA A100-SXM4-80GB", "a100", "8.0"),
        ("A10G", "a10", "8.6"),
        ("NVIDIA A10", "a10", "8.6"),
        ("a40", "a40", "8.6"),
        ("RTX 3090", "rtx-30", "8.6"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx-30", "8.6"),
        ("rtx_4090", "rtx-40", "8.9"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-40", "8.9"),
        ("rtx5090", "rtx-50", "12.0"),
        ("rtx 4080 super", "rtx-40", "8.9"),
        ("RTX 4070 Ti SUPER", "rtx-40", "8.9"),
        ("rtx 4090 laptop", "rtx-40", "8.9"),
        ("NVIDIA RTX A6000", "rtx-a6000", "8.6"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada", "8.9"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000", "12.0"),
        ("L4", "l4", "8.9"),
        ("NVIDIA L40S", "l40s", "8.9"),
        ("NVIDIA H100 80GB HBM3", "h100", "9.0"),
        ("h200", "h200", "9.0"),
        ("NVIDIA GH200 480GB", "gh200", "9.0"),
        ("B200", "b200", "10.0"),
        ("gb200", "gb200", "10.0"),
        ("NVIDIA B300 SXM6 AC", "b300", "10.3"),
        ("GB300", "gb300", "10.3"),
        ("NVIDIA GB10", "gb10", "12.1"),
        ("DGX Spark", "gb10", "12.1"),
        ("Orin", "orin", "8.7"),
        ("Jetson-Thor", "thor", "11.0"),
    ],
)
def test_a_gpu_type_is_found_by_any_of_its_names(text: str, name: str, arch: str) -> None:
    gpu = find_gpu(text)
    assert (gpu.name, gpu.arch) == (name, Arch.parse(arch))


@pytest.mark.parametrize("text", ["h200 l4", "h200;l4", "h200 and b200", "rtx 4090 rtx 3090", "A100, H100"])
def test_two_types_are_no_name_of_one(text: str) -> None:
    with pytest.raises(UnknownGpu):
        find_gpu(text)


@pytest.mark.parametrize(("text", "near"), [("h300", "h200"), ("rtx-6090", "rtx-"), ("L444", "l4")])
def test_an_unknown_type_names_those_that_are_near(text: str, near: str) -> None:
    with pytest.raises(UnknownGpu, match=near) as caught:
        find_gpu(text)
    assert caught.value.exit_status == 2


def test_nothing_near_still_lists_what_is_known() -> None:
    with pytest.raises(UnknownGpu, match="Known are: v100"):
        find_gpu("???")


def test_types_that_come_with_an_arm_cpu_say_so() -> None:
    arm = {gpu.name for gpu in gpu_types() if gpu.hosts == ("aarch64",)}
    assert arm == {"gh200", "gb200", "gb300", "gb10", "orin", "thor"}


def test_every_name_leads_to_its_own_type() -> None:
    for gpu in gpu_types():
        for name in (gpu.name, *gpu.aliases, *gpu.products):
            if name.startswith("GeForce"):
                continue  # a series, completed by two digits
            assert find_gpu(name) is gpu, name


def test_a_request_holds_each_type_once_and_sorted() -> None:
    request = GpuRequest.of("l4", "H200", "NVIDIA L4")
    assert str(request) == "h200,l4"
    assert request.archs == (Arch(8, 9), Arch(9, 0))
    assert [str(gpu) for gpu in request.gpus] == ["h200", "l4"]


def test_what_is_meant_is_among_what_is_known() -> None:
    with pytest.raises(UnknownGpu) as caught:
        find_gpu("h22")
    hint, _, known = str(caught.value.remedy).partition("? Known are: ")
    meant = hint.removeprefix("Did you mean ").split(" or ")
    assert "h100" in meant
    assert set(meant) <= set(known.removesuffix(".").split(", "))
