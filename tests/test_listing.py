"""What lies in folders that others change meanwhile: what is gone holds nothing, and is no error."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from archpatch.builder.sdist_store import stored_sdists
from archpatch.storage.listing import below, last_written, matching


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    for name in ("a/one.whl", "b/two.whl", "b/.two.whl.tmp", ".c/three.whl", "d/deep/four.whl", "[e]/five.whl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def vanishing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Remove the folders called `name` at the moment when they are listed."""
    scandir = os.scandir

    def list_too_late(path: str | Path | int) -> object:
        if not isinstance(path, int) and Path(path).name == name:
            for file in Path(path).iterdir() if Path(path).exists() else ():
                file.unlink()
            Path(path).rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", list_too_late)


def test_what_matches_is_sorted_and_leaves_hidden_folders_out(crowded: Path) -> None:
    names = [str(path.relative_to(crowded)) for path in matching(crowded, "*/*.whl")]
    assert names == ["[e]/five.whl", "a/one.whl", "b/two.whl"]
    assert matching(crowded / "[e]", "*") == [crowded / "[e]" / "five.whl"]


def test_all_that_is_below_has_hidden_names_too(crowded: Path) -> None:
    assert sorted(below(crowded)) == sorted(crowded.rglob("*"))


def test_links_are_named_and_not_followed(crowded: Path) -> None:
    (crowded / "a" / "link").symlink_to(crowded / "d")
    assert crowded / "a" / "link" in set(below(crowded))
    assert crowded / "a" / "link" / "deep" not in set(below(crowded))


def test_a_folder_that_is_missing_holds_nothing(tmp_path: Path) -> None:
    assert matching(tmp_path / "missing", "*") == []
    assert list(below(tmp_path / "missing")) == []


def test_a_folder_that_goes_while_it_is_read_holds_nothing(crowded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vanishing(monkeypatch, "b")
    assert [path.name for path in matching(crowded, "*/*.whl")] == ["five.whl", "one.whl"]


def test_the_last_change_of_what_is_gone_is_the_oldest_of_all(crowded: Path) -> None:
    assert last_written(crowded / "missing") == 0
    assert last_written(crowded / "a" / "one.whl") == (crowded / "a" / "one.whl").stat().st_mtime_ns


def test_the_store_of_sdists_is_read_while_others_download_into_it(tmp_path: Path) -> None:
    kept = tmp_path / ("0" * 64) / "mini-1.0.tar.gz"
    kept.parent.mkdir()
    kept.touch()
    done = threading.Event()

    def download() -> None:
        while not done.is_set():
            (tmp_path / "archpatch-work-0").mkdir()
            (tmp_path / "archpatch-work-0").rmdir()

    thread = threading.Thread(target=download)
    thread.start()
    try:
        for _ in range(2000):
            assert [path for _, path in stored_sdists(tmp_path, "mini")] == [kept]
    finally:
        done.set()
        thread.join()
