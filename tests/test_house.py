from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from records import STACK, make

from archpatch.arch.arch import DeviceCode
from archpatch.errors import UsageError, WheelhouseConflict, WheelhouseDamaged
from archpatch.storage.sealed import seal, unseal
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.layout import Stack
from archpatch.wheelhouse.record import Record, record_path

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


def test_a_wheelhouse_behind_a_link_has_one_path_for_each_wheel(
    house: Wheelhouse, entry: Entry, tmp_path: Path
) -> None:
    house.offer(entry, "h200", STACK)
    (tmp_path / "link").symlink_to(house.root)
    behind = Wheelhouse(tmp_path / "link")
    assert list(behind.entries_for("h200")) == list(behind.entries())
    assert [behind.gpus_of(each) for each in behind.entries()] == [("h200",)]


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


def test_an_older_link_goes_also_when_the_process_that_placed_the_newer_one_was_killed(
    house: Wheelhouse, entry: Entry, tmp_path: Path
) -> None:
    older = house.offer(entry, "l4", STACK)
    target = older.readlink()
    newer = house.publish(*make(tmp_path / "made", codes="sm_89"), STACK)
    house.offer(newer, "l4", STACK)
    older.symlink_to(target)
    assert house.offer(newer, "l4", STACK).name == newer.wheel.name
    assert [link.name for link in house.links("l4")] == [newer.wheel.name]


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


