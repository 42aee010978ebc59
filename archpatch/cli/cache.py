"""`archpatch cache`: kernels that are compiled when a program runs are kept, moved and shared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from archpatch.cli.options import json_option, python_option, python_path
from archpatch.cli.show import print_json, warn

if TYPE_CHECKING:
    from archpatch.kernel_cache.job_key import Job
    from archpatch.kernel_cache.lane import Lane
    from archpatch.storage.key import Key

_F = TypeVar("_F", bound=Callable[..., Any])


@click.group("cache")
def command() -> None:
    """Keep what Triton, TorchInductor and other just-in-time compilers compile."""


root_option = click.option(
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
        click.option("--triton", metavar="VERSION", help="Triton's version [default: the installed one]."),
        click.option("--torch", metavar="VERSION", help="torch's full version, 2.14.1+cu130 [default: the installed]."),
        click.option(
            "--gpu", metavar="TYPE", help="A GPU type, or a product as the driver names it [default: those here]."
        ),
    ):
        function = decorate(function)
    return function


def job_options(function: _F) -> _F:
    """Add whose kernels they are and what they are compiled from: --lane, --sources, --extra, --extra-file."""
    for decorate in (
        click.option("--extra-file", multiple=True, metavar="FILE", help="A file whose content enters the key."),
        click.option("--extra", multiple=True, metavar="NAME=VALUE", help="An input of your own: an image, a flag."),
        click.option("--sources", multiple=True, metavar="GLOB", help="Kernel sources: 'src/**/*.py'. Repeatable."),
        click.option("--lane", "job", metavar="NAME", required=True, help="The job; each has a cache of its own."),
    ):
        function = decorate(function)
    return function


form_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "github"]),
    default="text",
    show_default=True,
    help="How to write it.",
)


@command.command("env")
@root_option
@lane_options
@click.option(
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
    from archpatch.kernel_cache.variables import FORMATS, environment

    lane = _lane(options)
    variables = environment(root, lane)
    if as_json or form == "json":
        print_json("cache-env", {"root": str(root.absolute()), "lane": str(lane), "environment": variables})
    else:
        click.echo(FORMATS[form](variables), nl=False)


@command.command("key")
@job_options
@lane_options
@form_option
@json_option
def key(form: str, as_json: bool, **options: Any) -> None:
    """Print the key for a CI's cache: exact, and the prefixes from which a restore may start."""
    found = _key(options, _lane(options))
    if as_json:
        print_json("cache-key", found.to_json())
    elif form == "github":
        prefixes = "\n".join(found.restore_prefixes)
        click.echo(f"key={found}\nrestore-keys<<ARCHPATCH\n{prefixes}\nARCHPATCH")
    else:
        click.echo(found)


def _lane(options: dict[str, Any]) -> Lane:
    """Return the lane that the options describe, with a warning where no GPU is known."""
    from archpatch.kernel_cache.lane import NO_GPU, Wanted, find_lane

    wanted = {name: options[name] for name in ("gpu", "torch", "triton")}
    lane = find_lane(Wanted(**wanted, python=python_path(options["python"])))
    if lane.gpu == NO_GPU:
        warn("no GPU is visible, and --gpu names none: these kernels are in a lane of their own, gpu-none")
    return lane


def _key(options: dict[str, Any], lane: Lane) -> Key:
    from archpatch.kernel_cache.job_key import job_key

    return job_key(_job(options), lane)


def _job(options: dict[str, Any]) -> Job:
    from archpatch.errors import UsageError
    from archpatch.kernel_cache.job_key import Job
    from archpatch.storage.atomic import sha256_of

    extras = {f"extra-file.{path}": sha256_of(Path(path)) for path in options["extra_file"]}
    for word in options["extra"]:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise UsageError(f"--extra {word}: it has no value", remedy="Write NAME=VALUE.")
        extras[f"extra.{name}"] = value
    return Job(name=options["job"], sources=options["sources"], extras=extras)
