from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from records import STACK, make

from archpatch.arch.arch import DeviceCode
from archpatch.errors import UsageError, WheelhouseConflict, WheelhouseDamaged
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.layout import Stack
from archpatch.wheelhouse.record import record_path

FITS = {"python": "cp311"}
ENVIRON = {"READ": "1", "OTHER": "2"}


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return Wheelhouse(tmp_path / "wheelhouse")


@pytest.fixture
def entry(house: Wheelhouse, tmp_path: Path) -> Entry:
    return house.publish(*make(tmp_path / "made"), STACK)


def listing(house: Wheelhouse) -> list[str]:
    return sorted(
        path.relative_to(house.root).as_posix()
        for path in house.root.rglob("*")
        if not path.is_dir() and ".archpatch" not in path.parts
    )


def test_a_wheel_lies_under_what_it_holds_with_its_record(house: Wheelhouse, entry: Entry) -> None:
    name = "mini-1.0+cu130torch2.14.1sm90-cp311-cp311-linux_x86_64.whl"
    assert listing(house) == [f"sm90/torch2.14.1-cu130/{name}", f"sm90/torch2.14.1-cu130/{name}.json"]
    assert entry.wheel.read_bytes() == b"wheel"
    assert json.loads(record_path(entry.wheel).read_text())["schema"] == "archpatch.record/1"
    assert [each.record for each in house.entries()] == [entry.record]


def test_several_archs_name_the_folder_cubins_first(house: Wheelhouse, tmp_path: Path) -> None:
    entry = house.publish(*make(tmp_path / "made", codes="compute_90 sm_90 sm_80"), STACK)
    assert entry.wheel.parent == house.root / "sm80-sm90-ptx90" / "torch2.14.1-cu130"


def test_a_gpu_type_gets_a_relative_link(house: Wheelhouse, entry: Entry) -> None:
    link = house.offer(entry, "h200", STACK)
    assert link == house.root / "gpu/h200/torch2.14.1-cu130" / entry.wheel.name
    assert link.readlink() == Path("../../../sm90/torch2.14.1-cu130") / entry.wheel.name
    assert [each.wheel for each in house.entries_for("h200")] == [entry.wheel]
    assert house.gpus_of(entry) == ("h200",)
    assert house.gpus() == ("h200",)


