"""`archpatch wheelhouse`: what is filed, where it lies, how to install it, and whether it is intact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from archpatch.cli.options import json_option, option, python_option, wheelhouse_option
from archpatch.cli.show import print_json, print_table, warn

if TYPE_CHECKING:
    from archpatch.errors import MissingFile
    from archpatch.wheelhouse.house import Entry, Wheelhouse
    from archpatch.wheelhouse.shelf import Shelf


@click.group("wheelhouse")
def command() -> None:
    """Look into a wheelhouse: list, path, requirements, index, verify."""


gpu_option = option("--gpu", metavar="TYPE", help="Only what is filed for this GPU type.")


@command.command("list")
@wheelhouse_option
@gpu_option
@json_option
def list_(wheelhouse: Path, gpu: str | None, as_json: bool) -> None:
    """List the wheels: what they hold, for which torch and Python, how large, for which GPU types."""
    house = _open(wheelhouse)
    name = None if gpu is None else _gpu(house, gpu)
    entries = house.entries() if name is None else house.entries_for(name)
    rows = [(entry, house.gpus_of(entry)) for entry in entries]
    _warn_of_damage(house, name)
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
@option("--gpu", metavar="TYPE", help="The GPU type.")
@python_option
def path(package: str | None, wheelhouse: Path, gpu: str | None, python: str | None) -> None:
    """Print the folder of a GPU type for pip's --find-links, or the path of one package's wheel."""
    from archpatch.errors import UsageError
    from archpatch.wheelhouse.layout import gpu_folder

    if gpu is None and package is None:
        click.echo(wheelhouse.absolute())
        return
    shelf = _shelf(wheelhouse, gpu, python)
    if package is None:
        folder = shelf.house.root / gpu_folder(str(shelf.gpu), shelf.stack)
        if not folder.is_dir():
            raise _not_filed(shelf, (), python)
        click.echo(folder)
        return
    _refuse_damage(shelf, (package,), python)
    found = list(shelf.entries([package]))
    if not found:
        raise _not_filed(shelf, (package,), python)
    if gpu is None and len({entry.record.device_code for entry in found}) > 1:
        kinds = "; ".join(", ".join(entry.record.device_code) for entry in found)
        raise UsageError(f"several wheels of {package} are filed: {kinds}", remedy="Choose with --gpu.")
    (newest,) = shelf.newest([package]).values()
    click.echo(newest.wheel)


@command.command("requirements")
@click.argument("packages", nargs=-1)
@wheelhouse_option
@option("--gpu", metavar="TYPE", required=True, help="The GPU type.")
@python_option
def requirements(packages: tuple[str, ...], wheelhouse: Path, gpu: str, python: str | None) -> None:
    """Print pinned requirement lines for pip and uv: NAME @ file://...#sha256=..."""
    from packaging.utils import canonicalize_name

    shelf = _shelf(wheelhouse, gpu, python)
    _refuse_damage(shelf, packages, python)
    newest = shelf.newest(packages)
    missing = tuple(package for package in packages if canonicalize_name(package) not in newest)
    if missing or not newest:
        raise _not_filed(shelf, missing, python)
    for entry in shelf.elsewhere(packages).values():
        warn(_hint(shelf, entry, python))
    for entry in newest.values():
        click.echo(f"{entry.record.name} @ {entry.wheel.as_uri()}#sha256={entry.record.sha256}")


@command.command("index")
@wheelhouse_option
@json_option
def index(wheelhouse: Path, as_json: bool) -> None:
    """Write the static index: pages for pip and uv, and one for people; from then on it is kept up to date."""
    from archpatch.storage.listing import matching

    house = _house(wheelhouse)
    folder = house.write_index()
    _warn_of_damage(house)
    if as_json:
        indexes = [str(page.parent) for page in matching(folder, "*/*/index.json")]
        print_json("wheelhouse-index", {"folder": str(folder), "indexes": indexes})
    else:
        click.echo(folder)


@command.command("verify")
@wheelhouse_option
@json_option
def verify(wheelhouse: Path, as_json: bool) -> int:
    """Check every wheel against its record, its RECORD and its device code, and every link; exit 1 if any is wrong."""
    from archpatch.wheelhouse.verify import verify as find_faults

    house = _house(wheelhouse)
    faults = find_faults(house)
    if as_json:
        content = [{"path": str(fault.path), "problem": fault.problem} for fault in faults]
        print_json("wheelhouse-verify", {"checked": sum(1 for _ in house.wheels()), "faults": content})
    else:
        for fault in faults:
            click.echo(f"{fault.path}: {fault.problem}")
        click.echo(f"archpatch: {sum(1 for _ in house.wheels())} wheels, {len(faults)} faults", err=True)
    return int(bool(faults))


def _open(wheelhouse: Path) -> Wheelhouse:
    from archpatch.errors import MissingFile
    from archpatch.wheelhouse.house import Wheelhouse

    if not wheelhouse.is_dir():
        raise MissingFile(f"{wheelhouse} is no folder", remedy="Name the wheelhouse with --wheelhouse.")
    return Wheelhouse(wheelhouse.absolute())


