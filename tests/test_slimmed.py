"""Slimmed wheels in a wheelhouse: what their records say, and that none is ever taken for a built one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from libraries import container, library, write_wheel
from records import STACK, make, title_of

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import Gpu, find_gpu
from archpatch.arch.selection import Policy
from archpatch.errors import UsageError, WheelhouseConflict, WheelhouseDamaged
from archpatch.storage.atomic import sha256_of
from archpatch.wheelhouse.house import Wheelhouse
from archpatch.wheelhouse.layout import Stack
from archpatch.wheelhouse.record import Record, record_path
from archpatch.wheelhouse.shelf import Shelf
from archpatch.wheelhouse.slimmed import Filed, Filing, Origin, file_slimmed
from archpatch.wheelhouse.verify import verify
from archpatch.wheels.slim_choice import Wanted
from archpatch.wheels.slim_wheel import slim_wheel

FOREIGN = "pkg-1.0-py3-none-manylinux_2_24_x86_64.whl"
WIDE = library(container("sm_80", "sm_90")).data
#: What a build has among its inputs, beside those of every record here.
BUILT = {"cuda": "13.0", "platform": "linux_x86_64", "cxx11-abi": "True", "nvcc": "13.0.88"}


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return Wheelhouse(tmp_path / "wheelhouse")


def wide(folder: Path, name: str = FOREIGN) -> Path:
    folder.mkdir(exist_ok=True)
    return write_wheel(folder / name, {"pkg/_C.so": WIDE})


def built(folder: Path, codes: str, content: bytes | None = None) -> tuple[Path, Record]:
    """Return a wheel as a build files it, with its record beside it; without `content` it is a real one."""
    name = f"{title_of(name='pkg', codes=codes)}-cp311-cp311-linux_x86_64.whl"
    content = wide(folder, name).read_bytes() if content is None else content
    wheel, record = make(folder, name="pkg", codes=codes, content=content, **BUILT)
    record_path(wheel).write_text(record.to_json())
    return wheel, record


def filed(
    house: Wheelhouse, wheel: Path, *, torch: Stack | None = None, gpus: tuple[Gpu, ...] = (), replacing: bool = True
) -> Filed:
    origin = Origin.of(wheel, torch)
    into = wheel.parent / "slim"
    into.mkdir(exist_ok=True)
    slimmed = slim_wheel(wheel, Wanted(request=ArchRequest.parse("9.0"), policy=Policy()), into, scratch=into)
    filing = Filing(request={"archs": ["9.0"]}, gpus=gpus, replace=replacing, seconds=1.2345)
    return file_slimmed(slimmed, origin, house, filing=filing)


def test_a_foreign_wheel_is_filed_for_the_torch_that_is_named(house: Wheelhouse, tmp_path: Path) -> None:
    wheel = wide(tmp_path / "in")
    done = filed(house, wheel, torch=STACK, gpus=(find_gpu("h200"),))
    record = done.entry.record
    assert done.entry.wheel == house.root / "sm90/torch2.14.1-cu130" / FOREIGN.replace("1.0", "1.0+sm90")
    assert record.device_code == ("sm_90",)
    assert record.extensions == {"pkg/_C.so": ("sm_90",)}
    assert record.source == {"origin": f"slimmed from {FOREIGN}", "digest": sha256_of(wheel)}
    assert record.inputs == {
        "package": "pkg",
        "version": "1.0",
        "python": "py3",
        "platform": "linux_x86_64",
        "torch": STACK.torch,
        "cuda": "13.0",
        "local-version": "yes",
        "slimmed-from": sha256_of(wheel),
        "kept": "pkg/_C.so: sm_90",
        "slimming": "1",
    }
    assert (record.pairs, record.times, record.request) == ((), {"slim": 1.234}, {"archs": ["9.0"]})
    assert [link.resolve() for link in done.links] == [done.entry.wheel]
    assert verify(house) == ()


def test_a_wheel_of_ours_brings_what_its_record_says(house: Wheelhouse, tmp_path: Path) -> None:
    wheel, _ = built(tmp_path / "in", "sm_80 sm_90")
    entry = filed(house, wheel).entry
    assert entry.wheel.name == "pkg-1.0+cu130torch2.14.1sm90-cp311-cp311-linux_x86_64.whl"
    assert entry.record.inputs["python"] == "cp311"
    assert entry.record.inputs["cxx11-abi"] == "True"
    assert "nvcc" not in entry.record.inputs
    assert verify(house) == ()


def test_the_same_again_is_a_hit(house: Wheelhouse, tmp_path: Path) -> None:
    wheel = wide(tmp_path / "in")
    first, second = filed(house, wheel, torch=STACK), filed(house, wheel, torch=STACK)
    assert (first.hit, second.hit) == (False, True)
    assert second.entry == first.entry


def test_no_build_is_answered_with_a_slimmed_wheel(house: Wheelhouse, tmp_path: Path) -> None:
    wheel, _ = built(tmp_path / "in", "sm_80 sm_90")
    slim = filed(house, wheel).entry
    # A build for the same arch has the same name and place.
    made, record = built(tmp_path / "made", "sm_90", b"built")
    assert (slim.wheel.name, house.find(record.fingerprint)) == (record.wheel, None)
    entry = house.publish(made, record, STACK)
    house.remember("request", entry, {})
    assert house.recall("request", {}) == entry
    assert filed(house, wheel).entry.wheel == entry.wheel
    assert house.recall("request", {}) is None
    assert house.find(record.fingerprint) is None


def test_taking_a_built_wheels_name_is_told_or_refused(house: Wheelhouse, tmp_path: Path) -> None:
    wheel, _ = built(tmp_path / "in", "sm_80 sm_90")
    made, record = built(tmp_path / "made", "sm_90", b"built")
    house.publish(made, record, STACK)
    with pytest.raises(WheelhouseConflict, match="slimmed-from was absent, is "):
        filed(house, wheel, replacing=False)
    assert house.find(record.fingerprint) is not None
    (warning,) = filed(house, wheel).warnings
    assert warning.startswith(f"{record.wheel} is replaced: ")


def test_who_installs_is_offered_what_any_python_takes(house: Wheelhouse, tmp_path: Path) -> None:
    entry = filed(house, wide(tmp_path / "in"), torch=STACK, gpus=(find_gpu("h200"),)).entry
    for inputs, found in (
        ({"python": "cp312", "platform": "linux_x86_64"}, {"pkg": entry}),
        ({"python": "cp312", "platform": "linux_aarch64"}, {}),
    ):
        assert Shelf(house=house, stack=STACK, inputs=inputs, gpu="h200").newest() == found


@pytest.mark.parametrize(
    ("name", "torch", "says"),
    [
        (FOREIGN, None, "nothing says which torch"),
        ("pkg-1.0-cp310-abi3-manylinux2014_x86_64.whl", STACK, "neither for one Python nor for any"),
        ("pkg-1.0-cp310.cp311-none-linux_x86_64.whl", STACK, "neither for one Python nor for any"),
        ("pkg-1.0-py3-none-musllinux_1_2_x86_64.whl", STACK, "is not for Linux on x86_64 or aarch64"),
        ("pkg-1.0-py3-none-win_amd64.whl", STACK, "is not for Linux on x86_64 or aarch64"),
    ],
)
def test_what_has_no_place_in_a_wheelhouse_is_refused(
    tmp_path: Path, name: str, torch: Stack | None, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        Origin.of(wide(tmp_path / "in", name), torch)


@pytest.mark.parametrize(
    ("tags", "python", "platform"),
    [
        ("cp311-cp311-manylinux_2_28_x86_64", "cp311", "linux_x86_64"),
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", "cp311", "linux_x86_64"),
        ("py2.py3-none-linux_aarch64", "py3", "linux_aarch64"),
        ("py39-none-manylinux_2_28_x86_64", "py3", "linux_x86_64"),
    ],
)
def test_tags_say_who_takes_a_foreign_wheel(tmp_path: Path, tags: str, python: str, platform: str) -> None:
    inputs = Origin.of(wide(tmp_path / "in", f"pkg-1.0-{tags}.whl"), STACK).inputs
    assert (inputs["python"], inputs["platform"]) == (python, platform)


def test_a_record_beats_no_option_and_contradicts_another(tmp_path: Path) -> None:
    wheel, _ = built(tmp_path / "in", "sm_80 sm_90")
    assert Origin.of(wheel, STACK) == Origin.of(wheel, None)
    (tmp_path / "link").mkdir()
    (link := tmp_path / "link" / wheel.name).symlink_to(wheel)
    assert Origin.of(link, None) == Origin.of(wheel, None)
    with pytest.raises(UsageError, match=r"was built for torch 2\.14\.1\+cu130"):
        Origin.of(wheel, Stack(torch="2.13.0+cu130", cuda="13.0"))


def test_a_record_of_another_wheel_is_damage(tmp_path: Path) -> None:
    wheel, record = built(tmp_path / "in", "sm_80 sm_90")
    record_path(wheel).write_text(replace(record, sha256="0" * 64).to_json())
    with pytest.raises(WheelhouseDamaged, match="was changed after it was published"):
        Origin.of(wheel, None)
    record_path(wheel).write_text(json.dumps({}))
    with pytest.raises(WheelhouseDamaged, match="cannot be read"):
        Origin.of(wheel, None)
