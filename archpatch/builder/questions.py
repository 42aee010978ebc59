"""Ask a tool about itself: a short command whose answer counts, also when the answer is that it cannot be started."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from archpatch.builder.commands import Output, run_command

__all__ = ["Ask", "ask"]

#: How tools are asked: `ask`, or a fake in tests.
Ask = Callable[[Sequence[str]], Output]

#: What a shell reports for a command that cannot be started.
_NOT_STARTED = 127


def ask(command: Sequence[str]) -> Output:
    """Run `command` here, in this environment; one that cannot be started has status 127 and the reason on stderr."""
    try:
        return run_command(command, cwd=Path.cwd(), environment=os.environ)
    except OSError as error:
        return Output(status=_NOT_STARTED, stderr=f"{command[0]}: {error.strerror}")
