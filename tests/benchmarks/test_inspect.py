"""How long reading device code takes, beside NVIDIA's own reader; both sides in one run, with the same answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import CommandLine, dumped
from measuring import Comparison, command, fastest

from archpatch.wheels.inspection import inspect_path

pytestmark = pytest.mark.benchmark


def test_inspecting_a_library_is_no_slower_than_cuobjdump(
    linalg: Path, archpatch: CommandLine, cuobjdump: Path, compared: Callable[..., None]
) -> None:
    assert set(map(str, inspect_path(linalg).cubins)) == dumped(cuobjdump, linalg) != set()
    ours, theirs = fastest(
        {
            "archpatch inspect": command(archpatch.command("inspect", linalg)),
            "cuobjdump": command([cuobjdump, "--list-elf", "--list-ptx", linalg]),
        },
        rounds=7,
    ).values()
    note = f"{linalg.name}, {linalg.stat().st_size / 1e6:.0f} MB"
    compared(Comparison(name="inspect", measured=ours, against=theirs, most=1, note=note))
