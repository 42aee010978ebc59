"""GitHub's runner, as far as the actions and workflows here go: their shell is run, the actions of others are played.

What is not known here fails the test: an expression, an input, an action, a context. Expressions and rules are those of
https://docs.github.com/en/actions/reference/workflows-and-actions/.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

Outputs = dict[str, str]

_JOB = {"name", "needs", "if", "runs-on", "permissions", "strategy", "outputs", "steps", "uses", "with"}
_STEP = {"name", "id", "if", "uses", "with", "env", "shell", "run"}


class StepFailed(AssertionError):
    """A step ended with another status than 0."""


@dataclass(frozen=True)
class Event:
    """What started a run; that of a schedule does not tell the repository."""

    name: str
    ref: str = "refs/heads/main"

    @property
    def payload(self) -> dict[str, Any]:
        """The part of the event that is asked for."""
        return {} if self.name == "schedule" else {"repository": {"default_branch": "main"}}


MAIN = Event("push")
NIGHT = Event("schedule")
BY_HAND = Event("workflow_dispatch")
PULL_REQUEST = Event("pull_request", "refs/pull/7/merge")
MERGE_GROUP = Event("merge_group", "refs/heads/gh-readonly-queue/main/pr-7-2437e4b")


@dataclass
class Cache:
    """actions/cache: entries are never overwritten, and belong to a key and to the text of a path."""

    folder: Path
    entries: list[tuple[str, str]] = field(default_factory=list)

    def restore(self, workspace: Path, path: str, key: str, restore_keys: Sequence[str]) -> Outputs:
        """Copy the entry of this key, else the newest that starts with the first of the keys that any starts with."""
        for wanted in (key, *restore_keys):
            same = [number for number, entry in enumerate(self.entries) if entry == (wanted, path)]
            alike = [number for number, (name, of) in enumerate(self.entries) if name.startswith(wanted) and of == path]
            if same or alike:
                number = (same or alike)[-1]
                matched = self.entries[number][0]
                _copy(self.folder / str(number), workspace / path)
                return {"cache-hit": str(matched == key).lower(), "cache-matched-key": matched}
        return {"cache-hit": "false"}

    def save(self, workspace: Path, path: str, key: str) -> None:
        """Keep the file or folder under this key, unless there is one."""
        assert len(key) <= 512
        assert "," not in key
        if (key, path) not in self.entries:
            _copy(workspace / path, self.folder / str(len(self.entries)))
            self.entries.append((key, path))


def _copy(source: Path, target: Path) -> None:
    """Copy a file or folder, with the folders above it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        shutil.copy2(source, target)
    else:
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)


