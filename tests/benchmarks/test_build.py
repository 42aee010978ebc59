"""A build for all archs, as upstream has it, beside archpatch's for one; both in one run, one after the other.

causal_conv1d takes over a quarter of an hour on two cores: `nox -s bench -- -k "not causal_conv1d"` leaves it out.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from commandline import CUDA_HOME, FIXTURES, CommandLine, dumped, library
from measuring import Comparison, Side, Spent, command, fastest, spend
from sdists import unpacked

from archpatch.arch.arch import ArchRequest
from archpatch.arch.selection import Policy
from archpatch.builder.host import available_cores
from archpatch.wheels.slim_choice import Wanted
from archpatch.wheels.slim_wheel import slim_wheel

pytestmark = pytest.mark.benchmark

CAUSAL_CONV1D = "causal_conv1d==1.7.0#sha256=3202758494eaa7b597ce1c282dfa188889506bfcb92cad3c407d26736bfcd32b"
#: By the package's own rules; archpatch sets it by itself.
FORCE_BUILD = {"CAUSAL_CONV1D_FORCE_BUILD": "TRUE"}
#: What both `setup.py` compile for, whatever was asked for, under CUDA 13.
NINE = {f"sm_{arch}" for arch in (75, 80, 87, 90, 100, 103, 110, 120, 121)}
ARCH = "9.0"
#: The whole build is this many times as long, and its wheel as large, or something is wrong.
LEAST = 2.0


@dataclass(frozen=True)
class Built:
    """A wheel, and what it took."""

    wheel: Path
    spent: Spent


@dataclass(frozen=True)
class Builds:
    """The wheel of all archs, as upstream builds it, and archpatch's of one."""

    name: str
    full: Built
    ours: Built


def mini_cub(_: Path) -> Path:
    return FIXTURES / "mini_cub"


def causal_conv1d(scratch: Path) -> Path:
    return unpacked(CAUSAL_CONV1D, scratch / "unpacked")


def upstream(project: Path, place: CommandLine) -> Built:
    """Build as a user does who installs a package for the torch that is there, with the ninja beside it."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = place.environment({**FORCE_BUILD, "CUDA_HOME": str(CUDA_HOME), "PATH": path})
    tree, folder = shutil.copytree(project, place.folder / "tree"), place.folder / "full"
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-cache-dir", "-w", folder]
    return Built(spent=spend(command([*wheel, tree], env=environ)), wheel=next(folder.glob("*.whl")))


def by_archpatch(project: Path, place: CommandLine) -> Built:
    environ = place.environment({"CUDA_HOME": str(CUDA_HOME)})
    spent = spend(command(place.command("build", project, "--arch", ARCH), cwd=place.folder, env=environ))
    return Built(spent=spent, wheel=next(place.wheelhouse.glob("sm90/*/*.whl")))


@pytest.fixture(scope="module", params=[mini_cub, causal_conv1d], ids=lambda project: project.__name__)
def builds(request: pytest.FixtureRequest, nvcc: Path, tmp_path_factory: pytest.TempPathFactory) -> Builds:
    """Both builds of a project, of the same source; what both import has been imported before."""
    assert nvcc.exists()
    find: Callable[[Path], Path] = request.param
    scratch = tmp_path_factory.mktemp("builds")
    project = find(scratch)
    command([sys.executable, "-c", "import setuptools, torch.utils.cpp_extension"])()
    place = CommandLine(scratch)
    return Builds(find.__name__, full=upstream(project, place), ours=by_archpatch(project, place))


def test_one_arch_takes_a_part_of_the_time(builds: Builds, compared: Callable[..., None]) -> None:
    full, ours = builds.full.spent, builds.ours.spent
    whole, one = Side(name="full build", value=full.wall), Side(name=f"archpatch for {ARCH}", value=ours.wall)
    # No schedule can beat it: every core busy until the end. The other way round it was not all counted.
    cores = available_cores()
    floor = Side(name=f"its {ours.cores:.0f} core-seconds on {cores} cores", value=ours.cores / cores)
    compared(
        Comparison(name=f"{builds.name}: build", measured=whole, against=one, least=LEAST),
        Comparison(name=f"{builds.name}: floor", measured=one, against=floor, least=1.0),
    )


def test_one_arch_takes_a_part_of_the_space(
    builds: Builds, compared: Callable[..., None], cuobjdump: Path, tmp_path: Path
) -> None:
    full, ours = builds.full.wheel, builds.ours.wheel
    assert dumped(cuobjdump, library(full, tmp_path / "full")) == NINE
    assert dumped(cuobjdump, library(ours, tmp_path / "ours")) == {"sm_90"}
    whole, one = Side(name="full wheel", value=full.stat().st_size), Side(name="ours", value=ours.stat().st_size)
    compared(Comparison(name=f"{builds.name}: wheel", measured=whole, against=one, unit="bytes", least=LEAST))


def test_slimming_takes_a_part_of_what_building_takes(
    builds: Builds, compared: Callable[..., None], tmp_path: Path
) -> None:
    wanted = Wanted(request=ArchRequest.parse(ARCH), policy=Policy())
    slim = fastest({"slim": lambda: slim_wheel(builds.full.wheel, wanted, tmp_path, scratch=tmp_path)}, rounds=3)[
        "slim"
    ]
    build = Side(name=f"archpatch for {ARCH}", value=builds.ours.spent.wall)
    compared(Comparison(name=f"{builds.name}: slim the full wheel", measured=slim, against=build, most=0.2))
