"""Fixtures of the tests that use real tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from commandline import CUDA_HOME, FIXTURES, CommandLine


@pytest.fixture
def archpatch(tmp_path: Path) -> CommandLine:
    """The command line, in a fresh folder."""
    return CommandLine(tmp_path)


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    """A copy of the miniature CUDA project, to change at will."""
    return Path(shutil.copytree(FIXTURES / "mini", tmp_path / "mini"))


@pytest.fixture(scope="session")
def cuobjdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine's cuobjdump, else NVIDIA's package of it (290 KB, needs no GPU)."""
    in_wheel = Path("nvidia", "cu13", "bin")
    places = [os.environ["PATH"], CUDA_HOME / "bin", Path(sysconfig.get_path("purelib")) / in_wheel]
    found = shutil.which("cuobjdump", path=os.pathsep.join(map(str, places)))
    if found is not None:
        return Path(found)
    folder = tmp_path_factory.mktemp("cuobjdump")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    subprocess.run([*install, "nvidia-cuda-cuobjdump"], check=True)
    return folder / in_wheel / "cuobjdump"


@pytest.fixture(scope="session")
def cmake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds CMake of PyPI (30 MB), whatever the machine has."""
    folder = tmp_path_factory.mktemp("cmake")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    subprocess.run([*install, "cmake"], check=True)
    return folder / "cmake" / "data" / "bin"
