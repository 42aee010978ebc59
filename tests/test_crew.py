"""Several cells at once: results in order, words by cell, and an end when it has to end."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from archpatch import pipeline
from archpatch.builder.events import Listener
from archpatch.crew import at_once, side_by_side
from archpatch.jobs import Terms, Workshop
from archpatch.wheelhouse.plan import Cell, Result, State

CELLS = tuple(Cell(package=f"p{number}==1", requirement=f"p{number}==1", gpu="h200") for number in range(6))


@dataclass
class Heard:
    """What was told."""

    words: list[str] = field(default_factory=list)
    counts: list[tuple[int, int, tuple[str, ...]]] = field(default_factory=list)

    def stage(self, text: str) -> None:
        self.words.append(text)

    def warn(self, text: str) -> None:
        self.words.append(f"warning: {text}")

    def compiling(self, done: int, total: int, files: tuple[str, ...]) -> None:
        self.counts.append((done, total, files))


def result(cell: Cell) -> Result:
    return Result(cell=cell, state=State.BUILT, reason="")


@pytest.mark.parametrize(
    ("cores", "jobs", "cells"), [(1, None, 2), (2, None, 2), (16, None, 4), (128, None, 4), (16, 1, 1), (16, 32, 4)]
)
def test_how_many_cells_are_built_at_once(cores: int, jobs: int | None, cells: int) -> None:
    assert at_once(cores, jobs) == cells


@pytest.mark.parametrize("most", [1, 3, 20])
def test_the_results_come_in_the_order_of_the_cells(most: int) -> None:
    turn = threading.Barrier(1 if most == 1 else 3, timeout=5)

    def work(cell: Cell, _: Listener) -> Result:
        turn.wait()
        return result(cell)

    assert [each.cell for each in side_by_side(work, CELLS, most=most, listener=Heard())] == list(CELLS)
    assert list(side_by_side(work, (), most=most, listener=Heard())) == []


def test_whatever_is_told_says_which_cell_it_is() -> None:
    def work(cell: Cell, listener: Listener) -> Result:
        listener.stage("fetching")
        listener.warn("old")
        return result(cell)

    heard = Heard()
    list(side_by_side(work, CELLS[:1], most=1, listener=heard))
    assert heard.words == ["p0==1@h200: fetching", "warning: p0==1@h200: old"]


def test_the_files_of_all_cells_are_counted_together_until_a_cell_is_done() -> None:
    first, second = threading.Event(), threading.Event()

    def work(cell: Cell, listener: Listener) -> Result:
        if cell == CELLS[0]:
            listener.compiling(1, 4, ("a.cu",))
            first.set()
            assert second.wait(5)
            return result(cell)
        assert first.wait(5)
        listener.compiling(2, 3, ("b.cu", "c.cu"))
        second.set()
        return result(cell)

    heard = Heard()
    list(side_by_side(work, CELLS[:2], most=2, listener=heard))
    assert heard.counts == [(1, 4, ("a.cu",)), (3, 7, ("a.cu", "b.cu", "c.cu"))]


def test_an_error_comes_where_the_result_is_asked_for_and_ends_the_others() -> None:
    ended = threading.Event()

    def work(cell: Cell, listener: Listener) -> Result:
        if cell == CELLS[0]:
            raise OSError("torn")
        try:
            while True:
                listener.compiling(0, 1, ())
        finally:
            ended.set()

    with pytest.raises(OSError, match="torn"):
        list(side_by_side(work, CELLS, most=2, listener=Heard()))
    assert ended.wait(5)


def test_what_is_done_is_told_before_what_ended_the_work() -> None:
    others = threading.Barrier(3, timeout=5)

    def work(cell: Cell, _: Listener) -> Result:
        if cell in CELLS[1:3]:
            others.wait()
            return result(cell)
        if cell == CELLS[0]:
            others.wait()
            # Until those two have set their results.
            while len([thread for thread in threading.enumerate() if "serve" in thread.name]) > 1:
                time.sleep(0.01)
            raise KeyboardInterrupt
        raise AssertionError

    told = []
    with pytest.raises(KeyboardInterrupt):
        told.extend(side_by_side(work, CELLS[:3], most=3, listener=Heard()))
    assert [each.cell for each in told] == list(CELLS[1:3])


def test_an_iteration_that_ends_early_ends_the_work() -> None:
    started, ended = threading.Event(), threading.Event()
    begun: list[Cell] = []

    def work(cell: Cell, listener: Listener) -> Result:
        begun.append(cell)
        if cell == CELLS[0]:
            assert started.wait(5)
            return result(cell)
        started.set()
        try:
            while True:
                listener.stage("working")
        finally:
            ended.set()

    results = side_by_side(work, CELLS, most=2, listener=Heard())
    assert next(results).cell == CELLS[0]
    results.close()
    assert ended.is_set()
    assert len(begun) <= 3


def test_what_the_system_refuses_one_cell_stops_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/srv/wheels")

    monkeypatch.setattr(pipeline, "open_job", refuse)
    terms, workshop = Terms(wheelhouse=tmp_path), Workshop({})
    for results in (pipeline.refresh, pipeline.survey):
        told = list(results(CELLS, terms, workshop=workshop, listener=Heard()))
        assert [(result.cell, result.state) for result in told] == [(cell, State.FAILED) for cell in CELLS]
        assert {result.reason for result in told} == {"/srv/wheels: Permission denied"}
