from __future__ import annotations

import pytest

from archpatch.arch.arch import Arch, ArchRequest, DeviceCode, Pair
from archpatch.errors import InvalidArchList


@pytest.mark.parametrize(
    ("text", "arch"),
    [
        ("9.0", Arch(9, 0)),
        ("9.0a", Arch(9, 0, "a")),
        ("10.0F", Arch(10, 0, "f")),
        ("90", Arch(9, 0)),
        ("100", Arch(10, 0)),
        ("121a", Arch(12, 1, "a")),
        ("sm_75", Arch(7, 5)),
        ("SM_90A", Arch(9, 0, "a")),
        ("compute_103", Arch(10, 3)),
    ],
)
def test_an_arch_is_read_in_every_spelling(text: str, arch: Arch) -> None:
    assert Arch.parse(text) == arch


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("9", "Write 9.0; in YAML"),
        ("10", "Write 10.0; in YAML"),
        ("12", "Write 12.0; in YAML"),
        ("9.0.a", "Write 9.0a."),
        ("9.0_a", "Write 9.0a."),
        ("9.1", "Known are: 3.5, "),
        ("3.0", "Known are: 3.5, "),
        ("9.00", "Write it like 9.0, 9.0a"),
        ("8.6a", "Write 8.6."),
        ("7.5f", "Write 7.5."),
        ("gfx90a", "Write it like"),
        ("sm90", "Write it like"),
        ("", "Write it like"),
        ("\u0669.\u0660", "Write it like"),  # digits, but not of this alphabet
    ],
)
def test_what_is_no_arch_is_refused_with_the_remedy(text: str, remedy: str) -> None:
    with pytest.raises(InvalidArchList) as caught:
        Arch.parse(text)
    assert remedy in str(caught.value)
    assert caught.value.exit_status == 2


def test_suffixes_make_different_archs() -> None:
    assert len({Arch.parse("9.0"), Arch.parse("9.0a"), Arch.parse("9.0f")}) == 3
    assert Arch.parse("9.0a").base == Arch.parse("9.0")


def test_archs_sort_by_number() -> None:
    assert sorted(map(Arch.parse, ["10.0", "9.0a", "9.0", "12.1"])) == list(
        map(Arch.parse, ["9.0", "9.0a", "10.0", "12.1"])
    )


@pytest.mark.parametrize(
    ("text", "archs", "ptx"),
    [
        ("9.0", "9.0", ""),
        ("8.0;9.0+PTX", "8.0 9.0", "9.0"),
        ("9.0+PTX 8.0", "8.0 9.0", "9.0"),
        ("8.0,9.0", "8.0 9.0", ""),
        ("8.0\n9.0\n", "8.0 9.0", ""),
        (";;8.0; ;9.0;", "8.0 9.0", ""),
        ("9.0;9.0;9.0+PTX", "9.0", "9.0"),
        ("sm_90, 100", "9.0 10.0", ""),
        ("9.0+ptx", "9.0", "9.0"),
        ("12.0f", "12.0f", ""),
        ("Hopper", "9.0", "9.0"),
        ("hopper+PTX", "9.0", "9.0"),
        ("Ampere", "8.0 8.6", "8.6"),
        ("Volta+Tegra", "7.2", ""),
        ("Volta+Tegra+PTX", "7.2", "7.2"),
        ("Blackwell Ada", "8.9 10.0 10.3 12.0 12.1", "8.9 12.1"),
    ],
)
def test_an_arch_list_is_read(text: str, archs: str, ptx: str) -> None:
    request = ArchRequest.parse(text)
    assert request.archs == tuple(map(Arch.parse, archs.split()))
    assert request.ptx == tuple(map(Arch.parse, ptx.split()))


@pytest.mark.parametrize("text", ["", " ", ";", " ,; \n", "9.0;x", "8.0+SASS", "Ampere8.0", "Amperea", "native"])
def test_what_is_no_arch_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidArchList, match="--arch"):
        ArchRequest.parse(text, origin="--arch")


def test_a_request_prints_as_torch_reads_it() -> None:
    request = ArchRequest.parse("9.0+PTX,sm_80,100f")
    assert str(request) == "8.0;9.0+PTX;10.0f"
    assert ArchRequest.parse(str(request)) == request
    assert list(map(str, request.device_code)) == ["sm_80", "sm_90", "sm_100f", "compute_90"]


@pytest.mark.parametrize("text", ["sm_90a", "compute_90", "sm_100f"])
def test_device_code_reads_what_it_prints(text: str) -> None:
    assert str(DeviceCode.parse(text)) == text


@pytest.mark.parametrize("text", ["90", "lto_90", "9.0"])
def test_what_is_no_device_code_is_refused(text: str) -> None:
    with pytest.raises(InvalidArchList):
        DeviceCode.parse(text)


@pytest.mark.parametrize(("code", "tag"), [("sm_90a", "sm90a"), ("compute_90", "ptx90")])
def test_device_code_has_a_tag_for_file_names(code: str, tag: str) -> None:
    assert DeviceCode.parse(code).tag == tag


@pytest.mark.parametrize(
    ("compute", "code", "stored"),
    [
        ("9.0", "sm_90", "sm_90"),
        ("10.0f", "sm_100", "sm_100f"),
        ("12.0f", "sm_121", "sm_121f"),
        ("9.0", "sm_90a", "sm_90a"),
        ("9.0", "compute_90", "compute_90"),
        ("8.0", "sm_86", "sm_86"),
    ],
)
def test_the_suffix_of_compute_counts(compute: str, code: str, stored: str) -> None:
    pair = Pair(Arch.parse(compute), DeviceCode.parse(code))
    assert str(pair.device_code) == stored
    assert pair.spelled == (f"compute_{Arch.parse(compute).number}", code)
    assert str(pair) == f"compute_{Arch.parse(compute).number},{code}"
