"""What is left in the temporary folder by builds that were killed, and may go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archpatch.builder.compiling import _sweep_hooks


def arguments(folder: Path, content: object) -> Path:
    """Write what pyproject_hooks writes for a call."""
    folder.mkdir()
    (folder / "input.json").write_text(json.dumps(content))
    return folder


def test_the_arguments_of_a_hook_go_with_the_build_that_called_it(tmp_path: Path) -> None:
    gone = {"wheel_directory": str(tmp_path / "archpatch-work-gone" / "wheel")}
    live = tmp_path / "archpatch-work-live" / "wheel"
    live.mkdir(parents=True)
    dead = arguments(tmp_path / "tmpdead", {"kwargs": gone})
    kept = arguments(tmp_path / "tmplive", {"kwargs": {"wheel_directory": str(live)}})
    _sweep_hooks(tmp_path)
    assert not dead.exists()
    assert kept.exists()


@pytest.mark.parametrize(
    "content",
    [
        {"kwargs": {"wheel_directory": "/somebody/elses/wheel"}},
        {"kwargs": {"wheel_directory": None}},
        {"kwargs": {}},
        {"kwargs": None},
        [],
        "text",
    ],
)
def test_what_is_not_of_a_build_of_ours_stays(tmp_path: Path, content: object) -> None:
    theirs = arguments(tmp_path / "tmptheirs", content)
    _sweep_hooks(tmp_path)
    assert theirs.exists()


def test_other_things_of_such_names_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "tmpfile").touch()
    (tmp_path / "tmpfolder" / "input.json").mkdir(parents=True)
    (tmp_path / "tmptext").mkdir()
    (tmp_path / "tmptext" / "input.json").write_bytes(b"\xff{")
    _sweep_hooks(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
