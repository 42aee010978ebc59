"""`archpatch wheelhouse`: what is filed, where it lies, how to install it, and whether it is intact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from archpatch.cli.options import json_option, python_option, python_path, wheelhouse_option
from archpatch.cli.show import print_json, print_table

if TYPE_CHECKING:
    from archpatch.wheelhouse.house import Entry


@click.group("wheelhouse")
def command() -> None:
    """Look into a wheelhouse: list, path, requirements, verify."""


gpu_option = click.option("--gpu", metavar="TYPE", help="Only what is filed for this GPU type.")


@command.command("list")
@wheelhouse_option
@gpu_option
@json_option
def list_(wheelhouse: Path, gpu: str | None, as_json: bool) -> None:
    """List the wheels: what they hold, for which torch and Python, how large, for which GPU types."""
    from archpatch.wheelhouse.house import Wheelhouse

    house = Wheelhouse(wheelhouse.absolute())
    rows = [(entry, house.gpus_of(entry)) for entry in _entries(wheelhouse, gpu)]
    if as_json:
        print_json("wheelhouse-list", {"wheels": [_to_json(entry, gpus) for entry, gpus in rows]})
        return
    from rich.table import Table

    table = Table("package", "version", "device code", "torch", "python", "MB", "GPU types", box=None, pad_edge=False)
    for entry, gpus in rows:
        record = entry.record
        torch, python, size = (
            record.inputs.get("torch", "?"),
            record.inputs.get("python", "?"),
            f"{record.size / 1e6:.1f}",
        )
        table.add_row(
            record.name, record.version, " ".join(record.device_code), torch, python, size, " ".join(gpus) or "-"
        )
    print_table(table)


@command.command("path")
@click.argument("package", required=False)
@wheelhouse_option
@click.option("--gpu", metavar="TYPE", help="The GPU type.")
@python_option
def path(package: str | None, wheelhouse: Path, gpu: str | None, python: str | None) -> None:
    """Print the folder of a GPU type for pip's --find-links, or the path of one package's wheel."""
    from archpatch.arch.gpu import find_gpu
    from archpatch.errors import MissingFile, UsageError
    from archpatch.wheelhouse.layout import gpu_folder

    if gpu is None and package is None:
        click.echo(wheelhouse.absolute())
        return
    stack, fits = _stack(python)
    if package is None:
        folder = wheelhouse.absolute() / gpu_folder(find_gpu(str(gpu)).name, stack)
        if not folder.is_dir():
            raise MissingFile(f"{folder} does not exist", remedy=f"Build for it: archpatch build NAME --gpu {gpu}.")
        click.echo(folder)
        return
    found = [entry for entry in _entries(wheelhouse, gpu) if _is(entry, package) and _fits(entry, stack, fits)]
    if not found:
        what = f"{package} for {gpu or 'any GPU'}, {stack.folder}, {fits['python']}"
        raise MissingFile(f"no wheel of {what} is in {wheelhouse}", remedy="Build it: archpatch build.")
    if len({entry.record.device_code for entry in found}) > 1:
        kinds = "; ".join(", ".join(entry.record.device_code) for entry in found)
        raise UsageError(f"several wheels of {package} are filed: {kinds}", remedy="Choose with --gpu.")
    click.echo(_newest(found).wheel)


@command.command("requirements")
@click.argument("packages", nargs=-1)
@wheelhouse_option
@click.option("--gpu", metavar="TYPE", required=True, help="The GPU type.")
@python_option
def requirements(packages: tuple[str, ...], wheelhouse: Path, gpu: str, python: str | None) -> None:
    """Print pinned requirement lines for pip and uv: NAME @ file://...#sha256=..."""
    from archpatch.errors import MissingFile

    stack, fits = _stack(python)
    newest: dict[str, Entry] = {}
    for entry in _entries(wheelhouse, gpu):
        if _fits(entry, stack, fits) and (not packages or any(_is(entry, package) for package in packages)):
            name = canonicalize(entry.record.name)
            newest[name] = _newest([entry, *filter(None, [newest.get(name)])])
    missing = [package for package in packages if not any(_is(entry, package) for entry in newest.values())]
    if missing or not newest:
        what = ", ".join(missing) or "anything"
        raise MissingFile(
            f"{what} for {gpu}, {stack.folder}, {fits['python']} is not in {wheelhouse}", remedy=_BUILD_FOR_GPU
        )
    for _, entry in sorted(newest.items()):
        click.echo(f"{entry.record.name} @ {entry.wheel.as_uri()}#sha256={entry.record.sha256}")


