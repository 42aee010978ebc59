"""What a refresh writes of itself: where that could not be written, and after an interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archpatch.cli.main import run
from archpatch.cli.results import markdown
from archpatch.wheelhouse.plan import Cell, Result, State

CELL = Cell(package="mini==1.0", requirement="mini==1.0", gpu="l4")
FAILED = Result(cell=CELL, state=State.FAILED, reason="it cannot be")


@pytest.fixture
def _plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of one cell."""
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text('[tool.archpatch.plan]\npackages = ["mini==1.0"]\ngpu = ["l4"]\n')


def carried_out(monkeypatch: pytest.MonkeyPatch, carry_out: Callable[..., Iterator[Result]]) -> None:
    monkeypatch.setattr("archpatch.pipeline.refresh", carry_out)


@pytest.mark.usefixtures("_plan")
@pytest.mark.parametrize("option", ["--report", "--summary"])
@pytest.mark.parametrize(("path", "says"), [("none/r.json", "none/r.json has no folder"), (".", ". is a folder")])
def test_a_file_that_cannot_be_written_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, path: str, says: str
) -> None:
    carried_out(monkeypatch, lambda *_, **__: pytest.fail("it started"))
    assert run(["refresh", option, path]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.usefixtures("_plan")
@pytest.mark.parametrize(("results", "status"), [((FAILED,), 4), ((), 2)])
def test_a_file_that_cannot_be_written_in_the_end_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], results: tuple[Result, ...], status: int
) -> None:
    def carry_out(*_: object, **__: object) -> Iterator[Result]:
        Path("r.json").mkdir()
        yield from results

    carried_out(monkeypatch, carry_out)
    assert run(["refresh", "--report", "r.json", "--summary", "s.md"]) == status
    out, err = capsys.readouterr()
    assert "package" in out
    assert "r.json may not be written: Is a directory" in err
    assert Path("s.md").read_text().startswith("### archpatch refresh: ")


@pytest.mark.usefixtures("_plan")
@pytest.mark.parametrize("report", ["r.json", "gone/r.json"])
def test_an_interruption_is_told_and_keeps_its_status(monkeypatch: pytest.MonkeyPatch, report: str) -> None:
    def carry_out(*_: object, **__: object) -> Iterator[Result]:
        yield FAILED
        if report != "r.json":
            Path("gone").rmdir()
        raise SystemExit(143)

    carried_out(monkeypatch, carry_out)
    Path("gone").mkdir()
    assert run(["refresh", "--report", report, "--summary", "s.md"]) == 143
    assert Path("s.md").read_text().startswith("### archpatch refresh, interrupted: 1 failed\n")
    if report == "r.json":
        told = json.loads(Path(report).read_text())
        assert (told["complete"], len(told["cells"])) == (False, 1)


def test_a_failed_cell_names_its_log_in_the_summary() -> None:
    log = Path("/cache/logs/mini.log")
    failed = Result(cell=CELL, state=State.FAILED, reason="it cannot be", log=log)
    assert "| it cannot be; log: /cache/logs/mini.log |" in markdown("refresh", [failed], [])
