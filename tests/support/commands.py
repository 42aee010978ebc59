"""The commands and options of the command line, as click has them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from archpatch.cli.main import cli

#: The words of a command behind `archpatch`.
Words = tuple[str, ...]


def commands(command: click.Command = cli, path: Words = ()) -> Iterator[tuple[Words, click.Command]]:
    """Yield every command with its words behind `archpatch`, groups before what is in them."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*path, name))


def leaf_commands() -> Iterator[tuple[Words, click.Command]]:
    """Yield the commands that do something."""
    return ((path, command) for path, command in commands() if not isinstance(command, click.Group))


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command by each of their names; --help is every command's."""
    options = (each for each in command.params if isinstance(each, click.Option))
    return {name: option for option in options for name in (*option.opts, *option.secondary_opts)}
