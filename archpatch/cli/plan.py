"""`archpatch plan`: what the wheelhouse should hold, and what each cell of it would come to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from archpatch.cli.options import (
    json_option,
    offline_option,
    option,
    policy_options,
    terms_from,
    toolkit_option,
    wheel_options,
    wheelhouse_option,
    workshop_from,
)
from archpatch.cli.results import results_table
from archpatch.cli.settings import plan_of
from archpatch.cli.show import Teller, print_json, print_table

if TYPE_CHECKING:
    from archpatch.wheelhouse.plan import Cell, Result


@click.command("plan")
@policy_options
@wheel_options
@wheelhouse_option
@toolkit_option
@offline_option
@option(
    "--format",
    "form",
    type=click.Choice(["text", "github"]),
    default="text",
    show_default=True,
    help="github: a job matrix on one line, with a cell for each wheel that is not filed.",
)
@json_option
@click.pass_context
def command(ctx: click.Context, /, form: str, as_json: bool, **_: Any) -> None:
    """Show the matrix of [tool.archpatch.plan]: what is filed, what would be built, what cannot be, and why.

    What is not filed is fetched and looked at, which takes seconds a cell; nothing is compiled.
    """
    from archpatch.pipeline import survey

    terms, workshop = terms_from(ctx), workshop_from(ctx)
    with Teller() as teller:
        results = tuple(survey(plan_of(ctx).cells, terms, workshop=workshop, listener=teller))
    if as_json:
        print_json("plan", {"wheelhouse": str(terms.wheelhouse), "cells": [result.to_json() for result in results]})
    elif form == "github":
        click.echo(json.dumps(_github(results)))
    else:
        print_table(results_table(results))


def _github(results: tuple[Result, ...]) -> dict[str, Any]:
    """Return the matrix of a GitHub job: a cell that cannot be looked at here may well be built elsewhere.

    Of cells that come to the same wheel (h100 and h200) it has the first: a refresh files the wheel for the others.
    """
    from archpatch.wheelhouse.plan import State

    cells: dict[str, Cell] = {}
    for result in results:
        if result.state in (State.BUILD, State.FAILED):
            cells.setdefault(result.fingerprint or result.cell.id, result.cell)
    return {"include": [cell.to_json() for cell in cells.values()]}
