"""Processes that are killed (SIGKILL) at random moments; seed and number of kills are set by variables."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, NoReturn

from commandline import CommandLine

#: How many kills each phase gets, and what they are drawn from: printed, so that a failure can be had again.
KILLS = int(os.environ.get("ARCHPATCH_TEST_KILLS", "50"))
SEED = os.environ.get("ARCHPATCH_TEST_SEED") or secrets.token_hex(4)
#: Kills until a command may run to its end again. Those before are reruns too, over all that the killed ones left; most
#: of their time goes into importing torch, so this saves minutes.
KILLS_PER_RERUN = int(os.environ.get("ARCHPATCH_TEST_KILLS_PER_RERUN", "10"))

#: What changes a file system, or asks for a lock, as Python's audit events name it; and opening a file to write.
_STEPS = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.utime", "fcntl.flock")
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def drawn(name: str) -> random.Random:
    """Return the source of random numbers for one series of kills, and print how to have the same again."""
    sys.stdout.write(f"{name}: ARCHPATCH_TEST_SEED={SEED} ARCHPATCH_TEST_KILLS={KILLS}\n")
    return random.Random(f"{SEED} {name}")  # noqa: S311 - moments, no secrets


@dataclass(frozen=True)
class Victim:
    """A command that is killed in one phase: from the line `begins` of what it tells to the line `ends`."""

    arguments: tuple[str, ...]
    begins: str
    ends: str
    environ: Mapping[str, str] = field(default_factory=dict)

    def seconds(self, archpatch: CommandLine) -> float:
        """Run it to its end and return how long the phase takes."""
        with self._started(archpatch) as process:
            started = _told(process, self.begins)
            ended = _told(process, self.ends)
            _, rest = process.communicate()
        assert process.returncode == 0, rest
        return ended - started

    def kill(self, archpatch: CommandLine, *, after: Callable[[], object]) -> bool:
        """Kill it when its phase began and `after` returns; return whether it was still in that phase."""
        with self._started(archpatch) as process:
            _told(process, self.begins)
            after()
            process.kill()
            _, rest = process.communicate()
        return process.returncode == -signal.SIGKILL and self.ends not in rest

    def _started(self, archpatch: CommandLine) -> subprocess.Popen[str]:
        return subprocess.Popen(
            archpatch.command(*self.arguments),
            cwd=archpatch.folder,
            env=archpatch.environment(self.environ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


def _told(process: subprocess.Popen[str], what: str) -> float:
    """Read what the process tells up to the line with `what`, and return the time then."""
    stderr: IO[str] | None = process.stderr
    assert stderr is not None
    told = []
    for line in iter(stderr.readline, ""):
        told.append(line)
        if what in line:
            return time.monotonic()
    raise AssertionError(f"it never said {what!r}: {''.join(told)}")


def fork(run: Callable[[], object]) -> int:
    """Run `run` in a copy of this process and return its id."""
    child = os.fork()
    if child == 0:
        _run_and_exit(run)
    return child


def _run_and_exit(run: Callable[[], object]) -> NoReturn:
    status = 1
    try:
        run()
        status = 0
    finally:
        # Nothing of pytest's own may run twice.
        os._exit(status)


def killed_after(run: Callable[[], object], seconds: float) -> bool:
    """Run `run` in a copy of this process, kill that after `seconds`; return whether it was still running."""
    child = fork(run)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def killed_before_step(run: Callable[[], object], number: int) -> bool:
    """Run `run` in a copy of this process that is killed before its `number`th step; return whether it had so many."""
    child = fork(lambda: _count_down(run, number))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status != 0


def _count_down(run: Callable[[], object], number: int) -> None:
    left = number

    def step(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in _STEPS or (event == "open" and arguments[2] & _TO_WRITE):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(step)
    run()
