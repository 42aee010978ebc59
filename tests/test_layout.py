from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from archpatch.arch.arch import DeviceCode
from archpatch.storage.fingerprint import differing, fingerprint
from archpatch.wheelhouse.layout import Stack, arch_folder, gpu_folder, local_version, relative_link


@pytest.mark.parametrize(
    ("torch", "cuda", "folder"),
    [
        ("2.14.1+cu130", "13.0", "torch2.14.1-cu130"),
        ("2.14.1", "13.0", "torch2.14.1-cu130"),
        ("2.9.0a0+gitabc.nv25.10", "13.0", "torch2.9.0a0-gitabc.nv25.10-cu130"),
        ("2.6.0+cu128", "12.8", "torch2.6.0-cu128"),
    ],
)
def test_torch_and_cuda_name_a_folder(torch: str, cuda: str, folder: str) -> None:
    assert Stack(torch=torch, cuda=cuda).folder == folder


@pytest.mark.parametrize(
    ("codes", "folder", "local"),
    [
        ("sm_90", "sm90", "cu130torch2.14.1sm90"),
        ("sm_90a", "sm90a", "cu130torch2.14.1sm90a"),
        ("compute_90 sm_90 sm_80", "sm80-sm90-ptx90", "cu130torch2.14.1sm80.sm90.ptx90"),
        ("sm_100 sm_90", "sm90-sm100", "cu130torch2.14.1sm90.sm100"),
    ],
)
def test_device_code_names_folder_and_local_version(codes: str, folder: str, local: str) -> None:
    stack, parsed = Stack(torch="2.14.1+cu130", cuda="13.0"), [DeviceCode.parse(code) for code in codes.split()]
    assert str(arch_folder(parsed, stack)) == f"{folder}/torch2.14.1-cu130"
    assert local_version(parsed, stack) == local
    assert Version(f"1.0+{local}").local == local, "PEP 440 leaves it as it is"


def test_a_gpu_type_has_a_folder_per_torch() -> None:
    assert str(gpu_folder("h200", Stack(torch="2.14.1+cu130", cuda="13.0"))) == "gpu/h200/torch2.14.1-cu130"


def test_a_link_says_how_to_get_there() -> None:
    house = Path("/house")
    assert relative_link(house / "sm90/t/w.whl", house / "gpu/h200/t/w.whl") == Path("../../../sm90/t/w.whl")


def test_a_fingerprint_is_of_names_and_values_alone() -> None:
    inputs = {"a": "1", "b": "\u00fc"}
    assert fingerprint(inputs) == fingerprint(dict(reversed(inputs.items())))
    assert (
        len({fingerprint(each) for each in (inputs, {"a": "1"}, {"a": "2", "b": "\u00fc"}, {"a1": "", "b": ""})}) == 4
    )
    # What sha256sum says of {"a":"1"}: a change of the scheme would orphan every wheelhouse.
    assert fingerprint({"a": "1"}) == "9afeb0f2b203f254312ec8ded441d0318b7c34c57f8695ede42d2215a30c0960"


def test_differing_names_what_one_side_lacks_too() -> None:
    assert differing({"a": "1", "b": "1"}, {"a": "2", "c": "1"}) == ("a", "b", "c")
