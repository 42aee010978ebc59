"""Compile a wheel in a fresh tree, in the interpreter that holds torch."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from archpatch.builder.diagnosis import first_error, is_disk_full
from archpatch.builder.events import Listener
from archpatch.builder.head_start import RunLogged
from archpatch.builder.processes import run_logged, session_commands
from archpatch.builder.schedule import STAND_IN
from archpatch.builder.working_folder import is_working_folder
from archpatch.builder.workplace import Workplace
from archpatch.errors import BuildFailed, DiskFull
from archpatch.storage.listing import matching

__all__ = ["compile_wheel"]

#: A line of ninja's (`[3/10] nvcc ...`): it comes when a file is done, since the output is no terminal.
_FINISHED = re.compile(r"^\[\d+/\d+\] ")


def compile_wheel(workplace: Workplace, into: Path, *, sources: Sequence[Path], run: RunLogged = run_logged) -> Path:
    """Build the wheel of the project in the workplace into the folder `into` and return it.

    `sources` are the files that will be compiled, for the progress; `run` starts the build backend. Raises
    `BuildFailed` with the first compiler error, and `DiskFull`. The tree must be fresh: setuptools does not see that
    `setup.py` changed, and would take objects that were compiled for other archs.
    """
    from build import BuildBackendException, BuildException, ProjectBuilder  # noqa: PLC0415 - only builds need it

    progress = _Progress({str(source) for source in sources}, workplace.listener)

    def runner(cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
        status = run(
            cmd,
            cwd=Path(cwd or workplace.tree),
            environment={**workplace.environment, **(extra_environ or {})},
            log=workplace.log,
            watcher=progress.watch,
        )
        if status:
            raise subprocess.CalledProcessError(status, list(cmd))

    _sweep_hooks(Path(tempfile.gettempdir()))
    into.mkdir(parents=True, exist_ok=True)
    try:
        _silence_warnings()
        builder = ProjectBuilder(workplace.tree, python_executable=str(workplace.python), runner=runner)
        return Path(builder.build("wheel", into))
    except (BuildException, BuildBackendException, subprocess.CalledProcessError) as error:
        raise _failure(workplace.log, error) from error


def _silence_warnings() -> None:
    """Say nothing of a pyproject.toml that has a name much like one that is meant, nor what a backend warned of.

    The latter is in the log already, and told again as warnings of this process. Filters are the whole process's, and
    other threads build too: so these stay.
    """
    import pyproject_hooks  # noqa: PLC0415 - as in `compile_wheel`
    from build import TypoWarning  # noqa: PLC0415

    for category in (TypoWarning, getattr(pyproject_hooks, "BuildBackendWarning", TypoWarning)):
        warnings.simplefilter("ignore", category)


def _sweep_hooks(folder: Path) -> None:
    """Remove what builds that were killed left in the temporary folder `folder`.

    There, and nowhere else, pyproject_hooks keeps the arguments of a hook (`tmp*/input.json`). Those of a wheel that
    was to lie in a working folder which is gone are nobody's.
    """
    for arguments in matching(folder, "tmp*/input.json"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            into = Path(json.loads(arguments.read_bytes())["kwargs"]["wheel_directory"])
            if is_working_folder(into.parent) and not into.exists():
                shutil.rmtree(arguments.parent)


def _failure(log: Path, error: Exception) -> BuildFailed | DiskFull:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if is_disk_full(lines):
        return DiskFull("the disk is full", remedy=f"Free some space, or point TMPDIR elsewhere. The log: {log}")
    return BuildFailed(f"the build failed: {first_error(lines) or error}", remedy=f"The whole log: {log}")


@dataclass(slots=True)
class _Progress:
    """Counts the files that ninja reports as done, and looks for those that compilers hold now."""

    sources: set[str]
    listener: Listener
    done: int = 0
    current: tuple[str, ...] = field(default=())

    def watch(self, line: str | None, session: int) -> None:
        if line is None:
            self.current = tuple(sorted(self.files_in(session_commands(session))))
        elif _FINISHED.match(line):
            self.done = min(self.done + 1, len(self.sources))
        else:
            return
        self.listener.compiling(self.done, len(self.sources), self.current)

    def files_in(self, commands: Iterable[Sequence[str]]) -> set[str]:
        compilers = (words for words in commands if str(STAND_IN) not in words)
        return {Path(word).name for words in compilers for word in words if word in self.sources}
