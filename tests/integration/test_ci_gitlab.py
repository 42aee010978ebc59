"""The example for GitLab: its scripts are run job by job, with its rules for caches, artifacts and dotenv reports."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from commandline import FIXTURES, PROJECT, CommandLine, make_sdist, only_index

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

EXAMPLE = PROJECT / "examples" / "ci" / "gitlab-ci.yml"


@dataclass(frozen=True)
class GitLab:
    """Runs pipelines of the project in the folder `project`; protected branches have caches of their own."""

    project: Path
    folder: Path
    environ: Mapping[str, str]
    caches: dict[str, Path] = field(default_factory=dict)

    def pipeline(self, *, protected: bool) -> Path:
        """Run all jobs, each in a workspace of its own, and return the folder of the artifacts."""
        definition: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
        assert all(line.startswith("python -m pip install ") for line in definition["default"]["before_script"])
        artifacts = self.folder / f"artifacts-{len(list(self.folder.iterdir()))}"
        artifacts.mkdir()
        told: dict[str, str] = {}
        for stage in definition["stages"]:
            (name,) = (name for name, job in definition.items() if isinstance(job, dict) and job.get("stage") == stage)
            self._job(definition[name], artifacts, told, suffix="protected" if protected else "non_protected")
        return artifacts

    def _job(self, job: Mapping[str, Any], artifacts: Path, told: dict[str, str], *, suffix: str) -> None:
        workspace = artifacts.with_name(f"{artifacts.name}-{job['stage']}")
        shutil.copytree(self.project, workspace)
        key = None
        if "cache" in job:
            key = f"{told[job['cache']['key'].removeprefix('$')]}-{suffix}"
            # What GitLab's runner refuses.
            assert not re.search(r"/|%2F|^\.*$", key, re.IGNORECASE)
            (path,) = job["cache"]["paths"]
            if key in self.caches:
                copy(self.caches[key], workspace / path)
        if job["stage"] == "test":
            shutil.copytree(artifacts, workspace, symlinks=True, dirs_exist_ok=True)
        subprocess.run(
            ["bash", "-c", "\n".join(["set -eo pipefail", *job["script"]])],
            cwd=workspace,
            env={**self.environ, **told},
            check=True,
        )
        kept = job.get("artifacts", {})
        if "reports" in kept:
            lines = (workspace / kept["reports"]["dotenv"]).read_text().splitlines()
            told.update(line.split("=", 1) for line in lines)
            assert all(re.fullmatch(r"\w+", name) for name in told)
        for path in kept.get("paths", ()):
            copy(workspace / path, artifacts / path)
        if key is not None:
            self.caches[key] = self.folder / key
            shutil.rmtree(self.caches[key], ignore_errors=True)
            copy(workspace / job["cache"]["paths"][0], self.caches[key])


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy(source, target)


def states(artifacts: Path) -> list[str]:
    return [cell["state"] for cell in json.loads((artifacts / "report.json").read_text())["cells"]]


@pytest.fixture
def gitlab(archpatch: CommandLine) -> GitLab:
    """A project with a plan and a test that wants its wheel, an index with that package, runners with torch."""
    project = archpatch.folder / "project"
    (project / "tests").mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[tool.archpatch.plan]\npackages = ["archpatch_mini==0.1.0"]\ngpu = ["h200"]\n'
    )
    make_sdist(FIXTURES / "mini", archpatch.folder / "index")
    (project / "tests" / "test_wheel.py").write_text(
        "import importlib.util\n\n\ndef test_it():\n    assert importlib.util.find_spec('archpatch_mini')\n"
    )
    installed = str(archpatch.folder / "installed")
    environ = archpatch.environment(
        {
            **only_index(archpatch.folder / "index"),
            "ARCHPATCH_CACHE": str(archpatch.folder / "cache"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([installed, str(PROJECT)]),
            "PIP_TARGET": installed,
        }
    )
    (archpatch.folder / "gitlab").mkdir()
    return GitLab(project, archpatch.folder / "gitlab", environ)


def test_the_second_pipeline_hits_and_merge_requests_have_a_cache_of_their_own(gitlab: GitLab) -> None:
    assert states(gitlab.pipeline(protected=True)) == ["built"]
    assert states(gitlab.pipeline(protected=True)) == ["hit"]
    (key,) = gitlab.caches
    assert re.fullmatch(r"archpatch-wheelhouse-h200-torch[\w.]+-cu\d+-cp\d+-protected", key)
    # A merge request has a cache of its own, and cannot write that of the protected branch.
    before = sorted(gitlab.caches[key].rglob("*"))
    assert states(gitlab.pipeline(protected=False)) == ["built"]
    assert sorted(gitlab.caches[key].rglob("*")) == before
    assert len(gitlab.caches) == 2
