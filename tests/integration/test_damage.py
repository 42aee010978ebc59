"""Wheelhouses that were damaged, or are full or closed: verify says so, nothing wrong is served, a rerun mends it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commandline import FIXTURES, CommandLine, make_sdist, only_index
from publishing import assert_intact, files, publish, stack_of

from archpatch.errors import DiskFull, UsageError
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.record import record_path
from archpatch.wheelhouse.verify import verify
from fixtures import mounted

pytestmark = pytest.mark.integration

BUILD = ("build", "archpatch_mini==0.1.0", "--gpu", "h200", "--json")
OTHER = ("build", "archpatch_mini==0.1.0", "--gpu", "a100", "--json")


@dataclasses.dataclass(frozen=True)
class Place:
    """A command line whose wheelhouse holds what `BUILD` and `OTHER` come to."""

    archpatch: CommandLine
    environ: dict[str, str]

    @property
    def house(self) -> Wheelhouse:
        return Wheelhouse(self.archpatch.wheelhouse)

    @property
    def wheel(self) -> Path:
        (entry,) = self.house.entries_for("h200")
        return entry.wheel

    @property
    def other(self) -> Path:
        (entry,) = self.house.entries_for("a100")
        return entry.wheel

    @property
    def link(self) -> Path:
        (link,) = self.house.links("h200")
        return link

    @property
    def memo(self) -> Path:
        return self._memo_of(self.wheel)

    @property
    def other_memo(self) -> Path:
        return self._memo_of(self.other)

    def _memo_of(self, wheel: Path) -> Path:
        (memo,) = (memo for memo in self.house.memos() if self.house.note(memo)["wheel"].endswith(wheel.name))
        return memo

    def build(self, *command: str) -> bool:
        """Run `BUILD` or `OTHER`; return whether its wheel was there."""
        answer = self.archpatch(*(command or BUILD), environ=self.environ)
        assert answer.status == 0, answer.stderr
        return bool(answer.json["wheels"][0]["hit"])

    def faults(self) -> set[Path]:
        """Return the paths that the command `wheelhouse verify` names; its exit status has to fit."""
        answer = self.archpatch("wheelhouse", "verify", "--json")
        found = {Path(fault["path"]) for fault in answer.json["faults"]}
        assert answer.status == bool(found)
        return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("whole")
    make_sdist(FIXTURES / "mini", folder / "index")
    place = Place(CommandLine(folder), {**only_index(folder / "index"), "ARCHPATCH_CACHE": str(folder / "cache")})
    assert [place.build(*command) for command in (BUILD, OTHER, BUILD)] == [False, False, True]
    return place


@pytest.fixture
def place(whole: Place, tmp_path: Path) -> Place:
    """A copy of a whole wheelhouse, to damage."""
    copy = Place(CommandLine(tmp_path), whole.environ)
    shutil.copytree(whole.house.root, copy.house.root, symlinks=True)
    return copy


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes(), other.read_bytes()
    one.write_bytes(content[1])
    other.write_bytes(content[0])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Change one bit and leave the size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def replace_by_link(path: Path, elsewhere: Path) -> None:
    shutil.copyfile(path, elsewhere / path.name)
    path.unlink()
    path.symlink_to(elsewhere / path.name)


def change_through_hard_link(path: Path, elsewhere: Path) -> None:
    (elsewhere / path.name).hardlink_to(path)
    flip(elsewhere / path.name)


OF_THE_WHEEL: dict[str, Callable[[Place], object]] = {
    "cut wheel": lambda place: cut(place.wheel),
    "edited wheel": lambda place: flip(place.wheel),
    "wheel changed through a hard link": lambda place: change_through_hard_link(place.wheel, place.archpatch.folder),
    "wheel replaced by a link": lambda place: replace_by_link(place.wheel, place.archpatch.folder),
    "cut record": lambda place: cut(record_path(place.wheel)),
    "edited record": lambda place: edit(record_path(place.wheel), '"sm_90"', '"sm_80"'),
    "record of another wheel": lambda place: shutil.copyfile(record_path(place.other), record_path(place.wheel)),
}


@pytest.mark.parametrize("damage", OF_THE_WHEEL)
def test_a_damaged_wheel_is_found_not_served_and_built_again(place: Place, damage: str) -> None:
    wheel, other, fingerprint = place.wheel, place.other, place.house.entry(place.wheel).record.fingerprint
    key, left = place.memo.stem, files(place.house)
    OF_THE_WHEEL[damage](place)
    assert wheel in place.faults()
    assert place.house.find(fingerprint) is None
    assert place.house.recall(key, {}) is None
    if damage not in ("edited wheel", "wheel changed through a hard link"):
        # The bytes are not read for these; a hash goes with each line of requirements.
        listed = place.archpatch("wheelhouse", "list", "--json").json["wheels"]
        assert [each["wheel"] for each in listed] == [str(other)]
        assert place.archpatch("wheelhouse", "requirements", "--gpu", "h200").status == 5
    assert place.build() is False
    assert place.faults() == set()
    assert not wheel.is_symlink()
    assert files(place.house) == left
    assert place.house.find(fingerprint) == place.house.recall(key, {}) == place.house.entry(wheel)


def test_two_that_were_swapped_are_both_found_and_built_again(place: Place) -> None:
    pair = (place.wheel, place.other)
    swap(*map(record_path, pair))
    assert place.faults() >= set(pair)
    assert list(place.house.entries()) == []
    assert [place.build(), place.build(*OTHER)] == [False, False]
    assert place.faults() == set()


def relink(link: Path, target: Path | str) -> None:
    link.unlink()
    link.symlink_to(target)


OF_THE_LINK: dict[str, Callable[[Place], object]] = {
    "outside": lambda place: replace_by_link(place.link, place.archpatch.folder),
    "nowhere": lambda place: relink(place.link, "nowhere.whl"),
    "itself": lambda place: relink(place.link, place.link.name),
    "a folder": lambda place: relink(place.link, place.wheel.parent),
    "another wheel": lambda place: relink(place.link, place.other),
    "a copy": lambda place: shutil.move(shutil.copyfile(place.wheel, place.archpatch.folder / "copy"), place.link),
}


@pytest.mark.parametrize("damage", OF_THE_LINK)
def test_a_damaged_link_is_found_not_followed_and_placed_again(place: Place, damage: str) -> None:
    link, wheel = place.link, place.wheel
    OF_THE_LINK[damage](place)
    assert place.faults() == {link}
    assert list(place.house.entries_for("h200")) == []
    assert place.build() is True
    assert place.faults() == set()
    assert place.wheel == wheel


OF_THE_MEMO: dict[str, Callable[[Place], object]] = {
    "cut": lambda place: cut(place.memo),
    "empty": lambda place: place.memo.write_bytes(b""),
    "edited": lambda place: edit(place.memo, "sm90", "sm80"),
    "another request's": lambda place: shutil.copyfile(place.other_memo, place.memo),
}


@pytest.mark.parametrize("damage", OF_THE_MEMO)
def test_a_damaged_memo_is_found_not_believed_and_written_again(place: Place, damage: str) -> None:
    memo, wheel = place.memo, place.wheel
    OF_THE_MEMO[damage](place)
    assert place.faults() == {memo}
    assert place.house.recall(memo.stem, {}) is None
    # What setup.py comes to is looked at anew, and the wheel found by it.
    assert place.build() is True
    assert place.faults() == set()
    found = place.house.recall(memo.stem, {})
    assert found is not None
    assert found.wheel == wheel


def test_what_a_lock_file_holds_does_not_matter(place: Place) -> None:
    locks = place.house.root / ".archpatch" / "locks"
    for name in (
        "publish.lock",
        f"{place.memo.stem}.lock",
        f"{place.house.entry(place.wheel).record.fingerprint}.lock",
    ):
        (locks / name).write_text("pid 1, host nowhere\n" * 1000)
    cut(place.wheel)
    assert place.build() is False
    assert place.faults() == set()


# --- full and closed disks -----------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MB and 100 files."""
    with mounted(tmp_path / "disk", "size=16m,nr_inodes=100"):
        yield tmp_path / "disk"


