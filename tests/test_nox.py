from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import archpatch.nox
from archpatch import NoMatchingArch, UsageError

MINI = Path(__file__).parents[1] / "fixtures" / "cuda" / "mini"


@dataclass
class Session:
    """What archpatch uses of a nox session."""

    env: dict[str, str | None] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    virtualenv: object = None

    def log(self, line: str) -> None:
        self.lines.append(line)

    warn = log


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5")
    (tmp_path / ".git").mkdir()
    return Path(shutil.copytree(MINI, tmp_path / "mini"))


def kept(project: Path) -> list[str]:
    lines = (project / "setup.py").read_text().splitlines()
    return [line.partition("code=")[2].rstrip('")') for line in lines if "code=" in line]


@pytest.mark.parametrize(
    ("env", "options", "codes"),
    [
        ({}, {}, ["sm_75"]),
        ({}, {"arch": "9.0"}, ["sm_90"]),
        ({}, {"gpu": "l4"}, ["sm_80"]),
        ({}, {"gpu": ("l4", "h200")}, ["sm_80", "sm_90"]),
        ({"ARCHPATCH_GPU": "h200"}, {}, ["sm_90"]),
        ({"ARCHPATCH_ARCH": "8.9", "ARCHPATCH_ON_MISSING": "nearest"}, {}, ["sm_80"]),
        ({"TORCH_CUDA_ARCH_LIST": "8.0"}, {}, ["sm_80"]),
        ({"TORCH_CUDA_ARCH_LIST": None}, {}, ["sm_75", "sm_80", "sm_90", "sm_120"]),
    ],
)
def test_patch_hears_the_noxfile_then_the_session(
    project: Path, env: dict[str, str | None], options: dict[str, str], codes: list[str]
) -> None:
    session = Session(env=env)
    archpatch.nox.patch(session, project, **options)  # type: ignore[arg-type]
    assert kept(project) == codes
    assert session.lines[-1].startswith("archpatch: ")


def test_patch_raises_the_public_errors(project: Path) -> None:
    with pytest.raises(NoMatchingArch, match="sm_80 would run"):
        archpatch.nox.patch(Session(), project, arch="8.9")
    with pytest.raises(UsageError, match="'maybe' is not one of error, nearest, add"):
        archpatch.nox.patch(Session(), project, arch="8.9", on_missing="maybe")
    assert len(kept(project)) == 4


def test_the_projects_settings_are_heard(project: Path) -> None:
    Path("pyproject.toml").write_text('[tool.archpatch]\ngpu = "h200"\n')
    archpatch.nox.patch(Session(env={"TORCH_CUDA_ARCH_LIST": None}), project)
    assert kept(project) == ["sm_90"]