@dataclass(frozen=True)
class Runner:
    """Runs workflows of the repository that lies in the folder `repository`, each job in a workspace of its own.

    `unrun` are names of steps that are left out: they may only install packages. `exported` are the variables that the
    steps in a workspace have set for those after them.
    """

    repository: Path
    scratch: Path
    event: Event
    cache: Cache
    environ: Mapping[str, str] = field(default_factory=dict)
    unrun: frozenset[str] = frozenset()
    summary: list[str] = field(default_factory=list)
    exported: dict[Path, Outputs] = field(default_factory=dict)

    def workflow(self, file: str, inputs: Mapping[str, Any] | None = None) -> None:
        """Run all jobs of a workflow in the order of the file, and those of the workflows that it calls."""
        definition = _read(self.repository / file)
        assert definition.keys() <= {"name", True, "permissions", "concurrency", "env", "jobs"}
        # YAML 1.1 reads the word `on` as true.
        declared = (definition[True].get("workflow_call") or {}).get("inputs", {})
        contexts = {"inputs": _inputs(declared, inputs or {}), "needs": {}}
        contexts["env"] = _filled(definition.get("env", {}), contexts)
        for name, job in definition["jobs"].items():
            self._job(name, job, contexts)

    def _job(self, name: str, job: Mapping[str, Any], contexts: Mapping[str, Any]) -> None:
        assert job.keys() <= _JOB
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(contexts["needs"])
        outputs: Outputs = {}
        if "if" not in job or evaluate(job["if"], contexts):
            if "uses" in job:
                self.workflow(job["uses"].removeprefix("./").removeprefix("$/"), job.get("with", {}))
            for cell in _cells(job, contexts) if "steps" in job else ():
                outputs = self.job(job, {**contexts, "matrix": cell})
        contexts["needs"][name] = {"outputs": outputs}

    def job(self, job: Mapping[str, Any], contexts: Mapping[str, Any]) -> Outputs:
        """Run the steps of one job in a fresh workspace, and return its outputs."""
        inside = self._steps(job["steps"], contexts, self._workspace(), action=None)
        return _filled(job.get("outputs", {}), inside)

    def checkout(self) -> Path:
        """Return the workspace of a job of one's own."""
        workspace = self._workspace()
        self._play_actions_checkout(workspace)
        return workspace

    def _workspace(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="job-", dir=self.scratch))

    def action(self, name: str, given: Mapping[str, str], workspace: Path) -> Outputs:
        """Run a composite action of the repository and return its outputs."""
        folder = self.repository / name
        definition = _read(folder / "action.yml")
        assert definition["runs"]["using"] == "composite"
        contexts = {"inputs": _inputs(definition["inputs"], given)}
        inside = self._steps(definition["runs"]["steps"], contexts, workspace, action=folder)
        return _filled({name: output["value"] for name, output in definition["outputs"].items()}, inside)

    def _steps(
        self, steps: Sequence[Mapping[str, Any]], contexts: Mapping[str, Any], workspace: Path, *, action: Path | None
    ) -> Mapping[str, Any]:
        done: dict[str, Any] = {}
        inside = {**contexts, "steps": done, "github": {"event": self.event.payload}}
        for step in steps:
            assert step.keys() <= _STEP
            outputs: Outputs = {}
            if step.get("name") in self.unrun:
                assert all(re.match(r"python -m pip install |sudo apt-get ", line) for line in step["run"].splitlines())
            elif "if" not in step or evaluate(step["if"], inside):
                arguments = _filled(step.get("with", {}), inside)
                if "uses" in step:
                    outputs = self._use(step["uses"], arguments, workspace)
                else:
                    assert action is None or step["shell"] == "bash"
                    exported = self.exported.get(workspace, {})
                    environ = {**inside.get("env", {}), **exported, **_filled(step.get("env", {}), inside)}
                    outputs = self.run(step["run"], workspace, environ, action=action)
            if "id" in step:
                done[step["id"]] = {"outputs": outputs}
        return inside

    def _use(self, uses: str, given: Outputs, workspace: Path) -> Outputs:
        if uses.startswith(("./", "$/")):
            return self.action(uses[2:], given, workspace)
        name, _, commit = uses.partition("@")
        assert re.fullmatch(r"[0-9a-f]{40}", commit), uses
        return getattr(self, "_play_" + re.sub(r"\W", "_", name))(workspace, **given) or {}

    # --- the actions of others ---

    def _play_actions_checkout(self, workspace: Path, **given: str) -> None:
        assert given.keys() <= {"persist-credentials"}
        shutil.copytree(self.repository, workspace, dirs_exist_ok=True, symlinks=True)

    def _play_actions_setup_python(self, workspace: Path, **given: str) -> None:
        pass

    def _play_actions_cache_restore(self, workspace: Path, *, path: str, key: str, **given: str) -> Outputs:
        return self.cache.restore(workspace, path, key, given["restore-keys"].split("\n"))

    def _play_actions_cache_save(self, workspace: Path, *, path: str, key: str) -> None:
        self.cache.save(workspace, path, key)

    def _play_actions_upload_artifact(self, workspace: Path, *, name: str, path: str, **_: str) -> None:
        assert not re.search(r'[":<>|*?\r\n\\/]', name)
        target = self.scratch / "artifacts" / name
        target.mkdir(parents=True)
        shutil.copy(workspace / path, target)

    def _play_actions_download_artifact(self, workspace: Path, *, pattern: str, path: str) -> None:
        for artifact in (self.scratch / "artifacts").glob(pattern):
            shutil.copytree(artifact, workspace / path / artifact.name)

    # --- a step of ours ---

    def run(
        self, script: str, workspace: Path, environ: Mapping[str, str] | None = None, *, action: Path | None = None
    ) -> Outputs:
        """Run a script as a step of a job, or of the action in the folder `action`, and return its outputs."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            files = {name: Path(folder, name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_ENV")}
            for file in files.values():
                file.touch()
            temporary = Path(f"{workspace}.temp")
            temporary.mkdir(exist_ok=True)
            exported = self.exported.setdefault(workspace, {})
            known = {
                **self.environ,
                **exported,
                **({} if action is None else {"GITHUB_ACTION_PATH": str(action)}),
                **{name: str(file) for name, file in files.items()},
                "GITHUB_EVENT_NAME": self.event.name,
                "GITHUB_REF": self.event.ref,
                "GITHUB_WORKSPACE": str(workspace),
                "RUNNER_TEMP": str(temporary),
            }
            Path(folder, "script").write_text(script)
            # What GitHub runs for `shell: bash`; without one it leaves out pipefail.
            strict = ("--noprofile", "--norc", "-eo", "pipefail") if action else ("-e",)
            done = subprocess.run(
                ["bash", *strict, f"{folder}/script"],
                cwd=workspace,
                env={**known, **(environ or {})},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise StepFailed(f"{script}ended with {done.returncode}\n{done.stdout}{done.stderr}")
            self.summary.append(files["GITHUB_STEP_SUMMARY"].read_text())
            exported.update(_assignments(files["GITHUB_ENV"].read_text()))
            return dict(_assignments(files["GITHUB_OUTPUT"].read_text()))

    def on(self, event: Event) -> Runner:
        """Return a runner for the next run of the same repository: with its cache, without the artifacts."""
        scratch = Path(tempfile.mkdtemp(dir=self.scratch.parent))
        return replace(self, event=event, scratch=scratch, summary=[], exported={})


def evaluate(expression: object, contexts: Mapping[str, Any]) -> object:
    """Return the value of an expression with or without its braces."""
    text = str(expression).strip().removeprefix("${{").removesuffix("}}").strip()
    if compared := re.fullmatch(r"(\S+) (==|!=) '(.*)'", text):
        return (_look_up(compared[1], contexts) == compared[3]) is (compared[2] == "==")
    if parsed := re.fullmatch(r"fromJSON\((\S+)\)", text):
        return json.loads(str(_look_up(parsed[1], contexts)))
    # A step or job that fails ends the whole run here.
    return True if text == "!cancelled() && !failure()" else _look_up(text, contexts)


def _look_up(name: str, contexts: Mapping[str, Any]) -> object:
    head, *rest = name.split(".")
    value = contexts[head]
    for part in rest:
        # What an event or a step did not give is empty; a name that is in no file is a mistake.
        optional = head == "github" or (head in ("steps", "needs") and part == rest[-1])
        value = value.get(part, {} if part != rest[-1] else "") if optional else value[part]
    return value


def _filled(texts: Mapping[str, Any], contexts: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts with the values of their expressions."""
    return {
        name: re.sub(r"\$\{\{.+?\}\}", lambda found: str(evaluate(found[0], contexts)), _text(text))
        for name, text in texts.items()
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _inputs(declared: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, str]:
    assert given.keys() <= declared.keys()
    assert all(name in given for name, about in declared.items() if about.get("required"))
    return {name: _text(given.get(name, about.get("default", ""))) for name, about in declared.items()}


def _cells(job: Mapping[str, Any], contexts: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    matrix = job.get("strategy", {}).get("matrix")
    cells = {"include": [{}]} if matrix is None else evaluate(matrix, contexts)
    assert isinstance(cells, dict)
    yield from cells["include"]


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    """Yield what a file of outputs or variables sets: NAME=VALUE, or NAME<<MARK, lines, MARK."""
    lines = iter(text.splitlines())
    for line in lines:
        if several := re.fullmatch(r"([\w-]+)<<(\S+)", line):
            value = list(iter(lambda: next(lines), several[2]))
            yield several[1], "\n".join(value)
        else:
            name, equals, text_ = line.partition("=")
            assert equals, line
            yield name, text_


def _read(file: Path) -> dict[Any, Any]:
    return yaml.safe_load(file.read_text(encoding="utf-8"))
