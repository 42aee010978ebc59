"""Prove on a machine with a GPU that what archpatch builds runs there, and that what must not run does not.

    python tests/gpu/prove.py SDISTS --work FOLDER [STEP...]

`SDISTS` is a folder with the sdists of causal_conv1d and mamba_ssm. Needs archpatch importable, torch with its CUDA
toolkit, pytest and einops. Each step prints as it goes; a short table comes last, and the exit status is 1 if any
step failed. Every process is a real one: the command line builds, pip installs, the GPU runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SAMPLE, PASSING, SEED = 900, 500, 625


@dataclass(frozen=True)
class Place:
    """Where the steps work: the sdists, and a folder for wheelhouse and installs."""

    sdists: Path
    work: Path

    def sdist(self, name: str) -> Path:
        """Return the sdist of a package."""
        (found,) = self.sdists.glob(f"{name}-*.tar.gz")
        return found

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of every process."""
        path = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path, "ARCHPATCH_WHEELHOUSE": str(self.work / "wheelhouse")}

    def archpatch(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line."""
        command = [sys.executable, "-m", "archpatch", *arguments]
        return subprocess.run(command, env=self.environment, cwd=self.work, capture_output=True, text=True, check=False)

    def build(self, *arguments: str) -> dict[str, object]:
        """Build one wheel and return what `--json` says of it."""
        answer = self.archpatch("build", *arguments, "--json")
        if answer.returncode:
            raise RuntimeError(f"archpatch build {arguments}: exit {answer.returncode}\n{answer.stderr[-3000:]}")
        (wheel,) = json.loads(answer.stdout)["wheels"]
        return dict(wheel)

    def install(self, wheel: object, name: str) -> Path:
        """Install a wheel into a folder of its own and return it."""
        target = self.work / "installed" / name
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--upgrade", "--target"]
        subprocess.run([*command, str(target), str(wheel)], check=True)
        return target

    def python(self, site: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run Python with an install folder first on its path."""
        environment = self.environment
        environment["PYTHONPATH"] = os.pathsep.join([str(site), environment["PYTHONPATH"]])
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, env=environment, cwd=cwd or self.work, capture_output=True, text=True, check=False
        )


def mini(place: Place) -> Iterator[str]:
    """A wheel for the GPU that is here runs here."""
    built = place.build(str(PROJECT / "fixtures/cuda/mini"), "--gpu", "native")
    site = place.install(built["wheel"], "mini")
    answer = place.python(site, "-c", "import archpatch_mini; print(archpatch_mini.add(5))")
    assert answer.returncode == 0, answer.stderr
    inspected = place.archpatch("inspect", str(built["wheel"]), "--runs-on", "native")
    assert inspected.returncode == 0, inspected.stdout
    yield f"{Path(str(built['wheel'])).name}: ran, {inspected.stdout.splitlines()[-1]}"


def misfit(place: Place) -> Iterator[str]:
    """A wheel for sm_80 alone is called unfit for an H200, and it does fail there."""
    built = place.build(str(PROJECT / "fixtures/cuda/mini"), "--arch", "8.0")
    inspected = place.archpatch("inspect", str(built["wheel"]), "--runs-on", "h200")
    assert inspected.returncode == 1, inspected.stdout
    site = place.install(built["wheel"], "misfit")
    answer = place.python(site, "-c", "import archpatch_mini; archpatch_mini.add(5)")
    assert answer.returncode != 0
    assert "no kernel image" in answer.stderr, answer.stderr
    yield f"inspect: {inspected.stdout.splitlines()[-1]}; run: {answer.stderr.strip().splitlines()[-1]}"


def build_causal_conv1d(place: Place) -> Iterator[str]:
    """causal_conv1d is built for the H200."""
    yield _describe(place.build(str(place.sdist("causal_conv1d")), "--gpu", "h200"))


def build_mamba(place: Place) -> Iterator[str]:
    """mamba_ssm is built for the H200."""
    yield _describe(place.build(str(place.sdist("mamba_ssm")), "--gpu", "h200"))


