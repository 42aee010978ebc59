"""`archpatch patch`: rewrite a `setup.py` so that it compiles for what is asked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from archpatch.cli.options import (
    asked_from,
    json_option,
    matching_options,
    offline_option,
    option,
    policy_from,
    python_option,
)
from archpatch.cli.settings import Settings
from archpatch.cli.show import print_json, warn

if TYPE_CHECKING:
    from archpatch.builder.patching import Patch
    from archpatch.rewrite.outcome import Outcome


@click.command("patch")
@click.argument("target", metavar="FILE|FOLDER|NAME==VERSION")
@matching_options
@python_option
@offline_option
@option("-o", "--output", type=click.Path(path_type=Path), help="The new folder for a package that is fetched.")
@option("--sha256", metavar="HEX", help="The hash that a fetched sdist must have.")
@option("--diff", "as_diff", is_flag=True, help="Print the change as a diff, and write nothing.")
@option("--check", is_flag=True, help="Write nothing; exit 1 if the file would change.")
@option("--explain", is_flag=True, help="Print what becomes of each flag and why to stdout, and write nothing.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, target: str, as_diff: bool, check: bool, explain: bool, as_json: bool, **options: Any
) -> int:
    """Rewrite a setup.py in place, so that only the matching -gencode pairs remain.

    A folder's top-level setup.py, or a package that is fetched and unpacked into the folder -o first. Without --arch,
    --gpu and TORCH_CUDA_ARCH_LIST nothing is changed.
    """
    asked = asked_from(ctx, use_driver=False)
    for note in asked.notes:
        warn(note)
    writes = not (as_diff or check or explain)
    with _file(target, writes=writes, options=options) as file:
        patch = _patch(ctx, file, asked)
        if as_json:
            print_json("patch", _to_json(patch))
        elif as_diff:
            click.echo(patch.diff, nl=False)
        _tell(patch, to_stderr=not explain or as_json)
        patch.require()
        if writes:
            patch.write()
    return int(check and patch.outcome.outcome == "rewritten")


@contextmanager
def _file(target: str, *, writes: bool, options: dict[str, Any]) -> Iterator[Path]:
    """Yield the file to rewrite; a package is fetched into the output folder, or into a passing one."""
    from archpatch.builder.patching import setup_file
    from archpatch.builder.working_folder import working_folder
    from archpatch.errors import UsageError

    output: Path | None = options["output"]
    path = Path(target)
    if path.exists() and ("/" in target or path.name == "setup.py" or target.startswith(".") or output is None):
        if output is not None:
            raise UsageError(f"{target} is rewritten in place", remedy="Leave out -o, or copy it first.")
        yield setup_file(path)
        return
    if output is None and writes:
        raise UsageError(f"{target} is no file or folder here", remedy="To fetch a package, name its folder with -o.")
    with working_folder() as passing:
        folder = passing / "source" if output is None else output
        file = _fetched(target, folder, options)
        try:
            yield file
        except BaseException:
            # The folder is named for a patched source: one that could not be patched does not stay.
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _fetched(target: str, folder: Path, options: dict[str, Any]) -> Path:
    from archpatch.builder.requirement import parse_requirement
    from archpatch.builder.source import prepare
    from archpatch.errors import UsageError

    requirement = parse_requirement(target, sha256=options["sha256"])
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"-o {folder} is there already", remedy="Name a new folder, or remove it.")
    if folder.exists():
        folder.rmdir()
    return prepare(requirement, folder.absolute(), offline=options["offline"]).path / "setup.py"


def _patch(ctx: click.Context, file: Path, asked: Any) -> Patch:
    from archpatch.builder.interpreter import find_python, probe
    from archpatch.builder.patching import patch_file

    settings: Settings = ctx.obj
    torch = probe(find_python(ctx.params["python"])).torch
    return patch_file(
        file,
        asked=asked,
        policy=policy_from(ctx),
        allow_known_bad=ctx.params["allow_known_bad"],
        cxx_standard=torch.cxx_standard if torch else None,
        recipes=settings.recipes,
    )


def _tell(patch: Patch, *, to_stderr: bool) -> None:
    """Say what was asked by whom, and what becomes of each pair and of each place that decides at run time."""
    asked, outcome = patch.asked, patch.outcome
    if asked.request is None:
        click.echo(
            "archpatch: nothing is asked for (--arch, --gpu, TORCH_CUDA_ARCH_LIST): the file stays as it is.", err=True
        )
        return
    click.echo(f"archpatch: {patch.file}: {outcome.outcome} for {asked.request} (from {asked.source})", err=to_stderr)
    for line, text in sorted(_lines(outcome)):
        click.echo(f"  line {line}: {text}", err=to_stderr)
    if outcome.outcome == "refused":
        return
    if not outcome.pairs and not outcome.guarded:
        click.echo(
            "  it has no pairs of its own: torch reads TORCH_CUDA_ARCH_LIST, which has to be set.", err=to_stderr
        )
    for note in outcome.notes:
        click.echo(f"  {note}", err=to_stderr)
    for warning in patch.warnings:
        warn(warning)


def _lines(outcome: Outcome) -> Iterator[tuple[int, str]]:
    """Yield each pair, and each place that the guard takes over, with its line."""
    for report in outcome.pairs:
        yield report.line, f"{report.action:7} {report.pair}: {report.reason}"
    if outcome.outcome != "refused":
        for source in outcome.sources:
            yield source.line, f"guarded {source.shape}: {source.reason}"


def _to_json(patch: Patch) -> dict[str, Any]:
    refusals, sources = list[dict[str, Any]](), list[dict[str, Any]]()
    if patch.outcome.outcome != "refused":
        sources = [source.to_json() for source in patch.outcome.sources]
    elif patch.outcome.no_match is not None:
        no_match = patch.outcome.no_match
        refusals = [{"line": None, "shape": "no-match", "reason": no_match.message, "remedy": no_match.remedy}]
    else:
        refusals = [
            {"line": refusal.line, "shape": refusal.shape, "reason": refusal.reason, "remedy": refusal.remedy}
            for refusal in patch.outcome.refusals
        ]
    request = patch.asked.request
    on_missing = patch.policy.on_missing_for(request).value if request is not None else None
    return {
        "file": str(patch.file),
        "outcome": patch.outcome.outcome,
        "request": {**patch.asked.to_json(), "on_missing": on_missing},
        "pairs": [report.to_json() for report in patch.outcome.pairs],
        "sources": sources,
        "refusals": refusals,
    }
