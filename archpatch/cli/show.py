"""What a person sees: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.status import Status
    from typing_extensions import Self

__all__ = ["Teller", "json_text", "print_json", "print_table", "warn"]

#: Without a terminal, progress is a line when something changed, but not more often than this (seconds).
_PAUSE = 15.0
_FILES_SHOWN = 3


def print_json(command: str, content: Mapping[str, Any]) -> None:
    """Print one object with its schema, `archpatch.<command>/1`."""
    click.echo(json_text(command, content))


def json_text(command: str, content: Mapping[str, Any]) -> str:
    """Return one object with its schema, `archpatch.<command>/1`, as it is printed."""
    return json.dumps({"schema": f"archpatch.{command}/1", **content}, indent=2, ensure_ascii=False)


def print_table(table: RenderableType) -> None:
    """Print a table of rich's to stdout, as wide as the terminal, or as wide as it needs to be in a pipe."""
    from rich.console import Console

    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    Console(width=None if is_terminal else 200, highlight=False).print(table)


def warn(text: str) -> None:
    """Print a warning to stderr."""
    click.echo(f"archpatch: warning: {text}", err=True)


class Teller:
    """Tells of a build's progress on stderr: a moving line on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._status: Status | None = None
        self._last = 0.0
        self._said: tuple[int, tuple[str, ...]] | None = None

    def __enter__(self) -> Self:
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True, highlight=False).status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def stage(self, text: str) -> None:
        """Print the step, and show it until the next one."""
        click.echo(f"archpatch: {text}", err=True)
        self._show(text)

    def warn(self, text: str) -> None:
        """Print the warning."""
        warn(text)

    def compiling(self, done: int, total: int, files: tuple[str, ...]) -> None:
        """Show how many files are done and which are being compiled."""
        shown = ", ".join(files[:_FILES_SHOWN]) + (" ..." if len(files) > _FILES_SHOWN else "")
        # How many files CMake compiles is not known.
        text = f"[{done}/{total}] {shown or 'compiling'}" if total else "compiling"
        if self._status is not None:
            self._show(text)
        elif (done, files) != self._said and time.monotonic() - self._last > _PAUSE:
            click.echo(f"archpatch: {text}", err=True)
            self._last, self._said = time.monotonic(), (done, files)

    def _show(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text.replace("[", r"\["))
