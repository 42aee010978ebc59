"""What changes the fingerprint of a wheel and what does not, each change made to a real build up to the compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from commandline import FIXTURES, CommandLine
from packaging.version import Version

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import OnMissing, Policy, Request
from archpatch.builder.asked import Asked
from archpatch.builder.bench import Bench
from archpatch.builder.events import Silent
from archpatch.builder.interpreter import TorchFacts
from archpatch.builder.logs import new_log
from archpatch.builder.requirement import parse_requirement
from archpatch.builder.toolkit import Toolkit
from archpatch.jobs import Job, Order, Terms, Workshop, open_job
from archpatch.making import draft
from archpatch.recipes import recipe as recipes
from archpatch.recipes.recipe import Recipe, read_overrides
from archpatch.recipes.table import Table
from archpatch.rewrite import generation

pytestmark = pytest.mark.integration


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A build of the miniature project: where it lies, what is asked, and how the machine is changed."""

    project: Path
    request: Request = field(default_factory=lambda: ArchRequest.parse("9.0"))
    policy: Policy = field(default_factory=Policy)
    labelled: bool = True
    recipe: Mapping[str, object] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    bench: Callable[[Bench], Bench] = lambda bench: bench

    def fingerprint(self, folder: Path) -> str:
        """Fetch, rewrite and capture for real, and return what that comes to."""
        table = Table(file=folder / "pyproject.toml", setting="recipes", data={"archpatch_mini": dict(self.recipe)})
        terms = Terms(
            wheelhouse=folder / "house", policy=self.policy, labelled=self.labelled, recipes=read_overrides(table)
        )
        order = Order(
            requirement=parse_requirement(str(self.project)),
            asked=Asked(request=self.request, source="--arch"),
            terms=terms,
        )
        job = open_job(order, Workshop({**os.environ, **self.environ}))
        changed: Job = replace(job, bench=self.bench(job.bench))
        with draft(changed, new_log("fingerprint"), Silent()) as drawn:
            return drawn.fingerprint


def with_torch(change: Callable[[TorchFacts], TorchFacts]) -> Callable[[Bench], Bench]:
    return lambda bench: bench.with_torch(change(bench.torch))


def with_toolkit(change: Callable[[Toolkit], Toolkit]) -> Callable[[Bench], Bench]:
    return lambda bench: replace(bench, toolkit_or_error=change(bench.toolkit))


def with_interpreter(**changes: object) -> Callable[[Bench], Bench]:
    return lambda bench: replace(bench, interpreter=replace(bench.interpreter, **changes))


def with_packages(**versions: str) -> Callable[[Bench], Bench]:
    def change(bench: Bench) -> Bench:
        packages = {**dict(bench.interpreter.packages), **versions}
        return with_interpreter(packages=tuple(sorted(packages.items())))(bench)

    return change


def with_compiler(version: str) -> Callable[[Bench], Bench]:
    def change(bench: Bench) -> Bench:
        assert bench.host.compiler is not None
        return replace(bench, host=replace(bench.host, compiler=replace(bench.host.compiler, version=version)))

    return change


def edited(situation: Situation, name: str, before: str, after: str) -> Situation:
    path = situation.project / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    return situation


def rebuilt_in_reverse(situation: Situation) -> Situation:
    """Write the project anew: files in another order, with other times, in a folder of the same name elsewhere."""
    other = situation.project.parent / "other" / situation.project.name
    for path in sorted(situation.project.rglob("*"), reverse=True):
        target = other / path.relative_to(situation.project)
        if path.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            os.utime(target, (1_000_000_000, 1_000_000_000))
    return replace(situation, project=other)


def wrapped(situation: Situation) -> Situation:
    """Put a wrapper in the place of nvcc."""
    wrapper = situation.project.parent / "nvcc-wrapper"
    wrapper.write_text('#!/bin/sh\nexec nvcc "$@"\n')
    wrapper.chmod(0o755)
    return replace(situation, environ={"PYTORCH_NVCC": str(wrapper)})


