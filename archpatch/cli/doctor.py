"""`archpatch doctor`: what this machine has, what a build lacks and how to get it, and which setting won."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from archpatch.cli.options import (
    asked_from,
    build_options,
    json_option,
    matching_options,
    offline_option,
    python_option,
    toolkit_option,
    wheelhouse_option,
)
from archpatch.cli.settings import Settings, origin
from archpatch.cli.show import print_json, print_table

if TYPE_CHECKING:
    from archpatch.builder.asked import Asked
    from archpatch.builder.bench import Bench
    from archpatch.builder.gpus import DetectedGpu
    from archpatch.builder.toolchain import Finding, Needs
    from archpatch.errors import UsageError

_SETTINGS = (
    *("on_missing", "strict", "allow_known_bad", "python", "toolkit", "wheelhouse", "offline"),
    *("replace", "local_version", "compress_mode", "lineinfo", "max_jobs"),
)
_STYLES = {"ok": "green", "warning": "yellow", "failed": "red"}


@click.command("doctor")
@matching_options
@python_option
@toolkit_option
@wheelhouse_option
@offline_option
@build_options
@json_option
@click.pass_context
def command(ctx: click.Context, /, as_json: bool, **options: Any) -> int:
    """Show what a build has here and what it lacks, and where each setting comes from; exit 1 if it could not start."""
    from archpatch.builder.bench import look
    from archpatch.builder.gpus import visible_gpus
    from archpatch.builder.interpreter import find_python

    bench = look(find_python(options["python"]), options["toolkit"], os.environ, may_fetch=False)
    asked = _asked(ctx)
    findings = bench.findings(_needs(asked))
    gpus = visible_gpus(os.environ)
    settings = [_request_row(asked), *_settings(ctx)]
    if as_json:
        print_json("doctor", _to_json(bench, findings, gpus, settings))
    else:
        _print(bench, findings, gpus, settings)
    return int(not all(finding.ok for finding in findings) or asked_wrongly(asked))


def _asked(ctx: click.Context) -> Asked | UsageError:
    """Return what a build would be for, or why that cannot be told; asking nothing is no mistake here."""
    from archpatch.errors import UsageError

    try:
        return asked_from(ctx, use_driver=False)
    except UsageError as error:
        return error


def _needs(asked: Asked | UsageError) -> Needs:
    """Return what a build for the request would need, as `build` does."""
    from archpatch.arch.arch import ArchRequest, Pair
    from archpatch.arch.gpu import GpuRequest
    from archpatch.builder.asked import Asked
    from archpatch.builder.toolchain import Needs

    request = asked.request if isinstance(asked, Asked) else None
    return Needs(
        requirements=("setuptools", "wheel"),
        pairs=tuple(map(Pair.of, request.device_code)) if isinstance(request, ArchRequest) else (),
        gpus=request.gpus if isinstance(request, GpuRequest) else (),
    )


def asked_wrongly(asked: Asked | UsageError) -> bool:
    """Tell whether a build would stop at what it is asked for."""
    return isinstance(asked, Exception)


def _request_row(asked: Asked | UsageError) -> tuple[str, str, str]:
    from archpatch.builder.asked import Asked

    if not isinstance(asked, Asked):
        return ("request", asked.message, "unusable")
    return ("request", "the visible GPUs" if asked.request is None else str(asked.request), asked.source)


def _settings(ctx: click.Context) -> list[tuple[str, str, str]]:
    """Return (setting, value, origin)."""
    settings: Settings = ctx.obj
    rows = []
    for name in _SETTINGS:
        value = ctx.params[name]
        rows.append((name.replace("_", "-"), "-" if value is None else str(value), origin(ctx, name, settings)))
    return rows


def _archs(bench: Bench) -> list[str]:
    from archpatch.errors import ToolchainError

    if isinstance(bench.toolkit_or_error, ToolchainError):
        return []
    return [str(arch) for arch in bench.toolkit.archs]


def _print(
    bench: Bench,
    findings: Sequence[Finding],
    gpus: Sequence[DetectedGpu],
    settings: Sequence[tuple[str, str, str]],
) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "what", "found", box=None, pad_edge=False, show_header=False)
    for finding in findings:
        style = _STYLES[finding.status.value]
        table.add_row(f"[{style}]{finding.status.value}[/]", finding.what, escape(finding.detail))
        if finding.remedy:
            table.add_row("", "", f"-> {escape(finding.remedy)}")
    if archs := _archs(bench):
        table.add_row("", "archs of nvcc", " ".join(archs))
    shown = "; ".join(f"{card.name} ({card.arch}, driver {card.driver})" for card in gpus)
    table.add_row("", "GPUs", shown or "none is visible: name what to build for with --gpu or --arch")
    print_table(table)
    origins = Table("setting", "value", "from", box=None, pad_edge=False)
    for row in settings:
        origins.add_row(*map(escape, row))
    click.echo()
    print_table(origins)


def _to_json(
    bench: Bench,
    findings: Sequence[Finding],
    gpus: Sequence[DetectedGpu],
    settings: Sequence[tuple[str, str, str]],
) -> dict[str, Any]:
    return {
        "findings": [
            {"what": each.what, "status": each.status.value, "detail": each.detail, "remedy": each.remedy}
            for each in findings
        ],
        "archs": _archs(bench),
        "gpus": [{"name": card.name, "arch": str(card.arch), "driver": card.driver} for card in gpus],
        "cores": bench.host.cores,
        "memory": bench.host.memory,
        "settings": [{"name": name, "value": value, "origin": origin} for name, value, origin in settings],
    }
