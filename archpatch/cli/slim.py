"""`archpatch slim`: from a wheel that holds code for many archs, the wheel for one GPU, without a compiler."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from archpatch.cli.options import asked_from, json_option, matching_options, option, policy_from, replace_option
from archpatch.cli.settings import Settings
from archpatch.cli.show import print_json, warn

if TYPE_CHECKING:
    from archpatch.builder.asked import Asked
    from archpatch.wheelhouse.slimmed import Filed, Filing, Origin
    from archpatch.wheels.slim_choice import Wanted
    from archpatch.wheels.slim_wheel import Slimmed
    from archpatch.wheels.slimming import Slimming


@click.command("slim")
@click.argument("path", type=click.Path(path_type=Path), metavar="WHEEL|SO")
@matching_options
@option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder for the result [default: this one; none where the wheel is filed].",
)
@option(
    "--wheelhouse",
    type=click.Path(path_type=Path, file_okay=False),
    help="File the wheel in this wheelhouse; only this option asks for it.",
)
@option("--torch", metavar="VERSION", help="The torch that a foreign wheel is filed for: 2.14.1+cu130.")
@option(
    "--allow-relocatable", is_flag=True, help="Cut libraries too that were linked from relocatable code (-rdc=true)."
)
@replace_option
@json_option
@click.pass_context
def command(ctx: click.Context, /, path: Path, as_json: bool, **options: Any) -> None:
    """Take out of a wheel, or of one library, the device code that was not asked for.

    Nothing is compiled, and what stays keeps its bytes. The wheel's local version says what is inside. Printed is where
    it lies.
    """
    from archpatch.builder.working_folder import working_folder
    from archpatch.errors import MissingFile

    started = time.monotonic()
    if not path.is_file():
        raise MissingFile(f"{path} does not exist", remedy="Name a wheel or a shared library.")
    asked = asked_from(ctx, use_driver=False)
    for note in asked.notes:
        warn(note)
    origin = _origin(path, options)
    wanted = _wanted(ctx, asked)
    request = {**asked.to_json(), "on_missing": wanted.policy.on_missing_for(wanted.request).value}
    with working_folder() as scratch:
        folder = scratch if options["output"] is None and origin is not None else _made(options["output"])
        slimmed = _slim(path, wanted, folder, scratch=scratch)
        for text in slimmed.warnings:
            warn(text)
        filed = None
        if origin is not None:
            filing = _filing(ctx, wanted, request=request, seconds=time.monotonic() - started)
            filed = _file(slimmed, origin, options["wheelhouse"], filing=filing)
        told = _to_json(slimmed, filed)
    _summarise(path, slimmed, told)
    if as_json:
        print_json("slim", {**told, "request": request, "seconds": round(time.monotonic() - started, 3)})
    else:
        click.echo(told["path"])


def _origin(path: Path, options: dict[str, Any]) -> Origin | None:
    """Return what has to be known of the wheel to file what is cut from it; None where nothing is filed."""
    from archpatch.builder.interpreter import named_torch
    from archpatch.errors import UsageError
    from archpatch.wheelhouse.layout import Stack
    from archpatch.wheelhouse.slimmed import Origin

    if options["wheelhouse"] is None:
        if options["torch"] is not None:
            raise UsageError("--torch says where to file the wheel", remedy="Name --wheelhouse too, or leave it out.")
        return None
    if not _is_wheel(path):
        raise UsageError(f"{path} is no wheel: it cannot be filed", remedy="Leave out --wheelhouse.")
    torch = None if options["torch"] is None else named_torch(options["torch"])
    return Origin.of(path, None if torch is None else Stack(torch=torch.version, cuda=str(torch.cuda)))


def _wanted(ctx: click.Context, asked: Asked) -> Wanted:
    """Return the request with its rules; of a wheel, archs that are known bad for the package count as absent."""
    from dataclasses import replace

    from archpatch.errors import UsageError
    from archpatch.recipes.recipe import find_recipe, known_bad_for
    from archpatch.wheels.metadata import read_metadata
    from archpatch.wheels.slim_choice import Wanted

    if asked.request is None:
        raise UsageError("nothing says what to keep", remedy="Name --gpu or --arch, or set TORCH_CUDA_ARCH_LIST.")
    path, policy = ctx.params["path"], policy_from(ctx)
    if _is_wheel(path) and not ctx.params["allow_known_bad"]:
        settings = ctx.find_object(Settings)
        recipe = find_recipe(read_metadata(path).name, settings.recipes if settings else ())
        policy = replace(policy, known_bad=known_bad_for(recipe, None))
    return Wanted(request=asked.request, policy=policy, allow_relocatable=ctx.params["allow_relocatable"])


def _is_wheel(path: Path) -> bool:
    return path.suffix == ".whl"


def _made(output: Path | None) -> Path:
    """Return the folder to write to, this one unless another is named; it is there then."""
    from archpatch.storage.atomic import disk_errors

    folder = output or Path()
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def _slim(path: Path, wanted: Wanted, folder: Path, *, scratch: Path) -> Slimmed:
    from archpatch.wheels.slim_wheel import slim_library, slim_wheel

    if _is_wheel(path):
        return slim_wheel(path, wanted, folder, scratch=scratch)
    return slim_library(path, wanted, folder)


def _filing(ctx: click.Context, wanted: Wanted, *, request: dict[str, Any], seconds: float) -> Filing:
    from archpatch.arch.gpu import GpuRequest
    from archpatch.wheelhouse.slimmed import Filing

    gpus = wanted.request.gpus if isinstance(wanted.request, GpuRequest) else ()
    return Filing(request=request, gpus=gpus, replace=ctx.params["replace"], seconds=seconds)


def _file(slimmed: Slimmed, origin: Origin, house: Path, *, filing: Filing) -> Filed:
    from archpatch.wheelhouse.house import Wheelhouse
    from archpatch.wheelhouse.slimmed import file_slimmed

    filed = file_slimmed(slimmed, origin, Wheelhouse(house.absolute()), filing=filing)
    for text in filed.warnings:
        warn(text)
    return filed


def _summarise(path: Path, slimmed: Slimmed, told: dict[str, Any]) -> None:
    """Say to stderr what became of each library, and of the whole."""
    for file in slimmed.files:
        kept, dropped = (", ".join(map(str, codes)) or "nothing" for codes in (file.kept, file.dropped))
        click.echo(f"archpatch: {file.path}: keeps {kept}; loses {dropped}: {file.saved / 1e6:.1f} MB", err=True)
        if file.idle:
            text = f"{file.idle} of its {file.containers} containers hold nothing for the request, and stay as they are"
            click.echo(f"archpatch: {file.path}: {text}", err=True)
    before, after = path.stat().st_size / 1e6, told["size"] / 1e6
    click.echo(f"archpatch: {path.name}: {before:.1f} MB before, {after:.1f} MB now", err=True)


def _to_json(slimmed: Slimmed, filed: Filed | None) -> dict[str, Any]:
    from archpatch.wheelhouse.record import record_path

    return {
        "path": str(slimmed.path if filed is None else filed.entry.wheel),
        "record": None if filed is None else str(record_path(filed.entry.wheel)),
        "size": slimmed.path.stat().st_size,
        "device_code": [str(code) for code in slimmed.device_code],
        "files": [_file_to_json(file) for file in slimmed.files],
    }


def _file_to_json(file: Slimming) -> dict[str, Any]:
    return {
        "path": file.path,
        "kept": [str(code) for code in file.kept],
        "dropped": [str(code) for code in file.dropped],
        "containers": file.containers,
        "idle": file.idle,
        "saved": file.saved,
    }
