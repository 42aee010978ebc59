"""The example for cron: the script is run as cron does, on a plan with the miniature project."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import FIXTURES, PROJECT, CommandLine

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

PLAN = """
[tool.archpatch]
wheelhouse = "../shared"

[tool.archpatch.plan]
packages = ["./mini"]
gpu = ["h200"]
arch = ["8.9"]
"""


@pytest.fixture
def fleet(archpatch: CommandLine) -> Path:
    """The folder of the script, with a plan, and an environment that holds archpatch and torch."""
    folder = archpatch.folder / "fleet"
    shutil.copytree(FIXTURES / "mini", folder / "mini")
    shutil.copy(PROJECT / "examples" / "ci" / "refresh.sh", folder)
    (folder / "venv").mkdir()
    (folder / "venv" / "bin").symlink_to(Path(sys.executable).parent)
    (folder / "pyproject.toml").write_text(PLAN)
    return folder


def start(archpatch: CommandLine, fleet: Path) -> subprocess.Popen[str]:
    # cron's own PATH, and a working directory that is not the script's.
    environ = archpatch.environment({"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT)})
    return subprocess.Popen(
        [str(fleet / "refresh.sh")], cwd="/", env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def states(fleet: Path) -> list[str]:
    return [cell["state"] for cell in json.loads((fleet / "report.json").read_text())["cells"]]


def test_it_says_nothing_while_all_goes_well_also_where_runs_overlap(archpatch: CommandLine, fleet: Path) -> None:
    runs = [start(archpatch, fleet) for _ in range(2)]
    printed = [run.communicate()[0] for run in runs]
    assert [(run.returncode, text) for run, text in zip(runs, printed, strict=True)] == [(0, "")] * 2
    (wheel,) = (archpatch.folder / "shared" / "sm90").rglob("*.whl")
    built = wheel.stat().st_mtime_ns
    again = start(archpatch, fleet)
    assert (again.communicate()[0], again.returncode) == ("", 0)
    # That the package has nothing for 8.9 is no news either.
    assert (states(fleet), wheel.stat().st_mtime_ns) == (["refused", "hit"], built)
    assert archpatch.left_behind() == []


def test_a_failure_is_told(archpatch: CommandLine, fleet: Path) -> None:
    (fleet / "mini" / "csrc" / "add.cu").write_text("#error broken on purpose\n")
    failed = start(archpatch, fleet)
    assert "broken on purpose" in failed.communicate()[0]
    assert (failed.returncode, states(fleet)) == (4, ["refused", "failed"])
    assert archpatch.left_behind() == []
