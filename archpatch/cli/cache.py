"""`archpatch cache`: kernels that are compiled when a program runs are kept, moved and shared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from archpatch.cli.key import answer_options, extra_inputs, extra_options, show_key
from archpatch.cli.options import json_option, option, python_option
from archpatch.cli.show import print_json, print_table, warn

if TYPE_CHECKING:
    from archpatch.kernel_cache.job_key import Job
    from archpatch.kernel_cache.lane import Lane
    from archpatch.kernel_cache.report import Counts, Report
    from archpatch.storage.key import Key

_F = TypeVar("_F", bound=Callable[..., Any])
_NAMES_SHOWN = 3
#: What Markdown or HTML takes for more than a character of a kernel's name.
_MARKDOWN = re.compile(r"[\\`*\[\]<>&|~]")


@click.group("cache")
def command() -> None:
    """Keep what Triton, TorchInductor and other just-in-time compilers compile."""


root_option = option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    envvar="ARCHPATCH_CACHE_ROOT",
    show_envvar=True,
    help="The folder below which all compilers keep their caches.",
)


def lane_options(function: _F) -> _F:
    """Add what the kernels are for, where it is not this machine: --gpu, --torch, --triton, --python."""
    for decorate in (
        python_option,
        option("--triton", metavar="VERSION", help="Triton's version [default: the installed one]."),
        option("--torch", metavar="VERSION", help="torch's full version, 2.14.1+cu130 [default: the installed]."),
        option("--gpu", metavar="TYPE", help="A GPU type, or a product as the driver names it [default: those here]."),
    ):
        function = decorate(function)
    return function


def job_options(function: _F) -> _F:
    """Add whose kernels they are and what they are compiled from: --lane, --sources, --extra, --extra-file."""
    for decorate in (
        extra_options,
        option("--sources", multiple=True, metavar="GLOB", help="Kernel sources: 'src/**/*.py'. Repeatable."),
        option("--lane", "job", metavar="NAME", required=True, help="The job; each has a cache of its own."),
    ):
        function = decorate(function)
    return function


max_size_option = option(
    "--max-size",
    type=click.IntRange(min=1),
    default=4096,
    show_default=True,
    metavar="MIB",
    help="The most that the files of one archive may come to.",
)


def store_options(function: _F) -> _F:
    """Add where archives lie and how large one may be: --store, --max-size."""
    store = option(
        "--store",
        type=click.Path(path_type=Path),
        required=True,
        metavar="FOLDER|ARCHIVE",
        help="A folder of archives, or one archive (.tar.zst) that a CI's own cache carries.",
    )
    return store(max_size_option(function))


form_option = option(
    "--format",
    "form",
    type=click.Choice(["text", "github"]),
    default="text",
    show_default=True,
    help="How to print it.",
)


@command.command("env")
@root_option
@lane_options
@option(
    "--format",
    "form",
    type=click.Choice(["shell", "json", "github", "docker", "k8s", "ray"]),
    default="shell",
    show_default=True,
    help="How to write them.",
)
@json_option
def env(root: Path, form: str, as_json: bool, **options: Any) -> None:
    """Print the variables that put every compiler's cache below one root, in the lane of this GPU and torch."""
    import os

    from archpatch.kernel_cache.variables import FORMATS, environment, left_to_set

    lane = _lane(options)
    variables = environment(root, lane)
    if as_json or form == "json":
        print_json("cache-env", {"root": str(root.absolute()), "lane": str(lane), "environment": variables})
    else:
        unset = left_to_set(variables, os.environ) if form == "github" else variables
        click.echo(FORMATS[form](unset), nl=False)


@command.command("key")
@job_options
@lane_options
@answer_options
def key(form: str, as_json: bool, against: Path | None, **options: Any) -> None:
    """Print the key for a CI's cache: exact, and the prefixes from which a restore may start."""
    show_key("cache-key", _key(options, _lane(options)), form=form, as_json=as_json, against=against)


