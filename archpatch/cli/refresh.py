"""`archpatch refresh`: make the wheelhouse what the plan says, or build single cells of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from archpatch.cli.options import (
    build_options,
    json_option,
    offline_option,
    option,
    policy_options,
    terms_from,
    toolkit_option,
    wheelhouse_option,
    workshop_from,
)
from archpatch.cli.results import markdown, results_table, totals
from archpatch.cli.settings import plan_of
from archpatch.cli.show import Teller, json_text, print_json, print_table, warn

if TYPE_CHECKING:
    from archpatch.wheelhouse.plan import Cell, Result
    from archpatch.wheelhouse.prune import Surplus


@dataclass(slots=True)
class _Report:
    """What came of a refresh so far; it is not `complete` where something ended it before its end."""

    wheelhouse: Path
    complete: bool = False
    results: list[Result] = field(default_factory=list)
    pruned: list[Surplus] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "wheelhouse": str(self.wheelhouse),
            "complete": self.complete,
            "cells": [result.to_json() for result in self.results],
            "pruned": [
                {"wheel": str(item.entry.wheel), "size": item.entry.record.size, "reason": item.reason}
                for item in self.pruned
            ],
        }


@click.command("refresh")
@policy_options
@wheelhouse_option
@toolkit_option
@offline_option
@build_options
@option("--cell", "ids", multiple=True, metavar="ID", help="Only this cell, as plan names it. Repeatable.")
@option("--dry-run", is_flag=True, help="Say what would be built and pruned, and do neither.")
@option("--report", type=click.Path(path_type=Path), help="Write what came of it to this JSON file.")
@option("--summary", type=click.Path(path_type=Path), help="Append a Markdown table: a CI's step summary.")
@json_option
@click.pass_context
def command(ctx: click.Context, /, ids: tuple[str, ...], dry_run: bool, as_json: bool, **options: Any) -> int:
    """Build what the plan names and the wheelhouse lacks, go on after a failure, and prune by the plan's rules.

    Exit status 4 where a build failed, else 3 where a package has nothing for an arch or GPU type, else 0. With --cell
    nothing is pruned.
    """
    from archpatch.pipeline import prune, refresh, survey

    plan, terms, workshop = plan_of(ctx), terms_from(ctx), workshop_from(ctx)
    cells = _chosen(plan.cells, ids)
    report, files = _Report(terms.wheelhouse), (options["report"], options["summary"])
    _check(*files)
    try:
        with Teller() as teller:
            carry_out = survey if dry_run else refresh
            report.results += carry_out(cells, terms, workshop=workshop, listener=teller)
            if not ids:
                report.pruned += prune(plan.prune, report.results, terms, dry_run=dry_run)
        report.complete = True
    finally:
        # However the end came about: what is built is built.
        unwritten = _write(report, *files)
    if as_json:
        print_json("refresh", report.to_json())
    else:
        print_table(results_table(report.results))
        for item in report.pruned:
            click.echo(f"{'would go' if dry_run else 'gone'}: {item.entry.wheel}: {item.reason}")
    click.echo(f"archpatch: {terms.wheelhouse}: {totals(report.results)}", err=True)
    return _status(report.results) or unwritten


def _chosen(cells: Sequence[Cell], ids: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells with these IDs, in the order of the plan; all without any."""
    from archpatch.errors import UsageError

    unknown = sorted(set(ids) - {cell.id for cell in cells})
    if unknown:
        known = "\n".join(cell.id for cell in cells)
        raise UsageError(f"--cell {unknown[0]}: the plan has no such cell", remedy=f"It has:\n{known}")
    return tuple(cell for cell in cells if not ids or cell.id in ids)


def _check(file: Path | None, summary: Path | None) -> None:
    """Raise `UsageError` where a file could not be written in the end, before hours of work."""
    from archpatch.storage.atomic import check_writable

    if file is not None:
        check_writable(file)
    # What is there is appended to, whatever its folder allows.
    if summary is not None and not (summary.exists() and not summary.is_dir()):
        check_writable(summary)


def _write(report: _Report, file: Path | None, summary: Path | None) -> int:
    """Write the report and the summary; return the exit status of what fails, else 0."""
    from archpatch.storage.atomic import disk_errors, write_text

    failures: list[int] = []
    if file is not None:
        with _telling(failures):
            write_text(file, json_text("refresh", report.to_json()) + "\n")
    if summary is not None:
        title = "archpatch refresh" if report.complete else "archpatch refresh, interrupted"
        with _telling(failures), disk_errors(summary), summary.open("a", encoding="utf-8") as stream:
            stream.write(markdown(title, report.results, report.pruned))
    return max(failures, default=0)


@contextmanager
def _telling(failures: list[int]) -> Iterator[None]:
    """Tell of what cannot be written and note its exit status: it must not hide what came of the refresh."""
    from archpatch.errors import ArchpatchError, UsageError

    try:
        yield
    except (ArchpatchError, OSError) as error:
        warn(str(error))
        failures.append(error.exit_status if isinstance(error, ArchpatchError) else UsageError.exit_status)


def _status(results: Sequence[Result]) -> int:
    from archpatch.errors import BuildFailed, NoMatchingArch
    from archpatch.wheelhouse.plan import State

    states = {result.state for result in results}
    if State.FAILED in states:
        return BuildFailed.exit_status
    return NoMatchingArch.exit_status if states & {State.REFUSED, State.KNOWN_BAD} else 0
