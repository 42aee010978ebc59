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

from archpatch.builder import head_start as head_start_module
from archpatch.builder import torch_first
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


#: What an interpreter's own start may do: set a variable, change one, and start what reads all that it finds.
SITE = """
import os, subprocess
os.environ["BY_SITE"], os.environ["CFLAGS"] = "1", os.environ.get("CFLAGS", "") + " -DBY_SITE"
subprocess.run(["cat"], close_fds=False)
"""


def variables(tmp_path: Path, **more: str) -> dict[str, str]:
    """Return the variables of a build, where a torch of a few words is installed."""
    own = {"PYTHONPATH": str(tmp_path / "packages"), "CFLAGS": "-g0", "SAME": "\udcff\u20ac"}
    return {**os.environ, **own, **more}


@contextmanager
def started(tmp_path: Path, torch: str = "", **more: str) -> Iterator[RunLogged]:
    """Give a head start, with variables that a build would not have."""
    packages = tmp_path / "packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text(f"import os, subprocess, sys, tempfile, time\n{torch}\n")
    (packages / "sitecustomize.py").write_text(SITE)
    environment = variables(tmp_path, STARTED="1", CHANGED="before", **more)
    with head_start(PYTHON, environment=environment, folder=tmp_path / "head-start") as run:
        yield run


def run_script(run: RunLogged, script: Path, tmp_path: Path, **more: str) -> tuple[int, list[str]]:
    """Run the script and return its status and its lines."""
    log, command = tmp_path / f"{time.monotonic_ns()}.log", [str(PYTHON), str(script), "one", "two \u20ac"]
    environment = variables(tmp_path, TMPDIR=str(tmp_path), CHANGED="after", NEW="\udcff\u20ac", **more)
    return run(command, cwd=tmp_path, environment=environment, log=log), log.read_text().splitlines()


def seen_by(run: RunLogged, script: Path, tmp_path: Path, **more: str) -> dict[str, Any]:
    """Run the script to a good end and return what it saw."""
    status, lines = run_script(run, script, tmp_path, **more)
    assert (status, lines[-1]) == (0, "told on stderr")
    return dict(json.loads(lines[-2]))


def test_a_script_sees_what_it_would_see_in_a_python_of_its_own(tmp_path: Path, script: Path) -> None:
    with started(tmp_path) as run:
        ahead = seen_by(run, script, tmp_path)
        plain = seen_by(run_logged, script, tmp_path)
    assert (ahead.pop("torch"), plain.pop("torch")) == (True, False)
    # The hook of a build backend takes its own folder off the path, before anything else.
    plain["path"].remove(str(script.parent))
    assert ahead == plain
    assert (ahead["environment"]["BY_SITE"], ahead["environment"]["CFLAGS"]) == ("1", "-g0 -DBY_SITE")
    assert "STARTED" not in ahead["environment"]


def test_what_torch_sets_stays_and_where_it_looked_for_a_folder_does_not(tmp_path: Path, script: Path) -> None:
    with started(tmp_path, "os.environ['BY_TORCH'] = '1'; tempfile.gettempdir()") as run:
        seen = seen_by(run, script, tmp_path)
    assert seen["environment"]["BY_TORCH"] == "1"
    assert seen["temporary"] == str(tmp_path)


def test_a_status_and_lines_get_through(tmp_path: Path, script: Path) -> None:
    heard = []
    with started(tmp_path) as run:
        status = run(
            [str(PYTHON), str(script)],
            cwd=tmp_path,
            environment=variables(tmp_path, STATUS="7"),
            log=tmp_path / "log",
            watcher=lambda line, session: heard.append((line, session in running_sessions())),
        )
    assert status == 7
    assert ("told on stderr", True) in heard


def test_much_that_torch_says_and_many_variables_stop_nothing(tmp_path: Path, script: Path) -> None:
    with started(tmp_path, "print('x' * 200_000, flush=True)") as run:
        assert seen_by(run, script, tmp_path, ONE="1" * 100_000, TWO="2" * 100_000)["torch"] is True


def test_what_is_no_script_and_a_second_script_get_a_python_of_their_own(tmp_path: Path, script: Path) -> None:
    other = tmp_path / "other-python"
    other.symlink_to(PYTHON)
    environment = variables(tmp_path)
    with started(tmp_path) as run:
        for number, program in enumerate((other, PYTHON)):
            log = tmp_path / f"{number}.log"
            assert run([str(program), "-c", "print('here')"], cwd=tmp_path, environment=environment, log=log) == 0
            assert log.read_text() == "here\n"
        assert seen_by(run, script, tmp_path)["torch"] is True
        assert seen_by(run, script, tmp_path)["torch"] is False
        assert run_script(run, script, tmp_path, STATUS="3")[0] == 3


@pytest.mark.parametrize("late", ["", "time.sleep(1)"], ids=["soon", "late"])
@pytest.mark.parametrize("end", ["raise ImportError('no torch')", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_torch_that_ends_its_interpreter_ends_no_build(tmp_path: Path, script: Path, late: str, end: str) -> None:
    with started(tmp_path, f"{late}; {end}".removeprefix("; ")) as run:
        if not late:
            time.sleep(1)
        assert seen_by(run, script, tmp_path)["torch"] is False


@pytest.mark.parametrize("path", ["", ":/nowhere", "relative"])
def test_no_python_is_started_where_its_path_depends_on_where(tmp_path: Path, path: str) -> None:
    with head_start(PYTHON, environment={**os.environ, "PYTHONPATH": path}, folder=tmp_path / "head-start") as run:
        assert (run is run_logged) == bool(path)


def test_a_python_that_cannot_be_started_is_left_to_the_build(tmp_path: Path) -> None:
    with head_start(tmp_path / "none", environment=os.environ, folder=tmp_path / "head-start") as run:
        assert run is run_logged


def test_modules_of_archpatch_are_not_found_where_its_files_are_links(tmp_path: Path) -> None:
    copied = tmp_path / "linked"
    copied.mkdir()
    for module in Path(torch_first.__file__).parent.glob("*.py"):
        (copied / module.name).symlink_to(module)
    (tmp_path / "torch.py").touch()
    (tmp_path / "script.py").write_text("import importlib.util; print(importlib.util.find_spec('working_folder'))")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_start_module, "_TORCH_FIRST", copied / "torch_first.py")
        environment, log = {**os.environ, "PYTHONPATH": str(tmp_path)}, tmp_path / "log"
        with head_start(PYTHON, environment=environment, folder=tmp_path / "head-start") as run:
            assert run([str(PYTHON), str(tmp_path / "script.py")], cwd=tmp_path, environment=environment, log=log) == 0
    assert log.read_text() == "None\n"


@pytest.mark.parametrize("end", ["time.sleep(60)", "os._exit(1)"])
def test_nothing_that_torch_has_started_is_left(tmp_path: Path, end: str) -> None:
    with started(tmp_path, f"subprocess.Popen(['sleep', '60']); {end}"):
        (session,) = running_sessions()
        time.sleep(1)
        assert ["sleep", "60"] in list(session_commands(session))
    assert running_sessions() == []
    assert list(session_commands(session)) == []


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from archpatch.builder.head_start import head_start\n"
        "folder = Path(sys.argv[1], 'head-start'); variables = {'PYTHONPATH': sys.argv[1]}\n"
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
