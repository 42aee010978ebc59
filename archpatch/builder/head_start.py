"""Give a build a head start: a Python that imports torch while its source is still fetched, rewritten and captured."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
    """Start `python` in the new folder `folder`, and yield what runs one script in it as `run_logged` would.

    The script finds torch imported, as the `setup.py` of a capture does, and all else as in a Python of its own: what
    differs between `environment` and its variables is set right before it runs. Whatever else is asked for, and a
    script that this Python did not come to run, is run by `run_logged` itself.
    """
    started = _start(python, environment, folder)
    if started is None:
        yield run_logged
        return
    try:
        yield started
    finally:
        started.end()


def _start(python: Path, environment: Mapping[str, str], folder: Path) -> _Started | None:
    """Start the process, where it would be like the one that comes later: None where it would not, or cannot be."""
    paths = environment.get("PYTHONPATH")
    if paths and not all(map(os.path.isabs, paths.split(os.pathsep))):
        # Such an entry is taken for the folder that a Python is started in, and that is another one.
        return None
    variables = {**environment, "TMPDIR": str(folder)}
    read, write = os.pipe()
    try:
        folder.mkdir()
        command = [str(python), str(_TORCH_FIRST), str(read), str(folder)]
        process = open_session(command, cwd=folder, environment=variables, stderr=subprocess.STDOUT, pass_fds=(read,))
    except OSError:
        os.close(write)
        return None
    finally:
        os.close(read)
    return _Started(process, python, folder, variables, write)


@dataclass(slots=True)
class _Started:
    """A `RunLogged`: a process that waits for an order at the other end of the pipe `order`."""

    process: subprocess.Popen[bytes]
    python: Path
    folder: Path
    variables: Mapping[str, str]
    order: int
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
        if not self.is_used and program == str(self.python) and Path(*argv[:1]).is_file():
            self.is_used = True
            self._order(argv, cwd, environment)
            status = follow(self.process, log=log, watcher=watcher)
            if (self.folder / "began").exists():
                return status
        return run_logged(command, cwd=cwd, environment=environment, log=log, watcher=watcher)

    def _order(self, argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> None:
        changed = {name: value for name, value in environment.items() if self.variables.get(name) != value}
        order = {
            "argv": list(map(_bytes, argv)),
            "cwd": _bytes(str(cwd)),
            "set": {_bytes(name): _bytes(value) for name, value in changed.items()},
            "unset": [_bytes(name) for name in self.variables.keys() - environment.keys()],
        }
        (self.folder / "order.json").write_text(json.dumps(order), encoding="ascii")
        with suppress(BrokenPipeError):
            os.write(self.order, b"\n")

    def end(self) -> None:
        """End the process, if it still waits, and whatever it has started."""
        if not self.is_used:
            end_session(self.process.pid)
        os.close(self.order)
        with self.process:
            pass


def _bytes(text: str) -> str:
    """Return the bytes of `text` as the system has them, one character each."""
    return os.fsencode(text).decode("latin-1")
