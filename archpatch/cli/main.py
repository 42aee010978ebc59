"""The command group, the exit statuses, and what a person sees when something is wrong."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from archpatch import __version__
from archpatch.cli.options import option
from archpatch.cli.settings import Settings
from archpatch.errors import ArchpatchError, UsageError

__all__ = ["cli", "run"]

INTERRUPTED = 130

#: Command -> the module that defines it, imported when it is used.
_COMMANDS = {
    "patch": "archpatch.cli.patch",
    "build": "archpatch.cli.build",
    "inspect": "archpatch.cli.inspect",
    "slim": "archpatch.cli.slim",
    "plan": "archpatch.cli.plan",
    "refresh": "archpatch.cli.refresh",
    "wheelhouse": "archpatch.cli.wheelhouse",
    "key": "archpatch.cli.key",
    "cache": "archpatch.cli.cache",
    "doctor": "archpatch.cli.doctor",
}


class _Commands(click.Group):
    """Subcommands by name, in the order of the flow."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = import_module(_COMMANDS[cmd_name]).command
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="archpatch")
@option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="ARCHPATCH_CONFIG",
    help="A TOML file with the settings, instead of the nearest pyproject.toml.",
)
@click.pass_context
def cli(ctx: click.Context, config: Path | None) -> None:
    """Compile CUDA extensions only for the GPUs that will run them, and prove it from the binary.

    Settings come from the command line, then ARCHPATCH_* variables, then [tool.archpatch] in pyproject.toml.
    """
    settings = Settings(config)
    ctx.obj = settings
    # A command's options take their defaults from here; it is read when the first of them asks.
    ctx.default_map = settings.defaults_for(cli.get_command(ctx, ctx.invoked_subcommand or ""))


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status; a user's mistake never shows a traceback."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Under nohup the hang-up is ignored, and stays so.
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        status = cli.main(args=list(arguments), prog_name="archpatch", standalone_mode=False)
    except ArchpatchError as error:
        return _fail(error)
    except click.ClickException as error:
        return _refuse(error)
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("archpatch: interrupted", err=True)
        return INTERRUPTED
    except SystemExit as ended:
        # click ends with 1 where whoever reads our output has gone, which is no failure of ours.
        return 0 if ended.code == 1 else int(ended.code or 0)
    except OSError as error:
        from archpatch.storage.atomic import explained

        return _fail(explained(error))
    return status if isinstance(status, int) else 0


def _refuse(error: click.ClickException) -> int:
    if isinstance(error, click.NoSuchOption) and error.option_name == "--config":
        return _fail(UsageError("--config comes before the command", remedy="Write archpatch --config FILE COMMAND."))
    error.show()
    return error.exit_code


def _fail(error: ArchpatchError) -> int:
    click.echo(f"archpatch: {error.message}", err=True)
    for line in (error.remedy or "").splitlines():
        click.echo(f"  {line}", err=True)
    return error.exit_status


def _end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - a signal handler's signature
    """End as on Ctrl-C, so that compilers are stopped and temporary folders removed."""
    raise SystemExit(128 + number)
