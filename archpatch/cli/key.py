"""`archpatch key`: the key of a CI's cache, every input of it, and which of them made a miss."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from archpatch.cli.options import (
    asked_from,
    json_option,
    matching_options,
    offline_option,
    option,
    python_option,
    terms_from,
    toolkit_option,
    wheel_options,
    wheelhouse_option,
    workshop_from,
)
from archpatch.cli.settings import plan_of
from archpatch.cli.show import print_json, warn

if TYPE_CHECKING:
    from archpatch.jobs import Order
    from archpatch.storage.key import Key

__all__ = ["answer_options", "extra_inputs", "extra_options", "show_key"]


def extra_options(function: Any) -> Any:
    """Add inputs of the user's own: --extra, --extra-file."""
    for decorate in reversed(
        (
            option("--extra", multiple=True, metavar="NAME=VALUE", help="One more input: image=sha256:..."),
            option(
                "--extra-file",
                multiple=True,
                type=click.Path(path_type=Path, dir_okay=False),
                help="A file whose content is one more input: noxfile.py. Repeatable.",
            ),
        )
    ):
        function = decorate(function)
    return function


def answer_options(function: Any) -> Any:
    """Add how a key is told: --against, --format, --json."""
    for decorate in reversed(
        (
            option(
                "--against",
                type=click.Path(path_type=Path, dir_okay=False),
                help="Say which inputs differ from those in this file, made with --json.",
            ),
            option(
                "--format",
                "form",
                type=click.Choice(["text", "github"]),
                default="text",
                show_default=True,
                help="github: key and restore-keys (one a line) for $GITHUB_OUTPUT.",
            ),
            json_option,
        )
    ):
        function = decorate(function)
    return function


@click.group("key")
def command() -> None:
    """Print the key under which a CI's cache holds something."""


@command.command("wheelhouse")
@click.argument("packages", nargs=-1, metavar="[PACKAGE]...")
@matching_options
@wheel_options
@python_option
@option("--torch", metavar="VERSION", help="The torch that will be installed: 2.14.1+cu130 [default: asked].")
@wheelhouse_option
@toolkit_option
@offline_option
@extra_options
@answer_options
@click.pass_context
def wheelhouse(ctx: click.Context, /, packages: tuple[str, ...], form: str, as_json: bool, **options: Any) -> None:
    """Print the key of a wheelhouse with these packages, or with the cells of [tool.archpatch.plan]."""
    from archpatch.keys import wheelhouse_key

    extra = extra_inputs(options["extra"], options["extra_file"])
    workshop = workshop_from(ctx, torch=options["torch"], fetches=False)
    key = wheelhouse_key(_orders(ctx, packages), workshop=workshop, extra=extra)
    show_key("key-wheelhouse", key, form=form, as_json=as_json, against=options["against"])


def _orders(ctx: click.Context, packages: Iterable[str]) -> list[Order]:
    from archpatch.builder.requirement import parse_requirement
    from archpatch.jobs import Order

    terms = terms_from(ctx)
    if not packages:
        from archpatch.errors import UsageError
        from archpatch.pipeline import order_for

        for name in ("gpu", "arch"):
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise UsageError(
                    f"--{name} is for packages that are named, and none is: the plan says what its cells are for",
                    remedy=f"Name packages too, or leave out --{name}.",
                )
        return [order_for(cell, terms) for cell in plan_of(ctx).cells]
    asked = asked_from(ctx, use_driver=True)
    for note in asked.notes:
        warn(note)
    return [
        Order(requirement=parse_requirement(text), asked=asked, python=ctx.params["python"], terms=terms)
        for text in packages
    ]


def extra_inputs(pairs: Iterable[str], files: Iterable[Path]) -> dict[str, str]:
    """Return the inputs that --extra and --extra-file add; a file counts by its name and content, not by its place.

    Raises `UsageError` for a pair that is none, and for two inputs of one name, of which one would not count.
    """
    from archpatch.errors import UsageError
    from archpatch.storage.atomic import sha256_of

    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise UsageError(f"--extra {pair!r} is no NAME=VALUE", remedy="Write for example --extra image=sha256:...")
        _add_input(found, name, value)
    for file in files:
        _add_input(found, f"file.{file.name}", sha256_of(file))
    return found


def _add_input(inputs: dict[str, str], name: str, value: str) -> None:
    from archpatch.errors import UsageError

    if name in inputs:
        raise UsageError(
            f"two inputs of the key are named {name}",
            remedy="Files count by their name: give one file, or --extra NAME=VALUE with a digest of your own.",
        )
    inputs[name] = value


def show_key(command: str, key: Key, *, form: str, as_json: bool = False, against: Path | None = None) -> None:
    """Print a key as `text`, as lines for `github` or as JSON; say what differs from the key in the file `against`."""
    told = key.to_json()
    changes = {} if against is None else _changes(_read_inputs(against), told["inputs"])
    if as_json:
        print_json(command, told if against is None else {**told, "changes": changes})
    elif form == "github":
        # A value of several lines stands between two marks; no prefix can be one: each ends with a hyphen.
        click.echo("\n".join([f"key={key}", "restore-keys<<END", *told["restore_prefixes"], "END"]))
    else:
        click.echo(key)
    for name, change in changes.items():
        click.echo(f"archpatch: {name} was {change['before'] or 'absent'}, is {change['after'] or 'absent'}", err=True)
    if against is not None and not changes:
        click.echo(f"archpatch: the inputs are those of {against}", err=True)


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, dict[str, str | None]]:
    from archpatch.storage.fingerprint import differing

    return {name: {"before": before.get(name), "after": after.get(name)} for name in differing(before, after)}


def _read_inputs(file: Path) -> dict[str, str]:
    from archpatch.errors import MissingFile, UsageError

    try:
        inputs = json.loads(file.read_text(encoding="utf-8"))["inputs"]
        return {str(name): str(value) for name, value in inputs.items()}
    except FileNotFoundError:
        raise MissingFile(f"{file} does not exist", remedy="Keep the output of --json there.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{file} holds no inputs of a key", remedy="Make it with --json.") from None
