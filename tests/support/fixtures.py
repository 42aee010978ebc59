"""Fixtures of the tests that use real tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commandline import CUDA_HOME, FIXTURES, CommandLine

from archpatch.wheelhouse.house import Entry, Wheelhouse


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
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Entry, ...]:
    """Real wheels: the first two have the same name and other bytes, the third holds something else."""
    orders: list[tuple[str, dict[str, str]]] = [("9.0", {}), ("9.0", {"CXXFLAGS": "-DOTHER"}), ("8.0+PTX", {})]

    def make(order: tuple[str, dict[str, str]]) -> Entry:
        archs, environ = order
        place = CommandLine(tmp_path_factory.mktemp("built"))
        cache = {"ARCHPATCH_CACHE": str(place.folder / "cache")}
        answer = place("build", FIXTURES / "mini", "--arch", archs, environ={**environ, **cache})
        return Wheelhouse(place.wheelhouse).entry(answer.wheel)

    with ThreadPoolExecutor(2) as pool:
        return tuple(pool.map(make, orders))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB and 100 files, too small for the objects of a build."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,nr_inodes=100", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if not mounted or mounted.returncode:
        pytest.skip("no small disk can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