def other_profile(situation: Situation) -> Situation:
    """Give nvcc another profile file: the same toolkit by links, but for that file."""
    root = situation.project.parent / "cuda"

    def change(toolkit: Toolkit) -> Toolkit:
        (root / "bin").mkdir(parents=True)
        for path in toolkit.root.iterdir():
            if path.name != "bin":
                (root / path.name).symlink_to(path)
        for path in (toolkit.root / "bin").iterdir():
            (root / "bin" / path.name).symlink_to(path)
        profile = root / "bin" / "nvcc.profile"
        text = profile.read_text()
        profile.unlink()
        profile.write_text(text + "\n# another\n")
        return replace(toolkit, root=root)

    return replace(situation, bench=with_toolkit(change))


def reads_a_variable(situation: Situation) -> Situation:
    return edited(situation, "setup.py", "cc_flag = []", "import os\ncc_flag = []\nos.environ.get('MINI_FAST')")


CHANGES: dict[str, Callable[[Situation], Situation]] = {
    "torch patch version": lambda it: replace(
        it, bench=with_torch(lambda torch: replace(torch, version="2.14.2+cu130"))
    ),
    "NVIDIA's container version": lambda it: replace(
        it, bench=with_torch(lambda torch: replace(torch, version="2.9.0a0+gitabc.nv25.10"))
    ),
    "torch's CUDA": lambda it: replace(it, bench=with_torch(lambda torch: replace(torch, cuda="13.1"))),
    "C++ ABI": lambda it: replace(it, bench=with_torch(lambda torch: replace(torch, cxx11_abi=False))),
    "nvcc minor": lambda it: replace(
        it, bench=with_toolkit(lambda toolkit: replace(toolkit, version=Version("13.1.0")))
    ),
    "nvcc patch": lambda it: replace(
        it, bench=with_toolkit(lambda toolkit: replace(toolkit, version=Version("13.0.99")))
    ),
    "nvcc's profile": other_profile,
    "a wrapper of nvcc": wrapped,
    "host compiler": lambda it: replace(it, bench=with_compiler("14.1.0")),
    "interpreter": lambda it: replace(it, bench=with_interpreter(abi_tag="cp312")),
    "platform": lambda it: replace(it, bench=with_interpreter(platform_tag="linux_aarch64")),
    "setuptools": lambda it: replace(it, bench=with_packages(setuptools="999.0")),
    "a source file": lambda it: edited(it, "csrc/add.cu", "\n", "\n\n"),
    "a file's executable bit": lambda it: ((it.project / "csrc" / "add.cu").chmod(0o755), it)[1],
    "the package's version": lambda it: edited(it, "pyproject.toml", "0.1.0", "0.1.1"),
    "a compiler flag": lambda it: edited(it, "setup.py", '"nvcc": ["-O1"]', '"nvcc": ["-O2"]'),
    "CFLAGS": lambda it: replace(it, environ={"CFLAGS": "-O0"}),
    "NVCC_APPEND_FLAGS": lambda it: replace(it, environ={"NVCC_APPEND_FLAGS": "-lineinfo"}),
    "a variable that setup.py reads": lambda it: replace(it, environ={"MINI_FAST": "1"}),
    "another cubin": lambda it: replace(it, request=ArchRequest.parse("8.0")),
    "one more cubin": lambda it: replace(it, request=ArchRequest.parse("8.0;9.0")),
    "PTX": lambda it: replace(it, request=ArchRequest.parse("9.0+PTX")),
    "a forced variable of the recipe": lambda it: replace(it, recipe={"environment": {"MINI_FORCE": "1"}}),
    "no local version": lambda it: replace(it, labelled=False),
}

SAME: dict[str, Callable[[Situation], Situation]] = {
    "nothing": lambda it: it,
    "a GPU type that takes the same pairs": lambda it: replace(it, request=GpuRequest.of("h200")),
    "another GPU type that takes them": lambda it: replace(it, request=GpuRequest.of("h100")),
    "a policy that takes the same pairs": lambda it: replace(it, policy=Policy(on_missing=OnMissing.NEAREST)),
    "strict where nothing is missing": lambda it: replace(it, policy=Policy(strict=True)),
    "file order, times and place": rebuilt_in_reverse,
    "what earlier builds left": lambda it: ((it.project / "build").mkdir(), it)[1],
    "MAX_JOBS": lambda it: replace(it, environ={"MAX_JOBS": "1"}),
    "arch flags in nvcc's own variable": lambda it: replace(it, environ={"NVCC_APPEND_FLAGS": "-arch=sm_75"}),
    "the recipe's smoke test": lambda it: replace(it, recipe={"smoke-test": "assert True"}),
    "a variable that nobody reads": lambda it: replace(it, environ={"UNREAD": "1"}),
}