def _house(wheelhouse: Path) -> Wheelhouse:
    """Return the wheelhouse, one in which something was filed before."""
    from archpatch.errors import MissingFile

    house = _open(wheelhouse)
    if not house.exists():
        raise MissingFile(
            f"{wheelhouse} is no wheelhouse", remedy="Name the folder that archpatch build filed wheels in."
        )
    return house


def _gpu(house: Wheelhouse, text: str) -> str:
    """Return the name of a GPU type's folder; tell where the type has another name than was given."""
    from archpatch.arch.gpu import find_gpu
    from archpatch.wheelhouse.shelf import filed_gpu

    name = filed_gpu(house, text)
    note = None if name == text else find_gpu(name).taken_for(text)
    if note is not None:
        warn(note)
    return name


def _shelf(wheelhouse: Path, gpu: str | None, python: str | None) -> Shelf:
    """Return what the interpreter that will install can take: by its torch and CUDA, its ABI and platform."""
    from archpatch.builder.interpreter import find_python, probe
    from archpatch.errors import ToolchainError
    from archpatch.wheelhouse.layout import Stack
    from archpatch.wheelhouse.shelf import Shelf

    house = _open(wheelhouse)
    name = None if gpu is None else _gpu(house, gpu)
    interpreter = probe(find_python(python))
    torch = interpreter.torch
    if torch is None or torch.cuda is None:
        raise ToolchainError(
            f"{interpreter.executable} has no CUDA build of torch, which decides which wheels fit",
            remedy="Name the interpreter that will use the wheels with --python.",
        )
    inputs = {"python": interpreter.abi_tag, "platform": interpreter.platform_tag}
    return Shelf(house=house, stack=Stack(torch=torch.version, cuda=torch.cuda), inputs=inputs, gpu=name)


def _warn_of_damage(house: Wheelhouse, gpu: str | None = None) -> None:
    from archpatch.wheelhouse.damage import damages

    for damage in damages(house, gpu):
        warn(f"left out, since it is damaged: {damage.problem}")


def _refuse_damage(shelf: Shelf, packages: Sequence[str], python: str | None) -> None:
    """Raise `WheelhouseDamaged` where a wheel that would be the answer is damaged: without it, a job would lack it."""
    from archpatch.errors import WheelhouseDamaged
    from archpatch.wheelhouse.shelf import requirement_for

    damaged = shelf.damaged(packages)
    if not damaged:
        return
    known = [requirement_for(damage.record) for damage in damaged if damage.record is not None]
    lines = [_build(shelf, known, python)] if known else []
    if len(known) < len(damaged):
        lines.append("Build what has no record again from where it came from: a folder, a repository, or a release.")
        lines.append(_build(shelf, ["SOURCE"], python))
    problems = "; ".join(damage.problem for damage in damaged)
    raise WheelhouseDamaged(f"what would be installed is damaged: {problems}", remedy="\n".join(lines))


def _not_filed(shelf: Shelf, packages: Sequence[str], python: str | None) -> MissingFile:
    """Return the error for a GPU type, or any, that lacks `packages` (anything, where none is named)."""
    from packaging.utils import canonicalize_name

    from archpatch.errors import MissingFile

    what = f"{', '.join(packages) or 'anything'} for {shelf.gpu or 'any GPU'}"
    found = shelf.elsewhere(packages)
    lines = [_hint(shelf, entry, python) for entry in found.values()]
    unknown = [package for package in packages if canonicalize_name(package) not in found]
    if unknown or not lines:
        lines.append(_build(shelf, unknown or ["NAME"], python))
    return MissingFile(
        f"no wheel of {what}, {shelf.stack.folder}, {shelf.inputs['python']} is filed in {shelf.house.root}",
        remedy="\n".join(lines),
    )


def _hint(shelf: Shelf, entry: Entry, python: str | None) -> str:
    """Say what files a wheel, which the GPU type would run, for it too."""
    from archpatch.wheelhouse.shelf import requirement_for

    record = entry.record
    what = f"{record.name} {record.version} with {', '.join(record.device_code)}"
    return (
        f"{what} would run there, but is not filed for {shelf.gpu}. {_build(shelf, [requirement_for(record)], python)}"
    )


def _build(shelf: Shelf, requirements: Sequence[str], python: str | None) -> str:
    """Say how to build `requirements`, or find them built, and file them for the GPU type."""
    import shlex

    request = [] if shelf.gpu is None else ["--gpu", shelf.gpu if shelf.arch else "native"]
    interpreter = [] if python is None else ["--python", python]
    command = ["archpatch", "build", *requirements, *request, *interpreter, "--wheelhouse", str(shelf.house.root)]
    return f"{'Run' if shelf.arch or not request else 'Where this GPU is, run'}: {shlex.join(command)}"


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
