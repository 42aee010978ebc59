"""The results in docs/benchmarks.md: how reports become sections, and that the page has those of its reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench_page import END, PAGE, START, cells, reports, updated
from measuring import SCHEMA, Comparison, Imports, Report, Side, fastest
from pages import sections

BUILD = Comparison(
    name="mini: build",
    measured=Side(name="full build", value=84.04),
    against=Side(name="archpatch", value=21.01),
    least=2.0,
    note="sm_90",
)
WHEEL = Comparison(
    name="mini: wheel",
    measured=Side(name="full wheel", value=6_000_000),
    against=Side(name="ours", value=1_500_000),
    unit="bytes",
)
KEY = Comparison(
    name="start: key",
    measured=Side(name="key", value=0.1304),
    against=Side(name="python -c pass", value=0.0103),
    figure="difference",
    most=0.15,
)
REPORT = Report(
    date="2026-11-30",
    machine={"cpu": "A Processor", "cores": 16, "memory": 128e9, "gpus": ["NVIDIA H200", "NVIDIA H200"]},
    versions={"archpatch": "0.1.0 3ad4dd1", "nvcc": "13.0.88"},
    results=(BUILD, WHEEL, KEY),
    imports=(Imports(command="key", seconds={"archpatch": 0.05, "click": 0.02, "zstandard": 0.001}),),
)
SECTION = """\
### 16 cores, A Processor, 128 GB, NVIDIA H200

2026-11-30; archpatch 0.1.0 3ad4dd1, nvcc 13.0.88.

| benchmark | measured | against | figure | limit | note |
| --- | --- | --- | --- | --- | --- |
| mini: build | full build: 84.0 s | archpatch: 21.0 s | 4.00 | at least 2.00 | sm_90 |
| mini: wheel | full wheel: 6.00 MB | ours: 1.50 MB | 4.00 |  |  |
| start: key | key: 130 ms | python -c pass: 10 ms | 120 ms more | at most 150 ms more |  |

What start-up imports, traced, beyond what Python itself does:

| command | imports, ms | by library |
| --- | --- | --- |
| `key` | 71 | archpatch 50, click 20 |"""


def page(between: str) -> str:
    return f"# Title\n\n{START}\n{between}\n{END}\n\nAfter.\n"


def test_a_report_becomes_a_section_between_the_marks() -> None:
    written = updated(page("old"), [REPORT])
    assert written == page(f"\n{SECTION}\n")
    assert updated(written, [REPORT]) == written


def test_each_report_is_a_section_in_order() -> None:
    other = replace(REPORT, machine={**REPORT.machine, "cores": 2, "gpus": []}, imports=())
    written = updated(page(""), [other, REPORT])
    assert [line for line in written.splitlines() if line.startswith("###")] == [
        "### 2 cores, A Processor, 128 GB",
        "### 16 cores, A Processor, 128 GB, NVIDIA H200",
    ]


@pytest.mark.parametrize("without", [START, END])
def test_a_page_without_a_mark_is_refused(without: str) -> None:
    with pytest.raises(AssertionError, match="the page has no line"):
        updated(page("").replace(without, ""), [REPORT])


@pytest.mark.parametrize(
    ("value", "most", "least", "holds"),
    [
        (2.0, None, None, True),
        (2.0, 2.0, None, True),
        (2.1, 2.0, None, False),
        (2.0, None, 2.0, True),
        (1.9, None, 2.0, False),
        (0.1, 0.0, None, False),
    ],
)
def test_limits(value: float, most: float | None, least: float | None, holds: object) -> None:
    against = Side(name="b", value=1.0)
    ratio = Comparison(name="x", measured=Side(name="a", value=value), against=against, most=most, least=least)
    assert ratio.holds is holds
    above = replace(ratio, figure="difference", measured=Side(name="a", value=value + 1.0))
    assert above.value == pytest.approx(value)


def test_a_limit_is_shown_in_the_figure_s_own_unit() -> None:
    assert cells(replace(KEY, most=1.0, least=0.01))[3:5] == ("120 ms more", "at most 1.0 s more, at least 10 ms more")


def test_a_small_ratio_is_not_rounded_away() -> None:
    assert cells(replace(BUILD, measured=Side(name="slim", value=0.044)))[3] == "0.002"


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bench.json"
    REPORT.write(path)
    assert Report.read(path) == REPORT
    content = json.loads(path.read_text())
    assert content["schema"] == SCHEMA
    assert [result["value"] for result in content["results"]] == pytest.approx([4, 4, 0.1201], abs=1e-3)


def test_the_fastest_round_counts_and_rounds_are_interleaved() -> None:
    ticks = iter([0, 5, 5, 6, 6, 8, 8, 11])
    ran: list[str] = []
    sides = fastest(
        {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, rounds=2, clock=lambda: float(next(ticks))
    )
    assert ran == ["a", "b", "a", "b"]
    assert sides == {"a": Side(name="a", value=2.0), "b": Side(name="b", value=1.0)}


def test_the_page_has_the_results_of_its_reports() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == updated(text, map(Report.read, reports())), "run python tests/support/bench_page.py"


def test_every_prediction_says_what_came_of_it() -> None:
    (predictions,) = (section for section in sections(PAGE) if section.title == "Predictions")
    (table,) = predictions.tables
    assert table.head == ("optimisation", "predicted", "what came of it")
    assert table.rows
    assert all(cell.text for row in table.rows for cell in row)
