from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from archpatch.storage import cache_folder as module
from archpatch.storage.cache_folder import cache_folder


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"ARCHPATCH_CACHE": "/T/c", "XDG_CACHE_HOME": "/T/x", "HOME": "/T/h"}, "/T/c"),
        ({"XDG_CACHE_HOME": "/T/x", "HOME": "/T/h"}, "/T/x/archpatch"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/T/h"}, "/T/h/.cache/archpatch"),
        ({"ARCHPATCH_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/T/h"}, "/T/h/.cache/archpatch"),
    ],
)
def test_the_first_that_is_set(environ: Mapping[str, str], expected: str, tmp_path: Path) -> None:
    here = {name: value.replace("/T", str(tmp_path)) for name, value in environ.items()}
    assert cache_folder(here) == Path(expected.replace("/T", str(tmp_path)))


def test_a_home_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "home").touch()
    folder = cache_folder({"HOME": str(tmp_path / "home" / "below a file")})
    assert folder.parent == tmp_path
    assert folder.is_dir()
    assert folder == cache_folder({"HOME": str(tmp_path / "home")})


def test_no_home_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module.Path, "home", no_home)
    assert cache_folder({}).parent == tmp_path


def test_a_folder_that_another_user_prepared_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environ = {"HOME": "/dev/null/home"}
    usual = cache_folder(environ)
    usual.rmdir()
    (tmp_path / "theirs").mkdir()
    usual.symlink_to(tmp_path / "theirs")
    other = cache_folder(environ)
    assert other.parent == tmp_path
    assert other.resolve() not in (usual, tmp_path / "theirs")


def test_a_file_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environ = {"HOME": "/dev/null/home"}
    usual = cache_folder(environ)
    usual.rmdir()
    usual.touch()
    assert cache_folder(environ).is_dir()