def leave_as_killed(house: Wheelhouse, entry: Entry) -> list[Path]:
    """Make what processes leave that are killed while they publish, link, and note, and while they hold a lock."""
    link = house.offer(entry, "h200", STACK)
    house.remember("other", entry, {})
    half = entry.wheel.parent / ".staging" / entry.wheel.name
    left = [
        half,
        entry.wheel.with_name("orphan-1.0-cp311-cp311-linux_x86_64.whl.json"),
        link.with_name(f".{link.name}.tmp"),
        link.with_name(".index.html.12345678.tmp"),
        house.root / "index" / ".index.html.12345678.tmp",
        house.root / "index" / "h200" / ".index.json.12345678.tmp",
        house.root / ".archpatch" / "memo" / ".key.json.12345678.tmp",
        house.root / ".archpatch" / "locks" / "dead.lock",
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    return left


def test_what_killed_processes_left_is_not_seen(house: Wheelhouse, entry: Entry) -> None:
    leave_as_killed(house, entry)
    assert [each.wheel for each in house.entries()] == [entry.wheel]
    assert [each.wheel for each in house.entries_for("h200")] == [entry.wheel]
    assert [memo.name for memo in house.memos()] == ["other.json"]


@pytest.mark.parametrize("write", ["publish", "offer", "remember"])
def test_whoever_writes_sweeps_what_killed_processes_left(
    house: Wheelhouse, entry: Entry, tmp_path: Path, write: str
) -> None:
    left = leave_as_killed(house, entry)
    {
        "publish": lambda: house.publish(*make(tmp_path / "made", codes="sm_80"), STACK),
        "offer": lambda: house.offer(entry, "l4", STACK),
        "remember": lambda: house.remember("key", entry, {}),
    }[write]()
    assert not any(path.exists() for path in left)
    assert house.entry(entry.wheel) == entry


def test_what_was_replaced_since_is_not_removed(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    house.offer(entry, "h200", STACK)
    new = house.publish(*make(tmp_path / "made", content=b"other", torch="2.15.0+cu130"), STACK)
    house.remove(entry)
    assert list(house.entries_for("h200")) == [new]
    house.remove(new)
    house.remove(new)
    assert listing(house) == []


def test_what_was_removed_since_is_not_linked(house: Wheelhouse, entry: Entry) -> None:
    house.remove(entry)
    with pytest.raises(WheelhouseDamaged, match="is missing"):
        house.offer(entry, "h200", STACK)
    assert listing(house) == []


def test_a_lock_that_is_held_is_not_swept(house: Wheelhouse, entry: Entry) -> None:
    locks = house.root / ".archpatch" / "locks"
    with house.lock("held"):
        house.remember("key", entry, {})
        assert sorted(path.name for path in locks.iterdir()) == ["held.lock", "publish.lock"]
    house.remember("key", entry, {})
    assert [path.name for path in locks.iterdir()] == ["publish.lock"]


def test_whoever_waits_for_a_lock_is_told_and_gets_it(house: Wheelhouse) -> None:
    said: list[str] = []
    with ExitStack() as first:
        first.enter_context(house.lock("name"))
        with house.lock("name", waiting=lambda: (said.append("waits"), first.close())[0]):
            assert said == ["waits"]


def test_until_the_new_wheel_is_there_the_old_one_is_not_seen_with_its_record(
    house: Wheelhouse, entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process can be killed between the two renames of a replacement."""
    seen: list[list[Entry]] = []
    rename = Path.replace

    def look_and_rename(path: Path, target: Path) -> Path:
        seen.append(list(house.entries()))
        renamed = rename(path, target)
        assert all(each.record == Record.read(record_path(each.wheel)) for each in house.entries())
        seen.append(list(house.entries()))
        return renamed

    monkeypatch.setattr(Path, "replace", look_and_rename)
    new = house.publish(*make(tmp_path / "made", content=b"other", torch="2.15.0+cu130"), STACK)
    # The first rename is that of the staged record's own temporary file.
    assert seen == [[entry], [entry], [], [], [], [new]]


def test_a_damaged_wheel_is_no_conflict(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    wheel, record = make(tmp_path / "made", content=b"other", torch="2.15.0+cu130")
    entry.wheel.write_bytes(b"WHEEL")
    assert house.publish(wheel, record, STACK, replace=False).record == record


def test_the_same_wheel_again_is_no_conflict(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    assert house.publish(*make(tmp_path / "made"), STACK, replace=False) == entry


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


@pytest.mark.parametrize(
    ("old", "new"), [('"mini"', '"maxi"'), ("sm_90", "sm_80"), ('"compile": 1.0', '"compile": 2.0'), ("torch", "flax")]
)
def test_an_edited_record_is_not_served(house: Wheelhouse, entry: Entry, old: str, new: str) -> None:
    path = record_path(entry.wheel)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert list(house.entries()) == []
    with pytest.raises(WheelhouseDamaged, match="was changed after it was written"):
        house.entry(entry.wheel)


def test_a_record_of_another_schema_is_not_served(house: Wheelhouse, entry: Entry) -> None:
    path = record_path(entry.wheel)
    content = unseal(path.read_text())
    path.write_text(json.dumps(seal({**content, "schema": "archpatch.record/2"})))
    with pytest.raises(WheelhouseDamaged, match=r"is no record of schema archpatch\.record/1"):
        house.entry(entry.wheel)


def test_swapped_records_are_not_served(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    other = house.publish(*make(tmp_path / "made", version="2.0"), STACK)
    one, two = record_path(entry.wheel), record_path(other.wheel)
    texts = one.read_text(), two.read_text()
    one.write_text(texts[1])
    two.write_text(texts[0])
    assert list(house.entries()) == []
    assert house.find(entry.record.fingerprint) is None


@pytest.mark.parametrize("content", [b"whee", b"wheels", b""])
def test_a_wheel_of_another_size_is_not_listed(house: Wheelhouse, entry: Entry, content: bytes) -> None:
    entry.wheel.write_bytes(content)
    assert list(house.entries()) == []


def test_a_link_in_a_wheels_place_is_not_served(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    house.remember("key", entry, {})
    entry.wheel.rename(tmp_path / entry.wheel.name)
    entry.wheel.symlink_to(tmp_path / entry.wheel.name)
    assert list(house.entries()) == []
    assert house.find(entry.record.fingerprint) is None
    assert house.recall("key", {}) is None
    assert list(house.wheels()) == [entry.wheel]


def test_a_hard_link_is_a_wheel_until_it_is_changed_elsewhere(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    """Copies of a wheelhouse are made with hard links (`cp -al`); publishing never writes through one."""
    copy = tmp_path / "copy.whl"
    copy.hardlink_to(entry.wheel)
    assert house.find(entry.record.fingerprint) == entry
    copy.write_bytes(b"WHEEL")
    assert house.find(entry.record.fingerprint) is None
    house.publish(*make(tmp_path / "made"), STACK)
    assert house.find(entry.record.fingerprint) == entry
    assert copy.read_bytes() == b"WHEEL"


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
    elsewhere = entry.wheel.parent.with_name("torch2.13.0-cu130") / entry.wheel.name
    elsewhere.parent.mkdir()
    for path in (entry.wheel, record_path(entry.wheel)):
        elsewhere.with_name(path.name).write_bytes(path.read_bytes())
    for target in (tmp_path / "nowhere.whl", tmp_path / "made" / entry.wheel.name, entry.wheel.parent, link, elsewhere):
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


def test_the_memo_of_another_request_is_no_answer(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    house.remember("other", house.publish(*make(tmp_path / "made", codes="sm_80"), STACK), {})
    house.remember("key", entry, {})
    memo = house.root / ".archpatch" / "memo"
    (memo / "key.json").write_bytes((memo / "other.json").read_bytes())
    assert house.recall("key", {}) is None
    with pytest.raises(WheelhouseDamaged, match="it is another request's"):
        house.note(memo / "key.json")


def test_an_edited_memo_is_no_answer(house: Wheelhouse, entry: Entry, tmp_path: Path) -> None:
    other = house.publish(*make(tmp_path / "made", codes="sm_80"), STACK)
    house.remember("key", entry, {})
    memo = house.root / ".archpatch" / "memo" / "key.json"
    edited = memo.read_text().replace(entry.record.fingerprint, other.record.fingerprint)
    memo.write_text(edited.replace("sm90", "sm80"))
    assert house.recall("key", {}) is None


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