def causal_conv1d(place: Place) -> Iterator[str]:
    """A fixed sample of causal_conv1d's own tests passes."""
    site = place.install(_filed(place, "causal_conv1d"), "causal_conv1d")
    with tarfile.open(place.sdist("causal_conv1d")) as archive:
        archive.extractall(place.work / "sdist", filter="data")
    (tests,) = (place.work / "sdist").glob("causal_conv1d-*/tests")
    options = ["-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "--rootdir", str(tests)]
    collected = place.python(site, *options, "--collect-only", str(tests), cwd=tests)
    cases = sorted(set(re.findall(r"^test_causal_conv1d\.py::.+$", collected.stdout, re.MULTILINE)))
    assert len(cases) > SAMPLE, collected.stdout[-2000:] + collected.stderr[-2000:]
    chosen = random.Random(SEED).sample(cases, SAMPLE)  # noqa: S311 - a fixed sample
    answer = place.python(site, *options, "-n", "6", *chosen, cwd=tests)
    print(answer.stdout[-3000:])
    passed = re.search(r"(\d+) passed", answer.stdout)
    assert answer.returncode == 0 and passed and int(passed[1]) >= PASSING, answer.stdout[-3000:]
    yield f"{SAMPLE} of {len(cases)} cases (seed {SEED}): {answer.stdout.strip().splitlines()[-1]}"


def mamba(place: Place) -> Iterator[str]:
    """mamba's selective scan agrees with its reference, forward and backward."""
    site = place.install(_filed(place, "mamba_ssm"), "mamba_ssm")
    answer = place.python(site, str(Path(__file__).with_name("selective_scan.py")))
    print(answer.stdout)
    assert answer.returncode == 0, answer.stdout + answer.stderr[-3000:]
    yield f"{answer.stdout.count(': forward ')} cases, {answer.stdout.count(' ok')} ok"


def smoke(place: Place) -> Iterator[str]:
    """The recipes' own numeric tests pass, of each package that an earlier step has installed."""
    from archpatch.recipes.recipe import find_recipe

    installed = [name for name in ("causal_conv1d", "mamba_ssm") if (place.work / "installed" / name).is_dir()]
    assert installed, f"no earlier step has installed anything below {place.work}"
    for name in installed:
        source = find_recipe(name).smoke_test
        answer = place.python(place.work / "installed" / name, "-c", str(source))
        assert answer.returncode == 0, f"{name}: {answer.stderr[-2000:]}"
        yield f"{name}: passed"


def again(place: Place) -> Iterator[str]:
    """The same orders a second time compile nothing."""
    for name in ("causal_conv1d", "mamba_ssm"):
        built = place.build(str(place.sdist(name)), "--gpu", "h200")
        assert built["hit"] is True
        yield f"{name}: hit in {built['seconds']} s"


def _filed(place: Place, package: str) -> str:
    answer = place.archpatch("wheelhouse", "path", package, "--gpu", "h200")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def _describe(built: dict[str, object]) -> str:
    wheel, record = Path(str(built["wheel"])), json.loads(Path(str(built["record"])).read_text(encoding="utf-8"))
    size = wheel.stat().st_size / 1e6
    return f"{wheel.name}: {', '.join(record['device_code'])}, {size:.1f} MB, {built['seconds']} s, {record['times']}"


STEPS: dict[str, Callable[[Place], Iterator[str]]] = {
    "mini": mini,
    "misfit": misfit,
    "build_causal_conv1d": build_causal_conv1d,
    "build_mamba": build_mamba,
    "causal_conv1d": causal_conv1d,
    "mamba": mamba,
    "smoke": smoke,
    "again": again,
}


def main() -> int:
    """Run the steps that are named, or all, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sdists", type=Path)
    parser.add_argument("steps", nargs="*", default=list(STEPS), metavar="STEP")
    parser.add_argument("--work", type=Path, required=True)
    arguments = parser.parse_args()
    place = Place(arguments.sdists.resolve(), arguments.work.resolve())
    place.work.mkdir(parents=True, exist_ok=True)
    rows, failed = [], False
    for name in arguments.steps:
        started = time.monotonic()
        try:
            lines = list(STEPS[name](place))
        except Exception as error:
            failed, lines = True, [f"FAILED: {str(error)[-3000:]}"]
        rows += [(name, time.monotonic() - started, line) for line in lines]
        print(f"{name}: {'; '.join(lines)}", flush=True)
    print("\nstep | seconds | result")
    for name, seconds, line in rows:
        print(f"{name} | {seconds:.1f} | {line[:300]}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