@pytest.fixture
def situation(tmp_path: Path) -> Situation:
    project = Path(shutil.copytree(FIXTURES / "mini", tmp_path / "mini"))
    return reads_a_variable(Situation(project=project))


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("unchanged")
    project = Path(shutil.copytree(FIXTURES / "mini", folder / "mini"))
    return reads_a_variable(Situation(project=project)).fingerprint(folder)


@pytest.mark.parametrize("name", CHANGES)
def test_it_changes_with(name: str, situation: Situation, unchanged: str, tmp_path: Path) -> None:
    assert CHANGES[name](situation).fingerprint(tmp_path) != unchanged


@pytest.mark.parametrize("name", SAME)
def test_it_does_not_change_with(name: str, situation: Situation, unchanged: str, tmp_path: Path) -> None:
    assert SAME[name](situation).fingerprint(tmp_path) == unchanged


def test_it_changes_with_the_generation_of_the_rewrite(
    situation: Situation, unchanged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archpatch.jobs.REWRITE_GENERATION", generation.REWRITE_GENERATION + 1)
    assert situation.fingerprint(tmp_path) != unchanged


#: What differs between the processes and machines of a team.
PLACES = {
    "HOME": {"HOME": "/nonexistent"},
    "user": {"USER": "somebody", "LOGNAME": "somebody"},
    "time zone": {"TZ": "Asia/Kathmandu"},
    "locale": {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
    "C locale": {"LC_ALL": "C", "PYTHONUTF8": "0"},
    "hash seed": {"PYTHONHASHSEED": "4242"},
    "columns": {"COLUMNS": "40", "TERM": "dumb"},
}


@pytest.fixture(scope="module")
def at_home(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandLine, str, str]:
    line = CommandLine(tmp_path_factory.mktemp("home"))
    shutil.copytree(FIXTURES / "mini", line.folder / "mini")
    (line.folder / "pyproject.toml").write_text('[tool.archpatch.plan]\npackages = ["./mini"]\ngpu = ["h200"]\n')
    return line, *told(line)


def told(line: CommandLine, environ: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the fingerprint of the plan's cell and the key of the plan."""
    (cell,) = line("plan", "--json", environ=environ).json["cells"]
    return cell["fingerprint"], line("key", "wheelhouse", environ=environ).stdout


@pytest.mark.parametrize("name", PLACES)
def test_neither_fingerprint_nor_key_knows_the_place(name: str, at_home: tuple[CommandLine, str, str]) -> None:
    line, fingerprint, key = at_home
    assert told(line, PLACES[name]) == (fingerprint, key)


def test_neither_knows_the_working_folder_nor_the_umask(at_home: tuple[CommandLine, str, str], tmp_path: Path) -> None:
    line, fingerprint, key = at_home
    elsewhere = CommandLine(tmp_path / "elsewhere")
    shutil.copytree(line.folder, elsewhere.folder, ignore=shutil.ignore_patterns("wheelhouse", "tmp"))
    script = "import os, sys; os.umask(0o077); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", script, "-m", "archpatch", "plan", "--json"],
        cwd=elsewhere.folder,
        env=elsewhere.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert fingerprint in done.stdout
    assert told(elsewhere) == (fingerprint, key)


def test_the_digest_of_a_recipe_leaves_out_what_decides_no_bytes() -> None:
    plain = Recipe(name="mini")
    assert recipes.digest(replace(plain, smoke_test="assert True", name="MINI")) == recipes.digest(plain)
    assert recipes.digest(replace(plain, environment=(("A", "1"),))) != recipes.digest(plain)