@command.command("verify")
@wheelhouse_option
@json_option
def verify(wheelhouse: Path, as_json: bool) -> int:
    """Check every wheel against its record, its RECORD and its device code, and every link; exit 1 if any is wrong."""
    from archpatch.errors import MissingFile
    from archpatch.wheelhouse.house import Wheelhouse
    from archpatch.wheelhouse.verify import verify as find_faults

    _require(wheelhouse)
    house = Wheelhouse(wheelhouse.absolute())
    if not house.exists():
        raise MissingFile(
            f"{wheelhouse} is no wheelhouse", remedy="Name the folder that archpatch build filed wheels in."
        )
    faults = find_faults(house)
    if as_json:
        content = [{"path": str(fault.path), "problem": fault.problem} for fault in faults]
        print_json("wheelhouse-verify", {"checked": sum(1 for _ in house.wheels()), "faults": content})
    else:
        for fault in faults:
            click.echo(f"{fault.path}: {fault.problem}")
        click.echo(f"archpatch: {sum(1 for _ in house.wheels())} wheels, {len(faults)} faults", err=True)
    return int(bool(faults))


_BUILD_FOR_GPU = "Build it with --gpu: what is built with --arch is filed for no GPU type."


def _require(wheelhouse: Path) -> None:
    from archpatch.errors import MissingFile

    if not wheelhouse.is_dir():
        raise MissingFile(f"{wheelhouse} is no folder", remedy="Name the wheelhouse with --wheelhouse.")


def _entries(wheelhouse: Path, gpu: str | None) -> Iterator[Entry]:
    from archpatch.arch.gpu import find_gpu
    from archpatch.wheelhouse.house import Wheelhouse

    _require(wheelhouse)
    house = Wheelhouse(wheelhouse.absolute())
    return house.entries() if gpu is None else house.entries_for(find_gpu(gpu).name)


def _stack(python: str | None) -> Any:
    """Return the torch and CUDA, and the Python ABI and platform, of the interpreter that will install."""
    from archpatch.builder.interpreter import probe
    from archpatch.errors import ToolchainError
    from archpatch.wheelhouse.layout import Stack

    interpreter = probe(python_path(python))
    torch = interpreter.torch
    if torch is None or torch.cuda is None:
        raise ToolchainError(
            f"{interpreter.executable} has no CUDA build of torch, which decides which wheels fit",
            remedy="Name the interpreter that will use the wheels with --python.",
        )
    fits = {"python": interpreter.abi_tag, "platform": interpreter.platform_tag}
    return Stack(torch=torch.version, cuda=torch.cuda), fits


def _fits(entry: Entry, stack: Any, fits: dict[str, str]) -> bool:
    """Tell whether a wheel is for this torch, this Python and this platform."""
    return entry.wheel.parent.name == stack.folder and fits.items() <= entry.record.inputs.items()


def _is(entry: Entry, package: str) -> bool:
    return canonicalize(entry.record.name) == canonicalize(package)


def canonicalize(name: str) -> str:
    """Return a package's name as indexes compare it (PEP 503)."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)


def _newest(entries: list[Entry]) -> Entry:
    from packaging.version import Version

    return max(entries, key=lambda entry: (Version(entry.record.version), entry.record.created))


def _to_json(entry: Entry, gpus: tuple[str, ...]) -> dict[str, Any]:
    record = entry.record
    return {
        "wheel": str(entry.wheel),
        "name": record.name,
        "version": record.version,
        "device_code": list(record.device_code),
        "torch": record.inputs.get("torch"),
        "python": record.inputs.get("python"),
        "size": record.size,
        "gpus": list(gpus),
        "fingerprint": record.fingerprint,
        "sha256": record.sha256,
    }
