"""How long the command line takes, beside what it cannot do without; both sides in one run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from commandline import FIXTURES, CommandLine, make_sdist, only_index

from archpatch.builder.download import fetch_sdist
from archpatch.builder.pip_settings import read_pip_settings
from archpatch.builder.requirement import IndexRequirement, parse_requirement
from archpatch.storage.archives import unpack

pytestmark = pytest.mark.benchmark

MAMBA = "mamba_ssm==2.3.2.post1#sha256=104cc47e9101e5401a675fa2b784f2952b9b037f3b1dd83b5ac544394e95d028"
ROUNDS = 7


def fastest(*commands: list[str], prepare: object = None, **process: object) -> list[float]:
    """Return the fastest of several rounds for each command, the rounds of all interleaved.

    `process` goes to `subprocess.run`.
    """
    taken: list[list[float]] = [[] for _ in commands]
    for _ in range(ROUNDS):
        for times, command in zip(taken, commands, strict=True):
            if callable(prepare):
                prepare()
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, **process)
            times.append(time.perf_counter() - started)
    return list(map(min, taken))


def test_patch_takes_little_more_than_importing_libcst(archpatch: CommandLine) -> None:
    requirement = parse_requirement(MAMBA)
    assert isinstance(requirement, IndexRequirement)
    _, sdist = fetch_sdist(
        requirement, read_pip_settings(), offline=False, python_version="3.11", store=archpatch.folder / "store"
    )
    unpack(sdist, archpatch.folder / "unpacked")
    (setup,) = (archpatch.folder / "unpacked").glob("*/setup.py")
    target = Path(archpatch.folder, "setup.py")
    bare, patch = fastest(
        [sys.executable, "-c", "import libcst.matchers"],
        archpatch.command("patch", target, "--arch", "9.0"),
        prepare=lambda: target.write_bytes(setup.read_bytes()),
    )
    print(f"\npatch {patch:.3f} s, import libcst.matchers {bare:.3f} s, ratio {patch / bare:.2f}")
    assert patch <= 1.5 * bare


def test_a_key_takes_little_more_than_starting_python(archpatch: CommandLine) -> None:
    arguments = ("key", "wheelhouse", MAMBA.partition("#")[0], "causal_conv1d==1.7.0", "--gpu", "h200")
    bare, key = fastest([sys.executable, "-c", "pass"], archpatch.command(*arguments))
    print(f"\nkey {key:.3f} s, python -c pass {bare:.3f} s, {(key - bare) * 1000:.0f} ms above")
    assert key - bare < 0.15


def test_a_refresh_with_nothing_to_do_takes_a_second(archpatch: CommandLine) -> None:
    names = [f"archpatch_mini_{number}" for number in range(3)]
    for name in names:
        make_sdist(FIXTURES / "mini", archpatch.folder / "index", name=name)
    gpus = ["h100", "h200", "l4", "a10", "t4"]
    (archpatch.folder / "pyproject.toml").write_text(
        f"[tool.archpatch.plan]\npackages = {[f'{name}==0.1.0' for name in names]}\ngpu = {gpus}\n"
    )
    environ = {**only_index(archpatch.folder / "index"), "ARCHPATCH_CACHE": str(archpatch.folder / "cache")}
    first = archpatch("refresh", "--json", environ=environ)
    assert sum(cell["state"] == "built" for cell in first.json["cells"]) == 3 * 3, first.stderr
    variables = archpatch.environment(environ)
    (seconds,) = fastest(archpatch.command("refresh", "--json"), env=variables, cwd=archpatch.folder)
    print(f"\nrefresh of 15 cells, nothing to do: {seconds:.2f} s")
    assert seconds < 1.0
