"""The actions and workflows for GitHub, under its events and with a cache like its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from commandline import FIXTURES, PROJECT, CommandLine, make_sdist, only_index
from github_runner import BY_HAND, MAIN, MERGE_GROUP, NIGHT, PULL_REQUEST, Cache, Event, Runner, StepFailed
from records import make

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

RESTORE = ".github/actions/restore-wheelhouse"
SAVE = ".github/actions/save-wheelhouse"
REQUESTED = {"packages": "./mini", "gpu": "h200"}


@pytest.fixture
def repository(archpatch: CommandLine) -> Path:
    """A repository with the miniature project, a plan for it, a test that wants its wheel, and our actions copied."""
    folder = archpatch.folder / "repository"
    shutil.copytree(PROJECT / ".github" / "actions", folder / ".github" / "actions")
    shutil.copytree(PROJECT / "examples" / "ci" / "github", folder / ".github" / "workflows")
    shutil.copytree(FIXTURES / "mini", folder / "mini")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_wheel.py").write_text(
        "import importlib.util\n\n\ndef test_it():\n    assert importlib.util.find_spec('archpatch_mini')\n"
    )
    write_plan(folder)
    return folder


@pytest.fixture
def runner(archpatch: CommandLine, repository: Path) -> Runner:
    """A runner that has archpatch and torch, and an index with the miniature project alone."""
    folder = archpatch.folder
    make_sdist(FIXTURES / "mini", folder / "index")
    (folder / "run").mkdir()
    installed = str(folder / "installed")
    environ = archpatch.environment(
        {
            **only_index(folder / "index"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([installed, str(PROJECT)]),
            "PIP_TARGET": installed,
            "ARCHPATCH_CACHE": str(folder / "cache"),
        }
    )
    return Runner(
        repository, folder / "run", MAIN, Cache(folder / "caches"), environ, unrun=frozenset({"Install archpatch"})
    )


def write_plan(repository: Path, changes: dict[str, str] | None = None) -> None:
    text = (PROJECT / "examples" / "ci" / "pyproject.toml").read_text()
    for old, new in {"causal_conv1d==1.7.0": "archpatch_mini==0.1.0", **(changes or {})}.items():
        assert old in text
        text = text.replace(old, new)
    (repository / "pyproject.toml").write_text(text)


def key(runner: Runner, **given: str) -> str:
    return runner.action(RESTORE, given, runner.checkout())["key"]


# --- who writes ---


@pytest.mark.parametrize(
    ("event", "saved"),
    [
        (MAIN, "true"),
        (NIGHT, "true"),
        (BY_HAND, "true"),
        (PULL_REQUEST, "false"),
        (MERGE_GROUP, "false"),
        (Event("push", "refs/heads/feature"), "false"),
        (Event("push", "refs/heads/main/feature"), "false"),
        (Event("push", "refs/tags/main"), "false"),
        (Event("workflow_dispatch", "refs/heads/feature"), "false"),
        # These run with the rights and the cache of the default branch, whoever caused them.
        (Event("pull_request_target"), "false"),
        (Event("workflow_run"), "false"),
        (Event("issue_comment"), "false"),
    ],
)
def test_the_default_branch_writes_and_all_others_read(runner: Runner, event: Event, saved: str) -> None:
    run = runner.on(event)
    make(run.scratch / "wheelhouse")
    outputs = run.action(SAVE, {"key": "lane-1", "hit": "false"}, run.scratch)
    assert outputs == {"saved": saved}
    assert runner.cache.entries == ([("lane-1", "wheelhouse")] if saved == "true" else [])
    assert "".join(run.summary).startswith(
        "wheelhouse: saved" if saved == "true" else "wheelhouse: not saved: only the default"
    )


def test_nothing_is_saved_where_the_key_was_there_or_there_is_no_wheel(runner: Runner) -> None:
    folder = runner.scratch / "wheelhouse"
    assert runner.action(SAVE, {"key": "lane-1", "hit": "false"}, runner.scratch) == {"saved": "false"}
    (folder / "sm90" / ".staging").mkdir(parents=True)
    (folder / ".archpatch").mkdir()
    (folder / "sm90" / ".staging" / "half.whl").touch()
    (folder / "sm90" / "orphan.whl.json").touch()
    assert runner.action(SAVE, {"key": "lane-1", "hit": "false"}, runner.scratch) == {"saved": "false"}
    make(folder)
    assert runner.action(SAVE, {"key": "lane-1", "hit": "true"}, runner.scratch) == {"saved": "false"}
    assert runner.cache.entries == []
    assert runner.action(SAVE, {"key": "lane-1", "hit": "false"}, runner.scratch) == {"saved": "true"}


def test_a_hidden_folder_can_be_the_wheelhouse(runner: Runner) -> None:
    make(runner.scratch / ".wheels")
    given = {"key": "lane-1", "hit": "false", "wheelhouse": ".wheels"}
    assert runner.action(SAVE, given, runner.scratch) == {"saved": "true"}


# --- what is read ---


def test_the_newest_of_the_same_lane_stands_in_for_a_key_that_is_not_there(runner: Runner) -> None:
    exact = key(runner, **REQUESTED)
    lane = exact.rpartition("-")[0]
    for number, name in enumerate(("other-lane-1", f"{lane}-old", f"{lane}-new", exact)):
        run = runner.on(PULL_REQUEST)
        workspace = run.checkout()
        restored = run.action(RESTORE, REQUESTED, workspace)
        assert restored == {"key": exact, "hit": "false"}
        found = ("nothing to restore for", "nothing to restore for", f"{lane}-old", f"{lane}-new")[number]
        assert found in "".join(run.summary)
        shutil.rmtree(workspace / "wheelhouse", ignore_errors=True)
        make(workspace / "wheelhouse", version=str(number))
        runner.cache.save(workspace, "wheelhouse", name)
    workspace = runner.checkout()
    assert runner.action(RESTORE, REQUESTED, workspace) == {"key": exact, "hit": "true"}
    assert [path.name[:6] for path in (workspace / "wheelhouse").iterdir()] == ["mini-3"]


def test_every_input_has_a_say_in_the_key(runner: Runner) -> None:
    repository = runner.repository
    (repository / "noxfile.py").write_text("# one")
    (repository / "other.toml").write_text("strict = true\n")
    keys = [
        key(runner, **REQUESTED),
        key(runner, packages="./mini", gpu="h200, l4"),
        key(runner, packages="./mini", arch="9.0+PTX"),
        key(runner, packages="./mini\n\n  another==0.1.0\n", gpu="h200"),
        key(runner, **REQUESTED, torch="2.13.0+cu130"),
        key(runner, **REQUESTED, config="other.toml"),
        key(runner, **REQUESTED, extra="image=sha256:1\nsecond=2"),
        key(runner, **REQUESTED, extra="image=sha256:2"),
        key(runner, **{"extra-files": "noxfile.py"}, **REQUESTED),
        key(runner),
    ]
    (repository / "other.toml").write_text('gpu = "h200"\n')
    assert key(runner, packages="./mini", config="other.toml") == keys[0]
    (repository / "noxfile.py").write_text("# two")
    keys.append(key(runner, **{"extra-files": "noxfile.py"}, **REQUESTED))
    assert len(set(keys)) == len(keys)
    same = {**REQUESTED, "python": sys.executable, "wheelhouse": "elsewhere"}
    assert key(runner, **same) == keys[0]
    # Lines are told apart, and their order does not matter.
    assert key(runner, **REQUESTED, extra="second=2\n\n  image=sha256:1") == keys[6]
    files = {"extra-files": "other.toml\nnoxfile.py"}
    assert key(runner, **files, **REQUESTED) == key(runner, **{"extra-files": "noxfile.py\nother.toml"}, **REQUESTED)
    assert keys[1].startswith("archpatch-wheelhouse-h200-l4-torch")


@pytest.mark.parametrize("text", ["$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '" && touch pwned; "', "* ?"])
def test_text_from_outside_is_never_run(runner: Runner, text: str) -> None:
    assert key(runner, **REQUESTED, extra=f"note={text}") != key(runner, **REQUESTED, extra="note=")
    for given in ({"packages": text, "gpu": "h200"}, {"packages": "./mini", "gpu": text}):
        with pytest.raises(StepFailed):
            key(runner, **given)
    workspace = runner.checkout()
    make(workspace / text)
    outputs = runner.action(SAVE, {"key": "lane-1", "hit": text, "wheelhouse": text}, workspace)
    assert outputs == {"saved": "true"}
    assert list(runner.scratch.parent.rglob("pwned")) == []


@pytest.mark.parametrize("package", ["--help", "--json", "-h"])
def test_a_package_is_no_option(runner: Runner, package: str) -> None:
    with pytest.raises(StepFailed, match=re.escape(package)):
        key(runner, packages=package, gpu="h200")


# --- with wheels ---


def test_cold_then_warm_then_changed(runner: Runner) -> None:
    def job(run: Runner, *, build: bool = True) -> tuple[str, bool | None, str]:
        """Restore, build, save; return whether the key was there, the wheel was there, and the wheelhouse was saved."""
        workspace = run.checkout()
        restored = run.action(RESTORE, REQUESTED, workspace)
        hit = None
        if build:
            run.run("archpatch build ./mini --gpu h200 --json > built.json", workspace)
            hit = json.loads((workspace / "built.json").read_text())["wheels"][0]["hit"]
        run.run("archpatch wheelhouse verify", workspace)
        return restored["hit"], hit, run.action(SAVE, restored, workspace)["saved"]

    assert job(runner.on(MAIN)) == ("false", False, "true")
    assert job(runner.on(PULL_REQUEST)) == ("true", True, "false")
    source = runner.repository / "mini" / "csrc" / "add.cu"
    source.write_text(source.read_text() + "// changed\n")
    assert job(runner.on(MERGE_GROUP), build=False) == ("false", None, "false")
    assert len(runner.cache.entries) == 1
    assert job(runner.on(MAIN)) == ("false", False, "true")
    assert job(runner.on(BY_HAND)) == ("true", True, "false")
    assert len(runner.cache.entries) == 2


def test_the_nightly_workflow_fills_what_the_tests_read(runner: Runner) -> None:
    write_plan(runner.repository, {'"l4"': '"l4", "h100"'})
    night = runner.on(NIGHT)
    night.workflow(".github/workflows/nightly.yml")
    assert sorted(path.name for path in (night.scratch / "artifacts").iterdir()) == [
        "report",
        "wheelhouse-archpatch_mini==0.1.0@h200",
        "wheelhouse-archpatch_mini==0.1.0@l4",
    ]
    report = json.loads((night.scratch / "artifacts" / "report" / "report.json").read_text())
    assert [(cell["gpu"], cell["state"]) for cell in report["cells"]] == [
        ("h200", "hit"),
        ("l4", "hit"),
        ("h100", "hit"),
    ]
    assert len(runner.cache.entries) == 1

    second = runner.on(NIGHT)
    second.workflow(".github/workflows/nightly.yml")
    assert [path.name for path in (second.scratch / "artifacts").iterdir()] == ["report"]
    assert "not saved: its key is there already" in "".join(second.summary)

    for event in (PULL_REQUEST, MAIN):
        run = runner.on(event)
        run.workflow(".github/workflows/tests.yml")
        assert "### archpatch refresh: 3 hit\n" in "".join(run.summary)
    assert len(runner.cache.entries) == 1


def test_a_cell_that_fails_saves_nothing_and_one_that_is_refused_does_not_matter(runner: Runner) -> None:
    source = runner.repository / "mini" / "csrc" / "add.cu"
    text = source.read_text()
    source.write_text(text + "\n#error broken on purpose\n")
    write_plan(
        runner.repository, {"archpatch_mini==0.1.0": "./mini", '"l4"': '"b200"', "[tool.archpatch.plan]": STRICT}
    )
    with pytest.raises(StepFailed, match="broken on purpose"):
        runner.on(NIGHT).workflow(".github/workflows/nightly.yml")
    assert runner.cache.entries == []
    source.write_text(text)
    night = runner.on(NIGHT)
    night.workflow(".github/workflows/nightly.yml")
    assert "### archpatch refresh: 1 hit, 1 refused\n" in "".join(night.summary)
    assert len(runner.cache.entries) == 1


STRICT = '[tool.archpatch]\non-missing = "error"\n\n[tool.archpatch.plan]'
