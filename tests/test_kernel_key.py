from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

import pytest

from archpatch.cli.main import run
from archpatch.errors import UsageError
from archpatch.kernel_cache.job_key import Job, job_key
from archpatch.kernel_cache.lane import Lane

H200 = Lane(
    gpu="h200", arch="sm90", torch="2.14.1+cu130", cuda="13.0", triton="3.8.0", python="cp311", machine="x86_64"
)
MONDAY, SUNDAY = date(2026, 11, 23), date(2026, 11, 29)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "a.py").write_text("a")
    (tmp_path / "src" / "deep" / "b.py").write_text("b")
    return tmp_path


def key(folder: Path, *globs: str, today: date = MONDAY, lane: Lane = H200, **extras: str) -> str:
    return str(job_key(Job(name="unit", sources=globs, extras=extras), lane, today=today, folder=folder))


def test_a_key_says_what_it_is_for(sources: Path) -> None:
    found = job_key(Job(name="unit", sources=("src/*.py",)), H200, today=MONDAY, folder=sources)
    lane = "archpatch-kernels-unit-h200-sm90-torch2.14.1-cu130-triton3.8.0-cp311-x86_64-"
    assert found.restore_prefixes == (f"{lane}2026-W48-", lane)
    assert re.fullmatch(re.escape(lane) + r"2026-W48-[0-9a-f]{16}", str(found))


def test_the_sources_the_week_and_the_extras_decide(sources: Path) -> None:
    first = key(sources, "src/**/*.py")
    assert key(sources, "src/**/*.py", today=SUNDAY) == first
    assert key(sources, "src/**/*.py", "src/*.py") == first  # the same files
    others = {first, key(sources, "src/*.py"), key(sources, "src/**/*.py", today=date(2026, 11, 30))}
    others.add(key(sources, "src/**/*.py", **{"extra.image": "x"}))
    (sources / "src" / "deep" / "b.py").write_text("c")
    others.add(key(sources, "src/**/*.py"))
    (sources / "src" / "deep" / "b.py").rename(sources / "src" / "deep" / "c.py")
    others.add(key(sources, "src/**/*.py"))
    assert len(others) == 6


def test_a_year_that_begins_in_the_week_of_the_last(sources: Path) -> None:
    assert "-2026-W53-" in key(sources, today=date(2027, 1, 1))


def test_a_glob_that_matches_nothing_is_named(sources: Path) -> None:
    for pattern in ("src/*.cu", "src/deep"):
        with pytest.raises(UsageError, match=re.escape(f"--sources {pattern}: no file matches")):
            key(sources, pattern)


OPTIONS = ["cache", "key", "--lane", "unit", "--gpu", "h200", "--torch", "2.14.1+cu130", "--triton", "3.8.0"]


def test_the_command(sources: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sources)
    options = [*OPTIONS, "--sources", "src/**/*.py", "--extra", "image=x=y", "--extra-file", "src/a.py"]
    assert run([*options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "archpatch.cache-key/1"
    assert {"extra.image": "x=y", "triton": "3.8.0", "arch": "sm90"}.items() <= told["inputs"].items()
    assert len(told["inputs"]["extra.file.a.py"]) == 64
    assert run(options) == 0
    assert capsys.readouterr().out == f"{told['key']}\n"
    assert run([*options, "--format", "github"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"key={told['key']}"
    assert rest == ["restore-keys<<END", *told["restore_prefixes"], "END"]


def test_the_commands_mistakes(
    sources: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sources)
    (sources / "src" / "deep" / "a.py").write_text("another")
    for more, says in (
        (["--extra", "image"], "is no NAME=VALUE"),
        (["--extra-file", str(sources / "none")], "none"),
        (["--extra-file", "src/a.py", "--extra-file", "src/deep/a.py"], "two inputs of the key are named file.a.py"),
        (["--extra", "image=x", "--extra", "image=y"], "two inputs of the key are named image"),
        (["--triton", "../../etc"], "--triton ../../etc: that is no version"),
        (["--lane", "x" * 150], "is too long"),
        (["--sources", "none/*.py"], "no file matches"),
    ):
        assert run([*OPTIONS, *more]) == 2
        assert says in capsys.readouterr().err