def test_a_moved_wheelhouse_keeps_its_links(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    house.offer(entry, "h200", STACK)
    moved = Wheelhouse(house.root.rename(tmp_path / "elsewhere"))
    assert len(list(moved.entries_for("h200"))) == 1


def test_a_new_link_takes_the_place_of_one_for_the_same_release(
    house: Wheelhouse, entry: Entry, tmp_path: Path
) -> None:
    house.offer(entry, "l4", STACK)
    other = house.publish(*make(tmp_path / "made", codes="sm_89"), STACK)
    newer = house.publish(*make(tmp_path / "made", version="2.0"), STACK)
    house.offer(newer, "l4", STACK)
    house.offer(other, "l4", STACK)
    assert [link.name for link in house.links("l4")] == [other.wheel.name, newer.wheel.name]


def test_without_links_the_folder_is_an_index(house: Wheelhouse, entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    index = house.offer(entry, "h200", STACK)
    house.offer(entry, "h200", STACK)
    assert index.name == "index.html"
    assert index.read_text().count("<a href=") == 1
    assert "../../../sm90/torch2.14.1-cu130/mini-1.0%2Bcu130torch2.14.1sm90-cp311" in index.read_text()
    assert [each.wheel for each in house.entries_for("h200")] == [entry.wheel]
    assert house.gpus_of(entry) == ("h200",)


def test_a_name_that_is_taken_is_replaced_or_refused(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    wheel, record = make(tmp_path / "made", content=b"other", torch="2.15.0+cu130")
    with pytest.raises(WheelhouseConflict, match=r"torch was 2.14.1\+cu130, is 2.15.0\+cu130") as caught:
        house.publish(wheel, record, STACK, replace=False)
    assert caught.value.exit_status == 5
    assert entry.wheel.read_bytes() == b"wheel"
    assert house.publish(wheel, record, STACK).wheel.read_bytes() == b"other"
    assert len(list(house.entries())) == 1


def test_what_was_made_wrong_is_not_published(house: Wheelhouse, tmp_path: Path) -> None:
    wheel, record = make(tmp_path / "made")
    with pytest.raises(WheelhouseDamaged):
        house.publish(wheel, replace(record, sha256="0" * 64), STACK)
    assert listing(house) == []


def test_a_failed_publish_keeps_what_was_there(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    wheel, record = make(tmp_path / "made", content=b"other", torch="2.15.0+cu130")
    with pytest.raises(WheelhouseDamaged):
        house.publish(wheel, replace(record, sha256="0" * 64), STACK)
    assert house.find(entry.record.fingerprint) == entry


def test_what_a_killed_process_left_is_not_seen_and_is_swept(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    folder = entry.wheel.parent
    (folder / ".staging").mkdir()
    (folder / ".staging" / entry.wheel.name).write_bytes(b"half")
    (folder / "orphan-1.0-cp311-cp311-linux_x86_64.whl.json").write_text("{}")
    assert [each.wheel for each in house.entries()] == [entry.wheel]
    house.publish(*make(tmp_path / "made", version="2.0"), STACK)
    assert sorted(path.name[:8] for path in folder.iterdir()) == ["mini-1.0", "mini-1.0", "mini-2.0", "mini-2.0"]


def test_a_wheel_without_record_is_not_served(house: Wheelhouse, entry: Entry) -> None:
    record_path(entry.wheel).unlink()
    assert list(house.entries()) == []
    assert house.find(entry.record.fingerprint) is None
    with pytest.raises(WheelhouseDamaged, match="is missing"):
        house.entry(entry.wheel)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": "archpatch.record/2"}', '{"schema": "archpatch.record/1"}']
)
def test_a_torn_or_foreign_record_is_not_served(house: Wheelhouse, entry: Entry, content: str) -> None:
    record_path(entry.wheel).write_text(content)
    assert house.find(entry.record.fingerprint) is None


def test_a_request_is_remembered_while_its_wheel_is_intact(house: Wheelhouse, entry: Entry) -> None:
    assert house.recall("key", ENVIRON) is None
    house.remember("key", entry, {"READ": "1", "UNSET": None})
    assert house.recall("key", ENVIRON) == entry
    entry.wheel.write_bytes(b"edited")
    assert house.recall("key", ENVIRON) is None
    assert house.find(entry.record.fingerprint) is None
    with pytest.raises(WheelhouseDamaged, match="was changed"):
        entry.check()


def test_a_memo_holds_while_the_variables_that_were_read_do(house: Wheelhouse, entry: Entry) -> None:
    house.remember("key", entry, {"READ": "1", "UNSET": None})
    assert house.recall("key", {"READ": "1"}) == entry
    assert house.recall("key", {"READ": "2"}) is None
    assert house.recall("key", {}) is None
    assert house.recall("key", {"READ": "1", "UNSET": ""}) is None


def test_a_link_has_to_lead_to_a_wheel_of_the_house(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    link = house.offer(entry, "h200", STACK)
    for target in (tmp_path / "nowhere.whl", tmp_path / "made" / entry.wheel.name, entry.wheel.parent):
        link.unlink()
        link.symlink_to(target)
        assert list(house.entries_for("h200")) == []
        with pytest.raises(WheelhouseDamaged):
            house.linked(link)


@pytest.mark.parametrize("note", ["", "[]", '{"wheel": 1}', '{"wheel": "gone.whl", "fingerprint": ""}'])
def test_a_broken_memo_is_no_answer(house: Wheelhouse, entry: Entry, note: str) -> None:
    house.remember("key", entry, {"READ": "1", "UNSET": None})
    (house.root / ".archpatch" / "memo" / "key.json").write_text(note)
    assert house.recall("key", ENVIRON) is None


def test_a_memo_of_a_replaced_wheel_is_no_answer(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    house.remember("key", entry, {"READ": "1", "UNSET": None})
    house.publish(*make(tmp_path / "made", content=b"other", torch="2.15.0+cu130"), STACK)
    assert house.recall("key", ENVIRON) is None


def test_a_renamed_wheel_is_damaged(entry: Entry) -> None:
    renamed = entry.wheel.rename(entry.wheel.with_name("other.whl"))
    with pytest.raises(WheelhouseDamaged, match="was renamed"):
        Entry(wheel=renamed, record=entry.record).check()


def test_the_newest_filed_version_is_found(house: Wheelhouse, tmp_path: Path) -> None:
    house.publish(*make(tmp_path / "made", version="1.10"), STACK)
    house.publish(*make(tmp_path / "made", version="1.9"), STACK)
    assert house.newest("MINI", SpecifierSet(), STACK, FITS) == Version("1.10")
    assert house.newest("mini", SpecifierSet("<1.10"), STACK, FITS) == Version("1.9")
    assert house.newest("mini", SpecifierSet(), Stack(torch="2.13.0", cuda="13.0"), FITS) is None
    assert house.newest("other", SpecifierSet(), STACK, FITS) is None
    assert house.newest("mini", SpecifierSet(), STACK, {"python": "cp312"}) is None


def test_occupants_are_of_the_same_release_and_archs(house: Wheelhouse, entry: Entry) -> None:
    codes = [DeviceCode.parse("sm_90")]
    assert list(house.occupants("mini", "1.0", codes, STACK)) == [entry]
    assert list(house.occupants("mini", "1.1", codes, STACK)) == []
    assert list(house.occupants("mini", "1.0", [DeviceCode.parse("sm_80")], STACK)) == []


def test_difference_names_what_changed(house: Wheelhouse, entry: Entry) -> None:
    same = entry.record.inputs
    assert house.difference(entry.wheel, same) == "the same inputs, other bytes"
    assert house.difference(entry.wheel, {**same, "nvcc": "13.1"}) == "nvcc was absent, is 13.1"
    record_path(entry.wheel).unlink()
    assert "is missing" in house.difference(entry.wheel, same)


def test_a_wheelhouse_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    wheel, record = make(tmp_path / "made")
    with pytest.raises(UsageError):
        Wheelhouse(tmp_path / "file").publish(wheel, record, STACK)