@contextlib.contextmanager
def full(disk: Path, *, of: str) -> Iterator[None]:
    """Leave no byte, or no file, on the disk."""
    fillers = disk / "fillers"
    fillers.mkdir()
    with contextlib.suppress(OSError), (fillers / "one").open("wb", buffering=0) as file:
        while of == "bytes":
            file.write(bytes(1024))
    with contextlib.suppress(OSError):
        for number in itertools.count() if of == "files" else ():
            (fillers / str(number)).touch()
    try:
        yield
    finally:
        shutil.rmtree(fillers)


@pytest.mark.parametrize("of", ["bytes", "files"])
@pytest.mark.parametrize("step", ["publish", "remember", "offer"])
def test_a_disk_that_is_full_is_told_and_the_step_can_be_had_again(
    built: tuple[Entry, ...], disk: Path, step: str, of: str
) -> None:
    first, other, third = built
    house = Wheelhouse(disk / "house")
    # The locks are there: those of a disk that was full from the start are what is told first.
    publish(house, other)
    entry = house.publish(first.wheel, first.record, stack_of(first)) if step != "publish" else first
    steps: dict[str, Callable[[], object]] = {
        "publish": lambda: house.publish(first.wheel, first.record, stack_of(first)),
        "remember": lambda: house.remember(first.record.fingerprint, entry, {}),
        "offer": lambda: house.offer(entry, "h100", stack_of(first)),
    }
    with full(disk, of=of):
        # A link takes no bytes on this kind of disk.
        with contextlib.nullcontext() if (step, of) == ("offer", "bytes") else pytest.raises(DiskFull):
            steps[step]()
        assert_intact(house, *built)
        assert [name for name in files(house) if name.endswith(".tmp") or ".staging" in name] == []
    steps[step]()
    publish(house, first, third)
    assert_intact(house, *built)
    assert verify(house) == ()
    assert {entry.record.fingerprint for entry in house.entries()} == {
        each.record.fingerprint for each in (first, third)
    }


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def test_a_wheelhouse_that_may_only_be_read_is_read(whole: Place, disk: Path, tmp_path: Path) -> None:
    shutil.copytree(whole.house.root, disk / "house", symlinks=True)
    (tmp_path / "wheelhouse").symlink_to(disk / "house")
    cache = tmp_path / "cache"
    place = Place(CommandLine(tmp_path), {**whole.environ, "ARCHPATCH_CACHE": str(cache)})
    remount(disk, "ro")
    try:
        assert place.faults() == set()
        assert len(place.archpatch("wheelhouse", "list", "--json").json["wheels"]) == 2
        assert place.build() is True
        for command in (("--arch", "7.5"), ("--gpu", "h100")):
            answer = place.archpatch("build", "archpatch_mini==0.1.0", *command, environ=place.environ)
            assert answer.status == 2
            assert "may not be written: Read-only file system" in answer.stderr
        # It was known before anything was fetched or run.
        assert not (cache / "logs").exists()
        with pytest.raises(UsageError):
            place.house.remember("key", place.house.entry(place.wheel), {})
    finally:
        remount(disk, "rw")
    assert place.build("build", "archpatch_mini==0.1.0", "--gpu", "h100", "--json") is True
    assert place.faults() == set()


