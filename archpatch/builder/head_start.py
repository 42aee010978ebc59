"""Give a build a head start: a Python that imports torch while its source is still fetched, rewritten and captured."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from archpatch.builder.commands import open_session
from archpatch.builder.processes import Watcher, end_session, follow, run_logged

__all__ = ["RunLogged", "head_start"]

_TORCH_FIRST = Path(__file__).with_name("torch_first.py")


class RunLogged(Protocol):
    """How a process of a build is run: `run_logged`, or what `head_start` yields."""

    def __call__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        log: Path,
        watcher: Watcher | None = None,
    ) -> int:
        """Run `command` to its end and return its exit status."""
        ...


@contextmanager
def head_start(python: Path, *, environment: Mapping[str, str], folder: Path) -> Iterator[RunLogged]:
    """Start `python` in `folder`, and yield what runs one script in it as `run_logged` would.

    It has torch imported by then, as a capture has, so that only the fresh start of an interpreter is saved, and no
    variable that decides what is compiled is read before the script runs. A second script, one of another interpreter,
    and any where this one has ended, is run by `run_logged` itself.
    """
    command = [str(python), str(_TORCH_FIRST)]
    variables = {**environment, "TMPDIR": str(folder)}
    with open_session(
        command, cwd=folder, environment=variables, stdin=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield _Started(process, python)
        finally:
            if process.poll() is None:
                end_session(process.pid)


@dataclass(slots=True)
class _Started:
    """A `RunLogged`."""

    process: subprocess.Popen[bytes]
    python: Path
    is_used: bool = False

    def __call__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        log: Path,
        watcher: Watcher | None = None,
    ) -> int:
        program, *argv = command
        if program == str(self.python) and self._begin(
            {"argv": argv, "cwd": str(cwd), "environment": dict(environment)}
        ):
            return follow(self.process, log=log, watcher=watcher)
        return run_logged(command, cwd=cwd, environment=environment, log=log, watcher=watcher)

    def _begin(self, order: Mapping[str, object]) -> bool:
        """Have the process begin; tells whether it will."""
        if self.is_used or self.process.poll() is not None:
            return False
        self.is_used = True
        assert self.process.stdin is not None  # noqa: S101 - it is a pipe
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.close()
        except BrokenPipeError:
            return False
        return True