@command.command("restore")
@root_option
@store_options
@job_options
@lane_options
@form_option
@json_option
def restore(root: Path, store: Path, max_size: int, form: str, as_json: bool, **options: Any) -> int:
    """Bring back the kernels of the exact key, else the newest of the lane; what is unsound is left out."""
    from archpatch.errors import CacheRefused
    from archpatch.kernel_cache.restore import restore as bring_back
    from archpatch.kernel_cache.store import Store

    lane = _lane(options)
    done = bring_back(Store(store), root, lane=lane, key=_key(options, lane), limit=max_size << 20)
    for refusal in done.refused:
        warn(refusal)
    content = {
        "key": done.key,
        "hit": "none" if done.key is None else "exact" if done.exact else "prefix",
        "archive": None if done.archive is None else str(done.archive),
        "entries": done.entries,
        "size": done.size,
        "left_out": _reasons(done.left_out),
        "refused": list(done.refused),
        "locks": done.locks,
    }
    if as_json:
        print_json("cache-restore", content)
    elif form == "github":
        click.echo(f"hit={content['hit']}\nkey={done.key or ''}\nentries={done.entries}")
    elif done.key is None:
        click.echo("nothing was restored")
    else:
        click.echo(f"restored {done.entries} entries, {_megabytes(done.size)}, from {done.key} ({content['hit']})")
    _tell_left_out(done.left_out)
    return CacheRefused.exit_status if done.refused and done.key is None else 0


@command.command("save")
@root_option
@store_options
@job_options
@lane_options
@form_option
@json_option
def save(root: Path, store: Path, max_size: int, form: str, as_json: bool, **options: Any) -> None:
    """Write the kernels into an archive, unless the exact key is there already or nothing is new."""
    from archpatch.errors import MissingFile
    from archpatch.kernel_cache.save import save as write
    from archpatch.kernel_cache.store import Store

    if not root.is_dir():
        raise MissingFile(f"{root} is no folder", remedy="Name the root that cache restore was given with --root.")
    lane = _lane(options)
    key = _key(options, lane)
    done = write(Store(store), root, lane=lane, key=key, limit=max_size << 20)
    saved = done.archive is not None
    content = {
        "key": str(key),
        "saved": saved,
        "reason": done.reason,
        "archive": str(done.archive) if saved else None,
        "entries": len(done.plan.entries),
        "size": done.plan.size,
        "left_out": _reasons(done.plan.left_out),
    }
    if as_json:
        print_json("cache-save", content)
    elif form == "github":
        click.echo(f"saved={str(saved).lower()}\nkey={key}\narchive={content['archive'] or ''}\nreason={done.reason}")
    elif saved:
        click.echo(f"saved {len(done.plan.entries)} entries, {_megabytes(done.plan.size)}, as {done.archive}")
    else:
        click.echo(f"nothing was saved: {done.reason}")
    _tell_left_out(done.plan.left_out)


@command.command("sync")
@root_option
@option("--from", "source", type=click.Path(path_type=Path), metavar="FOLDER", help="Bring what is shared there.")
@option("--to", "target", type=click.Path(path_type=Path), metavar="FOLDER", help="Share there what is new here.")
@lane_options
@json_option
def sync(root: Path, source: Path | None, target: Path | None, as_json: bool, **options: Any) -> None:
    """Bring kernels from a folder that many machines mount, or publish them there; no locks are taken."""
    from archpatch.errors import UsageError
    from archpatch.kernel_cache.share import fetch, publish

    if (source is None) == (target is None):
        raise UsageError("one way at a time", remedy="Name the shared folder with --from, or with --to.")
    lane = _lane(options)
    done = publish(root, target, lane=lane) if target is not None else fetch(root, Path(str(source)), lane=lane)
    if as_json:
        content = {"brought": list(done.brought), "present": len(done.present), "left_out": _reasons(done.left_out)}
        print_json("cache-sync", content)
    else:
        click.echo(f"{len(done.brought)} entries brought, {len(done.present)} were there")
    _tell_left_out(done.left_out)