# --- clocks --------------------------------------------------------------------------------------


#: Seconds from 1970 to some day in 2099.
LATER = 129 * 365 * 86400


def test_a_clock_that_was_set_back_decides_nothing(place: Place) -> None:
    """All that it shows in are times in the future, of files and in records."""
    for wheel in (place.wheel, place.other):
        record = dataclasses.replace(place.house.entry(wheel).record, created="2099-01-01T00:00:00+00:00")
        record_path(wheel).write_text(record.to_json())
    for path in place.house.root.rglob("*"):
        os.utime(path, (LATER, LATER), follow_symlinks=False)
    assert place.faults() == set()
    assert place.build() is True
    cut(place.wheel)
    assert place.build() is False
    assert place.faults() == set()
    assert str(place.wheel) == place.archpatch("wheelhouse", "path", "archpatch_mini", "--gpu", "h200").stdout.strip()


def test_sources_from_the_future_are_compiled_and_their_changes_seen(archpatch: CommandLine, mini: Path) -> None:
    for path in (mini, *mini.rglob("*")):
        os.utime(path, (LATER, LATER))
    assert archpatch("build", mini, "--arch", "9.0").record["device_code"] == ["sm_90"]
    assert archpatch("build", mini, "--arch", "9.0", "--json").json["wheels"][0]["hit"] is True
    source = mini / "csrc" / "add.cu"
    source.write_text(f"{source.read_text()}// changed\n")
    os.utime(source, (LATER, LATER))
    assert archpatch("build", mini, "--arch", "9.0", "--json").json["wheels"][0]["hit"] is False
