"""Fixtures of the tests that use real tools."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from commandline import CUDA_HOME, FIXTURES, CommandLine

from archpatch.wheelhouse.house import Entry, Wheelhouse

#: 43 MB, seven CUDA libraries that were linked with -rdc=true, and eight for other makers' GPUs.
BITSANDBYTES = "bitsandbytes==0.50.2"
BITSANDBYTES_SHA256 = "55348a9a4a21bfd99cf8c7b32fe67b4030ae5c2a05738e03c1747f65fa6ec283"


@pytest.fixture
def archpatch(tmp_path: Path) -> CommandLine:
    """The command line, in a fresh folder."""
    return CommandLine(tmp_path)


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    """A copy of the miniature CUDA project, to change at will."""
    return Path(shutil.copytree(FIXTURES / "mini", tmp_path / "mini"))


@pytest.fixture(scope="session")
def nvcc() -> Path:
    """The nvcc of the machine's toolkit."""
    found = shutil.which("nvcc", path=f"{CUDA_HOME / 'bin'}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("there is no nvcc")
    return Path(found)


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
def bitsandbytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel from PyPI, by its hash."""
    folder = tmp_path_factory.mktemp("bitsandbytes")
    (folder / "requirements.txt").write_text(f"{BITSANDBYTES} --hash=sha256:{BITSANDBYTES_SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    platform = ["--platform", "manylinux_2_24_x86_64", "-r", str(folder / "requirements.txt"), "-d", str(folder)]
    subprocess.run([*pip, *platform], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def cmake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds CMake of PyPI (30 MB), whatever the machine has."""
    folder = tmp_path_factory.mktemp("cmake")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    subprocess.run([*install, "cmake"], check=True)
    return folder / "cmake" / "data" / "bin"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Entry, ...]:
    """Real wheels of 4 MB: the first two have the same name and other bytes, the third holds something else."""
    project = Path(shutil.copytree(FIXTURES / "mini", tmp_path_factory.mktemp("project") / "mini"))
    (project / "archpatch_mini" / "weights.bin").write_bytes(random.Random(0).randbytes(4 << 20))  # noqa: S311
    packages = 'packages=["archpatch_mini"]'
    setup = (project / "setup.py").read_text()
    (project / "setup.py").write_text(setup.replace(packages, f'{packages}, package_data={{"": ["*.bin"]}}'))
    orders: list[tuple[str, dict[str, str]]] = [("9.0", {}), ("9.0", {"CXXFLAGS": "-DOTHER"}), ("8.0+PTX", {})]

    def make(order: tuple[str, dict[str, str]]) -> Entry:
        archs, environ = order
        place = CommandLine(tmp_path_factory.mktemp("built"))
        cache = {"ARCHPATCH_CACHE": str(place.folder / "cache")}
        answer = place("build", project, "--arch", archs, environ={**environ, **cache})
        return Wheelhouse(place.wheelhouse).entry(answer.wheel)

    with ThreadPoolExecutor(2) as pool:
        return tuple(pool.map(make, orders))


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where the machine has such a place: all that is filed is synced, and disks are slow."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB, too small for the objects of a build."""
    with mounted(tmp_path / "small", "size=256k"):
        yield tmp_path / "small"


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Mount a disk with these options of tmpfs at the new folder; skips the test where that is forbidden."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
