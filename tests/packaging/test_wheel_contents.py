"""The built wheel: exactly the package, and it runs from a clean environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.packaging
PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel() -> Path:
    return Path(os.environ["ARCHPATCH_WHEEL"])


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    sources = {
        path.relative_to(PROJECT).as_posix()
        for path in (PROJECT / "archpatch").rglob("*")
        if path.is_file() and path.suffix in {".py", ".toml", ".typed"} and "__pycache__" not in path.parts
    }
    info = {re.sub(r"^archpatch-[^/]+\.dist-info/", "", name) for name in names - sources}
    assert sources <= names
    assert info == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}


def test_it_runs_from_a_clean_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-m", "archpatch", "--version"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"archpatch, version \d+\.\d+\.\d+\n", answer.stdout)


def test_its_data_files_are_found(tmp_path: Path) -> None:
    code = "from archpatch.arch.gpu import find_gpu; from archpatch.recipes.recipe import find_recipe as f;"
    code += "assert find_gpu('h200') and f('mamba-ssm').git is not None"
    subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, check=True)


def test_its_shapes_are_found(tmp_path: Path) -> None:
    shapes = sorted(
        path.stem for path in (PROJECT / "archpatch/rewrite/shapes").glob("*.py") if path.stem != "__init__"
    )
    code = "from archpatch.rewrite.shapes import find_shapes; print(*(rows.__module__ for rows in find_shapes()))"
    command = [sys.executable, "-I", "-c", code]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [f"archpatch.rewrite.shapes.{name}" for name in shapes]
