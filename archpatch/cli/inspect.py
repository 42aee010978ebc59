"""`archpatch inspect`: what device code a binary holds, and whether a GPU runs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from archpatch.cli.options import json_option, option
from archpatch.cli.show import print_json, print_table

if TYPE_CHECKING:
    from archpatch.arch.gpu import Gpu
    from archpatch.wheels.inspection import Inspection, RunsOn


@click.command("inspect")
@click.argument("path", required=False, type=click.Path(path_type=Path), metavar="WHEEL|SO|FOLDER")
@option("--installed", metavar="NAME", help="Look at a package that is installed in this environment.")
@option("--runs-on", metavar="GPU|native", help="Exit 1 unless this GPU type, or each GPU here, runs all of it.")
@json_option
def command(path: Path | None, installed: str | None, runs_on: str | None, as_json: bool) -> int:
    """List the device code in the ELF files of a wheel, a library, a folder or an installed package."""
    from archpatch.errors import UsageError
    from archpatch.wheels.inspection import inspect_installed, inspect_path

    if (path is None) == (installed is None):
        raise UsageError("one thing is inspected at a time", remedy="Name a path, or --installed NAME.")
    inspection = inspect_path(path) if path is not None else inspect_installed(str(installed))
    verdict = _worst(inspection, runs_on) if runs_on else None
    if as_json:
        print_json("inspect", inspection.to_json(verdict))
    else:
        _print(inspection, verdict)
    return int(verdict is not None and verdict.verdict.value == "no")


def _worst(inspection: Inspection, runs_on: str) -> RunsOn:
    """Return the verdict for the GPU type, or the worst one for the GPUs that are here."""
    from archpatch.wheels.inspection import BEST_FIRST

    return max((inspection.runs_on(gpu) for gpu in _gpus(runs_on)), key=lambda each: BEST_FIRST.index(each.verdict))


def _gpus(runs_on: str) -> tuple[Gpu, ...]:
    from archpatch.arch.gpu import find_gpu
    from archpatch.builder.asked import gpu_of
    from archpatch.builder.gpus import visible_gpus
    from archpatch.errors import UsageError

    if runs_on.lower() != "native":
        return (find_gpu(runs_on),)
    gpus = tuple(map(gpu_of, visible_gpus(os.environ)))
    if not gpus:
        raise UsageError("--runs-on native: no GPU is visible here", remedy="Name a type: --runs-on h200.")
    return gpus


def _print(inspection: Inspection, verdict: RunsOn | None) -> None:
    from rich.table import Table

    table = Table("file", "cubins", "PTX", "other", "GLIBC", "GLIBCXX", box=None, pad_edge=False)
    for file in inspection.files:
        table.add_row(
            file.path,
            " ".join(map(str, file.cubins)) or "-",
            " ".join(map(str, file.ptx)) or "-",
            " ".join(file.other) or "-",
            file.needs.glibc or "-",
            file.needs.glibcxx or "-",
        )
    print_table(table)
    if not inspection.files:
        click.echo("archpatch: no ELF file is in it; wheels in a folder are not opened, name them one by one", err=True)
    if verdict is not None:
        via = f" by {', '.join(map(str, verdict.via))}" if verdict.via else ""
        click.echo(f"runs on {verdict.gpu.name} ({verdict.gpu.arch}): {verdict.verdict.value}{via}")