@command.command("report")
@root_option
@lane_options
@max_size_option
@option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown"]),
    default="text",
    show_default=True,
    help="How to print it; Markdown is for a CI step's summary.",
)
@json_option
def report(root: Path, max_size: int, form: str, as_json: bool, **options: Any) -> None:
    """Say what the job since the restore found and what it compiled, and what a save would write."""
    from archpatch.kernel_cache.report import report as look

    found = look(root, _lane(options), limit=max_size << 20)
    if as_json:
        print_json("cache-report", found.to_json())
    else:
        (_print_markdown if form == "markdown" else _print_report)(found)


_COLUMNS = ("had", "restored", "hit", "missed", "added")


def _cells(counts: Counts, report: Report) -> list[str]:
    """Return a row: what it is, the counts, the seconds."""
    numbers = [str(getattr(counts, name)) for name in _COLUMNS]
    if not report.tells_hits:
        numbers[_COLUMNS.index("hit")] = "?"
    return [counts.name, *numbers, f"{counts.seconds:.1f}" if counts.seconds else "-"]


def _notes(report: Report) -> Iterator[str]:
    """Yield what stands below the tables."""
    if not report.tells_hits:
        yield "hits are not known: this file system keeps no access times"
    for each in report.outside:
        yield f"written outside the root: {each.path}, {each.files} files, {_megabytes(each.size)}"
    plan = report.plan
    yield f"a save would write {len(plan.entries)} entries, {plan.new} of them new, {_megabytes(plan.size)}"
    if plan.left_out:
        yield f"a save would leave out {len(plan.left_out)} files or entries"


def _print_report(report: Report) -> None:
    from rich.markup import escape
    from rich.table import Table

    for title, rows in (("compiler", report.compilers), ("kernel of Triton", report.kernels)):
        table = Table(title, *_COLUMNS, "seconds", box=None, pad_edge=False)
        for counts in rows:
            table.add_row(*map(escape, _cells(counts, report)))
        print_table(table)
        click.echo()
    click.echo("\n".join(_notes(report)))


def _print_markdown(report: Report) -> None:
    click.echo(f"### Kernels, restored from {report.key or 'nothing'}\n")
    for title, rows in (("compiler", report.compilers), ("kernel of Triton", report.kernels)):
        if rows:
            click.echo("| " + " | ".join((title, *_COLUMNS, "seconds")) + " |\n|---" + "|---:" * 6 + "|")
            cells = ([_MARKDOWN.sub(r"\\\g<0>", cell) for cell in _cells(counts, report)] for counts in rows)
            click.echo("\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n")
    click.echo("\n".join(f"- {note}" for note in _notes(report)))


def _reasons(left_out: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"name": name, "reason": reason} for name, reason in left_out]


def _tell_left_out(left_out: tuple[tuple[str, str], ...]) -> None:
    """Say how much was left out for each reason, with the first names."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out:
        by_reason.setdefault(_escaped(reason), []).append(_escaped(name))
    for reason, names in by_reason.items():
        shown = ", ".join(names[:_NAMES_SHOWN]) + (" ..." if len(names) > _NAMES_SHOWN else "")
        click.echo(f"archpatch: left out, {reason}: {len(names)} ({shown})", err=True)


def _escaped(text: str) -> str:
    """Return what an archive says on one line: a line that it began could be a command to a CI."""
    return ascii(text)[1:-1]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _lane(options: dict[str, Any]) -> Lane:
    """Return the lane that the options describe, with a warning where no GPU is known."""
    from archpatch.builder.interpreter import find_python
    from archpatch.kernel_cache.lane import NO_GPU, Wanted, find_lane

    wanted = {name: options[name] for name in ("gpu", "torch", "triton")}
    lane = find_lane(Wanted(**wanted, python=find_python(options["python"])))
    if lane.gpu == NO_GPU:
        warn("no GPU is visible, and --gpu names none: these kernels are in a lane of their own, gpu-none")
    return lane


def _key(options: dict[str, Any], lane: Lane) -> Key:
    from archpatch.kernel_cache.job_key import job_key

    return job_key(_job(options), lane)


def _job(options: dict[str, Any]) -> Job:
    from archpatch.kernel_cache.job_key import Job

    extras = extra_inputs(options["extra"], options["extra_file"])
    return Job(
        name=options["job"],
        sources=options["sources"],
        extras={f"extra.{name}": value for name, value in extras.items()},
    )
