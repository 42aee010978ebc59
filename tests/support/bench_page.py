"""The results in docs/benchmarks.md: `python tests/support/bench_page.py`, from all reports in docs/benchmarks/."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from measuring import Comparison, Imports, Report

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "benchmarks.md"
#: The results stand between these two lines of the page.
START, END = "<!-- results: written by tests/support/bench_page.py -->", "<!-- end of the results -->"

_HEAD = ("benchmark", "measured", "against", "figure", "limit", "note")
_IMPORTS_HEAD = ("command", "imports, ms", "by library")
#: Libraries that take less than this share of a command's imports are not named.
_SHARE = 0.05
#: Below this a ratio is shown by its first digit that is not zero.
_SMALL = 0.1


def reports() -> list[Path]:
    """Return the reports that the page is made of."""
    return sorted((DOCS / "benchmarks").glob("*.json"))


def updated(page: str, reports: Iterable[Report]) -> str:
    """Return the page with the results of these reports, one section each, in the place of those that it has."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    assert start, f"the page has no line {START}"
    assert end, f"the page has no line {END}"
    return "\n\n".join([before + start, *map(section, reports), end + after])


def section(report: Report) -> str:
    """Return a report as a section: machine, versions and date, the comparisons, and the imports of each command."""
    named = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    parts = [f"### {_machine(report)}", f"{report.date}; {named}.", _table(_HEAD, map(cells, report.results))]
    if report.imports:
        parts.append("What start-up imports, traced, beyond what Python itself does:")
        parts.append(_table(_IMPORTS_HEAD, map(_imports, report.imports)))
    return "\n\n".join(parts)


def row(comparison: Comparison) -> str:
    """Return a comparison as one line of text."""
    name, measured, against, figure, limit, note = cells(comparison)
    return "; ".join(filter(None, (f"{name}: {measured}", against, figure, limit, note)))


def cells(comparison: Comparison) -> tuple[str, ...]:
    """Return a comparison as the cells of a row."""
    bounds = (("at most", comparison.most), ("at least", comparison.least))
    sides = (f"{side.name}: {_amount(side.value, comparison)}" for side in (comparison.measured, comparison.against))
    limits = (f"{word} {_figure(bound, comparison)}" for word, bound in bounds if bound is not None)
    return (comparison.name, *sides, _figure(comparison.value, comparison), ", ".join(limits), comparison.note)


def _machine(report: Report) -> str:
    machine = report.machine
    gpus = "".join(f", {gpu}" for gpu in dict.fromkeys(machine["gpus"]))
    return f"{machine['cores']} cores, {machine['cpu']}, {machine['memory'] / 1e9:.0f} GB{gpus}"


def _figure(value: float, comparison: Comparison) -> str:
    if comparison.figure == "difference":
        return f"{_amount(value, comparison)} more"
    return f"{value:.2f}" if value >= _SMALL else f"{value:.1g}"


def _amount(value: float, comparison: Comparison) -> str:
    if comparison.unit == "bytes":
        return f"{value / 1e6:.2f} MB"
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def _imports(imports: Imports) -> tuple[str, ...]:
    total = sum(imports.seconds.values())
    named = (f"{name} {used * 1000:.0f}" for name, used in imports.seconds.items() if used > _SHARE * total)
    return f"`{imports.command}`", f"{total * 1000:.0f}", ", ".join(named)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(_lines(head, rows))


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for texts in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(texts)} |"


if __name__ == "__main__":
    # Run as a script, this folder is the first on the path; archpatch is installed, or on it too.
    text = updated(PAGE.read_text(encoding="utf-8"), map(Report.read, map(Path, sys.argv[1:] or reports())))
    PAGE.write_text(text, encoding="utf-8")
