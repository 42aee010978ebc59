"""Run a short command and take what it prints; compilers are run by `processes`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Output", "Runner", "open_session", "run_command", "running_sessions"]

_STARTED = weakref.WeakSet["subprocess.Popen[bytes]"]()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a command left: its exit status and what it printed."""

    status: int
    stdout: str = ""
    stderr: str = ""


class Runner(Protocol):
    """How commands are run: `run_command`, or a fake in tests."""

    def __call__(self, command: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> Output:
        """Run `command` to its end; raises `FileNotFoundError` where there is no such program."""
        ...


def run_command(command: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> Output:
    """Run `command` to its end, without a terminal or an input that it could ask at.

    It gets a session of its own, and when this call is interrupted all of that session's group ends with it. Raises
    `FileNotFoundError` where there is no such program.
    """
    process = open_session(command, cwd=cwd, environment=environment, stderr=subprocess.PIPE)
    try:
        stdout, stderr = process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return Output(status=process.returncode, stdout=_text(stdout), stderr=_text(stderr))


def open_session(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    stderr: int,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, without a terminal or an input, its output in a pipe."""
    process = subprocess.Popen(
        list(command),
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    _STARTED.add(process)
    return process


def running_sessions() -> list[int]:
    """Return the sessions that this process has started, in whatever thread, and that have not ended."""
    while True:
        # A thread may start one meanwhile, and a lock could be held by what a signal has interrupted.
        with contextlib.suppress(RuntimeError):
            return [process.pid for process in list(_STARTED) if process.returncode is None]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
