"""Run a process whose whole family can be watched, logged and ended."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from archpatch.builder.commands import open_session, running_sessions

__all__ = ["Watcher", "end_all_sessions", "end_session", "end_workers", "follow", "run_logged", "session_commands"]

_TICK = 0.5
_GRACE = 5.0

#: Called with each line of output, and with None every half second: `watcher(line, session)`.
Watcher = Callable[[str | None, int], None]


def run_logged(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    log: Path,
    watcher: Watcher | None = None,
) -> int:
    """Run `command` in a session of its own, append all its output to `log`, and return its exit status.

    Whatever ends the call early (Ctrl-C, an error in `watcher`) ends every process of that session too: ninja puts
    each compiler into a process group of its own, so a signal to the group alone would leave nvcc running.
    """
    with open_session(command, cwd=cwd, environment=environment, stderr=subprocess.STDOUT) as process:
        return follow(process, log=log, watcher=watcher)


def follow(process: subprocess.Popen[bytes], *, log: Path, watcher: Watcher | None = None) -> int:
    """Do what `run_logged` does, for a process that `open_session` has started."""
    try:
        with log.open("ab") as sink:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            for line in _lines(process.stdout, sink):
                if watcher is not None:
                    watcher(line, process.pid)
            return process.wait()
    finally:
        end_session(process.pid)


def _lines(source: IO[bytes], sink: IO[bytes]) -> Iterator[str | None]:
    """Yield the lines of `source` as they come, copying them to `sink`, and None when a tick passes."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        while True:
            if not selector.select(_TICK):
                yield None
                continue
            chunk = os.read(source.fileno(), 65536)
            if not chunk:
                break
            sink.write(chunk)
            sink.flush()
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in lines)
    if rest:
        yield rest.decode("utf-8", "replace")


def end_session(session: int) -> None:
    """End every process of `session`: politely first, so that ninja can stop its own, then at once."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        members = list(_session_members(session))
        if not members:
            return
        for member in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member, number)
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline and any(_session_members(session)):
            time.sleep(0.02)


def end_all_sessions() -> None:
    """End every process of every session that this process has started."""
    for session in running_sessions():
        end_session(session)


def end_workers(folder: Path) -> None:
    """End at once every process whose `TMPDIR` lies in `folder`, as that of all that a build starts does.

    In a container, a folder of that name is another.
    """
    inside, here = b"TMPDIR=" + os.fsencode(f"{folder}/"), folder.stat()
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                variables = Path(entry.path, "environ").read_bytes().split(b"\0")
                is_inside = any(variable.startswith(inside) for variable in variables)
                if is_inside and os.path.samestat(Path(f"{entry.path}/root{folder}").stat(), here):
                    os.kill(int(entry.name), signal.SIGKILL)


def session_commands(session: int) -> Iterator[list[str]]:
    """Yield the command line of each running process of `session` (Linux: read from /proc)."""
    for member in _session_members(session):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{member}/cmdline").read_bytes().split(b"\0")
            yield [word.decode("utf-8", "replace") for word in words if word]


def _session_members(session: int) -> Iterator[int]:
    """Yield the live processes of `session`, zombies left out."""
    with os.scandir("/proc") as entries:
        for entry in entries:
            if not entry.name.isdecimal():
                continue
            with contextlib.suppress(OSError):
                # After the command's name in parentheses come: state, parent, process group, session.
                fields = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    yield int(entry.name)
