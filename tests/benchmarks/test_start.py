"""How long the command line takes, beside what it cannot do without; both sides in one run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from commandline import CommandLine

from archpatch.builder.download import fetch_sdist
from archpatch.builder.pip_settings import read_pip_settings
from archpatch.builder.requirement import IndexRequirement, parse_requirement
from archpatch.storage.archives import unpack

pytestmark = pytest.mark.benchmark

MAMBA = "mamba_ssm==2.3.2.post1#sha256=104cc47e9101e5401a675fa2b784f2952b9b037f3b1dd83b5ac544394e95d028"
ROUNDS = 7


def fastest(*commands: list[str], prepare: object = None) -> list[float]:
    """Return the fastest of several rounds for each command, the rounds of all interleaved."""
    taken: list[list[float]] = [[] for _ in commands]
    for _ in range(ROUNDS):
        for times, command in zip(taken, commands, strict=True):
            if callable(prepare):
                prepare()
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
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
