"""A script that runs where torch is imported already sees what it would see in a Python of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commandline import FIXTURES, CommandLine

from archpatch.builder.commands import running_sessions
from archpatch.builder.head_start import RunLogged, head_start
from archpatch.builder.processes import run_logged, session_commands

pytestmark = pytest.mark.integration

PYTHON = Path(sys.executable)
#: What a build backend can see of how it was started, and of what happened before.
SCRIPT = """
import json, os, sys, tempfile
seen = {
    "argv": sys.argv, "cwd": os.getcwd(), "path": sys.path, "name": __name__, "file": __file__,
    "environment": dict(os.environ), "input": sys.stdin.read(), "inherited": os.read(0, 1).decode(),
    "temporary": tempfile.gettempdir(), "session": os.getsid(0) == os.getpid(), "flags": list(sys.flags),
    "main": sys.modules["__main__"].__dict__ is globals(), "umask": os.umask(0o22),
    "handlers": [str(__import__("signal").getsignal(number)) for number in range(1, 32)],
}
print(json.dumps({**seen, "torch": "torch" in sys.modules}))
print("told on stderr", file=sys.stderr)
sys.exit(int(os.environ.get("STATUS", 0)))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    made = tmp_path / "scripts" / "script.py"
    made.parent.mkdir()
    made.write_text(SCRIPT)
    return made


@contextmanager
def started(tmp_path: Path, torch: str = "") -> Iterator[RunLogged]:
    """Give a head start with a torch of a few words."""
    folder, packages = tmp_path / "head-start", tmp_path / "packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text(f"import os, tempfile\n{torch}\n")
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(packages), "STARTED": "1", "CHANGED": "before"}
    with head_start(PYTHON, environment=environment, folder=folder) as run:
        yield run


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    own = {"PYTHONPATH": str(tmp_path / "packages"), "TMPDIR": str(tmp_path), "CHANGED": "after", "NEW": "\udcff\u20ac"}
    return {**os.environ, **own, **more}


def seen_by(run: RunLogged, script: Path, tmp_path: Path, *, status: int = 0) -> dict[str, Any]:
    """Run the script and return what it saw."""
    log, command = tmp_path / f"{time.monotonic_ns()}.log", [str(PYTHON), str(script), "one", "two words"]
    assert run(command, cwd=tmp_path, environment=environment(tmp_path, STATUS=str(status)), log=log) == status
    lines = log.read_text().splitlines()
    assert lines[1:] == ["told on stderr"]
    return dict(json.loads(lines[0]))


def test_a_script_sees_what_it_would_see_in_a_python_of_its_own(tmp_path: Path, script: Path) -> None:
    with started(tmp_path) as run:
        ahead = seen_by(run, script, tmp_path)
        plain = seen_by(run_logged, script, tmp_path)
    assert (ahead.pop("torch"), plain.pop("torch")) == (True, False)
    # The hook of a build backend takes its own folder off the path, before anything else.
    plain["path"].remove(str(script.parent))
    assert ahead == plain
    assert "STARTED" not in ahead["environment"]


def test_what_torch_sets_stays_and_where_it_looked_for_a_folder_does_not(tmp_path: Path, script: Path) -> None:
    with started(tmp_path, "os.environ['BY_TORCH'] = '1'; tempfile.gettempdir()") as run:
        seen = seen_by(run, script, tmp_path)
    assert seen["environment"]["BY_TORCH"] == "1"
    assert seen["temporary"] == str(tmp_path)


def test_a_status_and_lines_get_through(tmp_path: Path, script: Path) -> None:
    heard = []
    with started(tmp_path) as run:
        command, log = [str(PYTHON), str(script)], tmp_path / "log"
        status = run(
            command,
            cwd=tmp_path,
            environment=environment(tmp_path, STATUS="7"),
            log=log,
            watcher=lambda line, session: heard.append((line, session in running_sessions())),
        )
    assert status == 7
    assert ("told on stderr", True) in heard


def test_a_second_script_and_another_python_get_one_of_their_own(tmp_path: Path, script: Path) -> None:
    other = tmp_path / "other-python"
    other.symlink_to(PYTHON)
    with started(tmp_path) as run:
        log = tmp_path / "log"
        assert run([str(other), "-c", "print('other')"], cwd=tmp_path, environment=environment(tmp_path), log=log) == 0
        assert log.read_text() == "other\n"
        assert seen_by(run, script, tmp_path)["torch"] is True
        assert seen_by(run, script, tmp_path, status=3)["torch"] is False


@pytest.mark.parametrize("torch", ["raise ImportError('no torch here')", "os._exit(1)", "os.kill(os.getpid(), 9)"])
def test_a_torch_that_ends_the_interpreter_delays_nothing(tmp_path: Path, script: Path, torch: str) -> None:
    with started(tmp_path, torch) as run:
        deadline = time.monotonic() + 30
        while run.process.poll() is None and time.monotonic() < deadline:  # type: ignore[attr-defined]
            time.sleep(0.05)
        assert seen_by(run, script, tmp_path)["torch"] is False


def test_nothing_is_left_of_one_that_was_not_used(tmp_path: Path) -> None:
    with started(tmp_path, "import time; time.sleep(60)"):
        (session,) = running_sessions()
        assert list(session_commands(session))
    assert running_sessions() == []
    assert list(session_commands(session)) == []


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from archpatch.builder.head_start import head_start\n"
        "folder = Path(sys.argv[1]); variables = {'PYTHONPATH': sys.argv[1]}\n"
        "with head_start(Path(sys.executable), environment=variables, folder=folder) as run:\n"
        "    print(run.process.pid, flush=True); time.sleep(60)"
    )
    (tmp_path / "torch.py").touch()
    with subprocess.Popen([PYTHON, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        session = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while list(session_commands(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(session_commands(session)) == []


def test_a_build_makes_use_of_it(archpatch: CommandLine, nvcc: Path) -> None:
    assert nvcc.exists()
    project = shutil.copytree(FIXTURES / "mini", archpatch.folder / "project")
    text = (project / "setup.py").read_text()
    told = "import sys; print('torch is', 'here' if 'torch' in sys.modules else 'to come')\n"
    (project / "setup.py").write_text(f"{told}{text}")
    answer = archpatch("build", project, "--arch", "9.0")
    assert answer.status == 0, answer.stderr
    (log,) = (Path(word) for word in answer.stderr.split() if word.endswith(".log"))
    # The capture imports it first, too.
    assert [line for line in log.read_text().splitlines() if line.startswith("torch is")] == ["torch is here"] * 2
