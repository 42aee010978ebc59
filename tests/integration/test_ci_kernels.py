"""The actions that keep kernels in the cache of GitHub, and the workflow that uses them; Triton says what was a hit."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import PROJECT, CommandLine
from github_runner import BY_HAND, MAIN, MERGE_GROUP, NIGHT, PULL_REQUEST, Cache, Event, Runner, StepFailed
from kernels import triton_kernel, write

from archpatch.kernel_cache.archive import Content, opened, write_archive
from archpatch.kernel_cache.lane import Lane, Wanted, find_lane

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

RESTORE = ".github/actions/restore-kernel-cache"
SAVE = ".github/actions/save-kernel-cache"
VERSIONS = {"gpu": "h200", "torch": "2.14.1+cu130", "triton": "3.8.0"}
REQUESTED = {"lane": "unit", "sources": "src/**/*.py", **VERSIONS}
ARCHIVE = "kernel-cache/kernels.tar.zst"
#: The tests of the repository: they compile kernels, and write down which of them Triton found.
TEST = """
import json
from src.add import compile_all

def test_kernels():
    told = compile_all(["80:128", "90:128"])
    with open("told.json", "w") as file:
        json.dump(told, file)
"""

#: An archpatch that fails over archives.
FAILING = """\
#!/bin/bash
for word; do
  if [[ $2 == restore && $word == --store=* && -f ${{word#--store=}} ]]; then
    echo "Traceback (most recent call last):" >&2
    exit 1
  fi
done
PATH={path} exec archpatch "$@"
"""


@pytest.fixture
def repository(archpatch: CommandLine) -> Path:
    """A repository with a kernel, a test that compiles it, our actions and the workflows of the examples."""
    folder = archpatch.folder / "repository"
    shutil.copytree(PROJECT / ".github" / "actions", folder / ".github" / "actions")
    shutil.copytree(PROJECT / "examples" / "ci" / "github", folder / ".github" / "workflows")
    for name in ("src", "tests"):
        (folder / name).mkdir()
    shutil.copy(PROJECT / "tests" / "integration" / "triton_program.py", folder / "src" / "add.py")
    (folder / "tests" / "test_kernels.py").write_text(TEST)
    return folder


@pytest.fixture
def runner(archpatch: CommandLine, repository: Path) -> Runner:
    """A runner that has archpatch, torch and Triton."""
    folder = archpatch.folder
    (folder / "run").mkdir()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = archpatch.environment({"PATH": path, "PYTHONPATH": str(PROJECT)})
    cache = Cache(folder / "caches")
    return Runner(repository, folder / "run", MAIN, cache, environ, unrun=frozenset({"Install archpatch"}))


def key(runner: Runner, **given: str) -> str:
    return runner.action(RESTORE, given, runner.checkout())["key"]


def lane(**given: str) -> Lane:
    return find_lane(Wanted(**{**VERSIONS, **given}))


def save(runner: Runner, restored: dict[str, str], workspace: Path) -> str:
    given = {name: restored[name] for name in ("hit", "options")}
    return runner.action(SAVE, given, workspace)["saved"]


def pretended(runner: Runner, *kernels: str, **given: str) -> tuple[str, str]:
    """Run a job in which files appear as if Triton had compiled these kernels; return what was hit and saved."""
    workspace = runner.checkout()
    restored = runner.action(RESTORE, {**REQUESTED, **given}, workspace)
    for name in kernels:
        triton_kernel(Path(restored["root"]), name, lane=lane())
    return restored["hit"], save(runner, restored, workspace)


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
        (Event("pull_request_target"), "false"),
    ],
)
def test_the_default_branch_writes_and_all_others_read(runner: Runner, event: Event, saved: str) -> None:
    run = runner.on(event)
    assert pretended(run, "add") == ("false", saved)
    assert len(runner.cache.entries) == (saved == "true")
    said = "kernels: 1 entries are new\nkernels: saved\n" if saved == "true" else "kernels: not saved: only the default"
    summary = "".join(run.summary)
    assert said in summary
    assert summary.index("### Kernels, restored from nothing") < summary.index(said)
    assert "| add | 0 | 0 | 0 | 1 | 1 |" in summary
    # What may not be saved is not packed either.
    assert len(list(run.scratch.glob(f"*/{ARCHIVE}"))) == (saved == "true")


def test_nothing_is_saved_where_the_key_was_there_or_nothing_is_new(runner: Runner) -> None:
    assert pretended(runner) == ("false", "false")
    assert pretended(runner, "add") == ("false", "true")
    assert pretended(runner, "add", "mul") == ("true", "false")
    assert pretended(runner, extra="more=1") == ("false", "false")
    assert "kernels: nothing is new\nkernels: not saved: no kernels.tar.zst is in kernel-cache\n" in runner.summary[-1]
    assert len(runner.cache.entries) == 1
    assert pretended(runner, "mul", extra="more=1") == ("false", "true")
    assert "- a save would write 2 entries, 1 of them new, " in "".join(runner.summary)
    assert pretended(runner, extra="more=1") == ("true", "false")
    assert len(runner.cache.entries) == 2


def test_a_cache_is_no_larger_than_it_may_be(runner: Runner) -> None:
    workspace = runner.checkout()
    restored = runner.action(RESTORE, {**REQUESTED, "max-size": "1"}, workspace)
    triton_kernel(Path(restored["root"]), "large", lane=lane(), size=1 << 20)
    assert save(runner, restored, workspace) == "false"
    triton_kernel(Path(restored["root"]), "small", lane=lane())
    assert save(runner, restored, workspace) == "true"


def test_the_job_goes_on_without_an_archive_over_which_archpatch_fails(runner: Runner) -> None:
    assert pretended(runner, "add") == ("false", "true")
    path = runner.environ["PATH"]
    failing = write(runner.scratch / "bin" / "archpatch", FAILING.format(path=path))
    failing.chmod(0o755)
    broken = replace(runner, environ={**runner.environ, "PATH": f"{failing.parent}{os.pathsep}{path}"})
    assert pretended(broken, "mul", extra="more=1") == ("false", "true")
    assert "- a save would write 1 entries, 1 of them new, " in "".join(broken.summary)


def test_the_key_is_that_of_the_archive_where_the_job_changed_its_sources(runner: Runner) -> None:
    workspace = runner.checkout()
    restored = runner.action(RESTORE, REQUESTED, workspace)
    triton_kernel(Path(restored["root"]), lane=lane())
    (workspace / "src" / "generated.py").touch()
    assert save(runner, restored, workspace) == "true"
    ((saved, _),) = runner.cache.entries
    assert saved != restored["key"]
    with opened(workspace / ARCHIVE, lane(), beside=runner.scratch, limit=1 << 20) as (manifest, _):
        assert manifest.key == saved


# --- what is read ---


@pytest.mark.parametrize(
    ("given", "root"), [("", "{}.temp/kernels"), ("kept/here", "{}/kept/here"), ("{}/kept", "{}/kept")]
)
def test_the_compilers_are_led_below_the_root(runner: Runner, given: str, root: str) -> None:
    workspace = runner.checkout()
    restored = runner.action(RESTORE, {**REQUESTED, "root": given.format(workspace)}, workspace)
    assert restored["root"] == root.format(workspace)
    exported = runner.exported[workspace]
    assert exported["TRITON_CACHE_DIR"] == f"{restored['root']}/{lane()}/triton"
    assert exported["TRITON_CACHE_AUTOTUNING"] == "1"


@pytest.mark.parametrize(
    "other", [{"triton": "3.7.0"}, {"torch": "2.13.0+cu130"}, {"gpu": "h100"}, {"gpu": "gb10"}, {"lane": "gpu"}]
)
def test_what_another_lane_saved_is_not_offered(runner: Runner, other: dict[str, str]) -> None:
    assert pretended(runner, "add") == ("false", "true")
    run = runner.on(PULL_REQUEST)
    workspace = run.checkout()
    restored = run.action(RESTORE, {**REQUESTED, **other}, workspace)
    assert restored["hit"] == "false"
    assert "kernels: nothing to restore for" in "".join(run.summary)
    assert list(Path(restored["root"]).rglob("*.cubin")) == []


def test_every_input_has_a_say_in_the_key(runner: Runner) -> None:
    repository = runner.repository
    (repository / "setup.toml").write_text("# one")
    keys = [
        key(runner, **REQUESTED),
        *(
            key(runner, **{**REQUESTED, **changed})
            for changed in (
                {"lane": "other"},
                {"sources": ""},
                {"sources": "src/**/*.py\n\n  tests/*.py"},
                {"gpu": "h100"},
                {"torch": "2.13.0+cu130"},
                {"triton": "3.7.0"},
                {"extra": "image=sha256:1\nsecond=2"},
                {"extra": "image=sha256:2"},
                {"extra-files": "setup.toml"},
            )
        ),
    ]
    (repository / "setup.toml").write_text("# two")
    keys.append(key(runner, **REQUESTED, **{"extra-files": "setup.toml"}))
    assert len(set(keys)) == len(keys)
    same = {"python": sys.executable, "root": "elsewhere", "store": "elsewhere", "max-size": "10"}
    assert key(runner, **REQUESTED, **same) == keys[0]
    assert keys[0].startswith("archpatch-kernels-unit-h200-sm90-torch2.14.1-cu130-triton3.8.0-")


def test_a_lane_without_a_name_is_refused(runner: Runner) -> None:
    with pytest.raises(StepFailed, match="--lane"):
        key(runner, lane="")
    with pytest.raises(StepFailed, match="no file matches"):
        key(runner, lane="unit", sources="nowhere/*.py")


@pytest.mark.parametrize(
    "text", ["$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '" && touch pwned; "', "* ?", "a\nEND\nkey=b"]
)
def test_text_from_outside_is_never_run(runner: Runner, text: str) -> None:
    workspace = runner.checkout()
    line = text.replace("\n", " ")
    given = {**REQUESTED, "lane": text, "extra": f"note={line}", "root": line, "store": line}
    restored = runner.action(RESTORE, given, workspace)
    assert restored["key"] != "b"
    triton_kernel(Path(restored["root"]), lane=lane())
    saving = {"hit": text, "options": restored["options"], "store": line}
    assert runner.action(SAVE, saving, workspace) == {"saved": "true"}
    assert list(runner.scratch.parent.rglob("pwned")) == []


def cut(archive: Path) -> None:
    os.truncate(archive, archive.stat().st_size // 2)


def forge(archive: Path) -> None:
    """Name a lane that would be a command to the runner."""
    content = iter([Content(name="triton/K/add.cubin", data=b"", executable=False)])
    fields = {"key": "k", "lane": replace(lane(), gpu="h200\n::error::forged"), "inputs": {}, "idle": {}, "builds": {}}
    write_archive(archive.with_name("forged.tar.zst"), content, fields)
    archive.with_name("forged.tar.zst").replace(archive)


@pytest.mark.parametrize(("damage", "said"), [(cut, "kernels.tar.zst"), (forge, "it is of another lane")])
def test_a_job_goes_on_without_a_cache_that_is_refused(
    runner: Runner, damage: Callable[[Path], None], said: str
) -> None:
    assert pretended(runner, "add") == ("false", "true")
    damage(runner.cache.folder / "0")
    run = runner.on(PULL_REQUEST)
    workspace = run.checkout()
    restored = run.action(RESTORE, REQUESTED, workspace)
    summary = "".join(run.summary)
    assert all(line.startswith(("kernels: restored", "- ")) for line in summary.splitlines())
    assert said in summary
    assert "- nothing was restored\n" in summary
    assert list(Path(restored["root"]).rglob("*.cubin")) == []
    triton_kernel(Path(restored["root"]), lane=lane())
    assert save(run, restored, workspace) == "false"


# --- with Triton ---


def test_cold_then_warm_elsewhere_then_changed(runner: Runner) -> None:
    def job(run: Runner, *kernels: str) -> tuple[str, list[bool], str]:
        """Restore, compile, save; return whether the key was there, what Triton found, and whether it was saved."""
        workspace = run.checkout()
        home = {"HOME": f"{workspace}.home"}
        restored = run.action(RESTORE, {"lane": "unit", "sources": "src/*.py", "gpu": "h200"}, workspace)
        assert not (workspace / ARCHIVE).exists()
        run.run(f"python src/add.py {' '.join(kernels)} > told.json", workspace, home)
        told = json.loads((workspace / "told.json").read_text())["kernels"]
        assert not Path(home["HOME"]).exists()
        return restored["hit"], [each["hit"] for each in told], save(run, restored, workspace)

    assert job(runner.on(MAIN), "80:128", "90:128") == ("false", [False, False], "true")
    shutil.rmtree(runner.scratch.parent / "tmp")
    (runner.scratch.parent / "tmp").mkdir()
    run = runner.on(PULL_REQUEST)
    assert job(run, "80:128", "90:128") == ("true", [True, True], "false")
    assert "| triton | 0 | 2 | 2 | 0 | 0 | - |" in "".join(run.summary)
    source = runner.repository / "src" / "add.py"
    source.write_text(source.read_text() + "# changed\n")
    assert job(runner.on(MERGE_GROUP), "90:128", "90:256") == ("false", [True, False], "false")
    assert len(runner.cache.entries) == 1
    assert job(runner.on(MAIN), "90:128", "90:256") == ("false", [True, False], "true")
    assert job(runner.on(NIGHT), "80:128", "90:256") == ("true", [True, True], "false")
    assert len(runner.cache.entries) == 2


def test_the_workflow_of_the_examples(runner: Runner) -> None:
    for event, found in ((MAIN, False), (PULL_REQUEST, True), (MAIN, True)):
        run = runner.on(event)
        run.workflow(".github/workflows/kernels.yml")
        (told,) = run.scratch.glob("job-*/told.json")
        assert [each["hit"] for each in json.loads(told.read_text())] == [found, found]
        assert f"| triton | 0 | {2 * found} | {2 * found} |" in "".join(run.summary)
    assert len(runner.cache.entries) == 1
