"""Results of cells for people: a table at a shell, Markdown for the summary of a CI step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from archpatch.wheelhouse.plan import Result
    from archpatch.wheelhouse.prune import Surplus

__all__ = ["markdown", "results_table", "totals"]

_COLUMNS = ("package", "for", "python", "state", "device code", "MB", "s", "why")
_STYLES = {"hit": "green", "built": "green", "build": "cyan", "refused": "yellow", "known bad": "yellow"}


def results_table(results: Iterable[Result]) -> Table:
    """Return the results as a table of rich's."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(*_COLUMNS, box=None, pad_edge=False)
    for result in results:
        row = list(map(escape, _row(result)))
        style = _STYLES.get(result.state.value, "red")
        table.add_row(*row[:3], f"[{style}]{row[3]}[/]", *row[4:])
    return table


def totals(results: Iterable[Result]) -> str:
    """Return how many cells are in which state: `12 hit, 3 built`."""
    counts = Counter(result.state.value for result in results)
    return ", ".join(f"{number} {state}" for state, number in counts.items()) or "no cells"


def markdown(title: str, results: Sequence[Result], pruned: Sequence[Surplus]) -> str:
    """Return the results as a section of Markdown."""
    lines = [f"### {title}: {totals(results)}", "", *_rows(_COLUMNS, map(_row, results))]
    if pruned:
        gone = ((item.entry.wheel.name, f"{item.entry.record.size / 1e6:.1f}", item.reason) for item in pruned)
        lines += ["", *_rows(("pruned", "MB", "why"), gone)]
    return "\n".join([*lines, ""])


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def _row(result: Result) -> tuple[str, ...]:
    from archpatch.wheelhouse.plan import State

    cell, entry = result.cell, result.entry
    see = f"; log: {result.log}" if result.log is not None and result.state is State.FAILED else ""
    return (
        cell.package,
        cell.target,
        cell.python or "",
        result.state.value,
        " ".join(entry.record.device_code) if entry else "",
        f"{entry.record.size / 1e6:.1f}" if entry else "",
        f"{result.seconds:.1f}",
        result.reason + see,
    )
