"""Folders for work in progress: gone at the end, swept when their owner died, left alone while it lives."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from archpatch.builder import working_folder as module
from archpatch.builder.working_folder import working_folder


def left_by_a_dead_process(parent: Path) -> Path:
    folder = parent / "archpatch-work-left"
    (folder / "tree").mkdir(parents=True)
    (folder / "tree" / "object.o").touch()
    return folder


def test_it_is_new_and_gone_at_the_end_whatever_lies_in_it(tmp_path: Path) -> None:
    with working_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
        (folder / "tree").mkdir()
        (folder / "tree" / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_it_is_in_the_temporary_folder_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with working_folder() as folder:
        assert folder.parent == tmp_path


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failure_removes_it_and_passes_on(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), working_folder(tmp_path):
        raise error
    assert list(tmp_path.iterdir()) == []


def test_one_after_another_has_the_same_place(tmp_path: Path) -> None:
    with working_folder(tmp_path) as first, working_folder(tmp_path) as beside:
        pass
    with working_folder(tmp_path) as second:
        assert second == first != beside


def test_a_parent_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), working_folder(tmp_path / "missing"):
        pass


def test_one_that_was_renamed_away_is_no_error(tmp_path: Path) -> None:
    with working_folder(tmp_path) as folder:
        folder.rename(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_what_a_dead_process_left_is_swept(tmp_path: Path) -> None:
    left = left_by_a_dead_process(tmp_path)
    with working_folder(tmp_path):
        assert not left.exists()


def test_one_that_is_made_anew_while_a_dead_one_is_swept_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, flock = left_by_a_dead_process(tmp_path), module.fcntl.flock

    def meanwhile(descriptor: int, operation: int) -> None:
        if operation & module.fcntl.LOCK_NB and left.exists():
            # Its owner ends, and another process takes the name, between the opening of the folder and its lock.
            shutil.rmtree(left)
            left.mkdir()
            (left / "alive").touch()
        flock(descriptor, operation)

    monkeypatch.setattr(module.fcntl, "flock", meanwhile)
    with working_folder(tmp_path):
        assert (left / "alive").exists()


def test_where_the_temporary_folder_is_a_link_it_is_where_that_leads(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with working_folder(tmp_path / "link") as folder:
        assert folder.parent == tmp_path / "real"


def test_what_a_live_process_works_in_is_left_alone(tmp_path: Path) -> None:
    with working_folder(tmp_path) as one, working_folder(tmp_path) as other:
        assert one != other
        assert one.is_dir()


def test_other_files_and_links_to_other_places_are_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (tmp_path / "archpatch-work-link").symlink_to(theirs)
    (tmp_path / "archpatch-work-file").touch()
    (tmp_path / "archpatch-1000").mkdir()
    with working_folder(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "archpatch-1000",
        "archpatch-work-file",
        "archpatch-work-link",
        "theirs",
    ]


def test_what_another_user_left_is_theirs_to_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = left_by_a_dead_process(tmp_path)
    monkeypatch.setattr(module.os, "getuid", lambda: left.stat().st_uid + 1)
    with working_folder(tmp_path):
        assert left.is_dir()


@pytest.mark.parametrize(("owner", "step"), [(module.os, "open"), (module.fcntl, "flock")])
def test_one_that_is_swept_before_it_is_opened_or_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, step: str
) -> None:
    swept: list[Path] = []
    original = getattr(owner, step)

    def swept_once(*arguments: object) -> object:
        for folder in tmp_path.iterdir() if not swept else ():
            swept.append(folder)
            folder.rmdir()
        return original(*arguments)

    monkeypatch.setattr(owner, step, swept_once)
    with working_folder(tmp_path) as folder:
        assert folder.is_dir()
        assert [path.exists() for path in swept] == [False]


def test_without_locks_nothing_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(module.fcntl, "flock", refuse)
    left = left_by_a_dead_process(tmp_path)
    with working_folder(tmp_path) as folder:
        assert folder.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [left.name]
