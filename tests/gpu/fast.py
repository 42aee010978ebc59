"""Time builds on a machine with many cores: archpatch, the unpatched package, and settings that a person would try.

    python tests/gpu/fast.py SDISTS [SIDE...] --work FOLDER --package mamba_ssm

`SDISTS` is a folder with the sdist of the package. A side is one of `SIDES`; each prints its wall time, its CPU time
and the size of its wheel, and adds a line of JSON to `FOLDER/PACKAGE.jsonl`, so that sides can be run by several calls.
The table of all comes last, with the floor: the CPU time of archpatch's build over the cores. Wheels stay in
`FOLDER/PACKAGE/SIDE`: of archpatch, a wheelhouse, so that `prove.py --work` finds the wheel there. `--report FILE`
writes the table as `nox -s bench` does, for `docs/benchmarks/`. Needs archpatch and `tests/support` on the path, and
torch with its CUDA toolkit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from measuring import Comparison, Report
from measuring import Side as Measured

PROJECT = Path(__file__).parents[2]
CUDA_HOME = os.environ.get("CUDA_HOME", "/usr/local/cuda")
CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Side:
    """A way to build: options of archpatch, or none of it; variables beside those of the machine."""

    archpatch: tuple[str, ...] | None
    environ: Mapping[str, str] = field(default_factory=dict)


def by_hand(threads: int) -> Side:
    """One arch, all files at once, and so many threads for each: what a person would set for all files alike."""
    flags = {"NVCC_APPEND_FLAGS": f"--split-compile={threads}"} if threads != 1 else {}
    # With a PYTORCH_NVCC of the user's, archpatch leaves the schedule to ninja.
    nvcc = str(Path(CUDA_HOME, "bin/nvcc"))
    return Side((), {"PYTORCH_NVCC": nvcc, "MAX_JOBS": str(CORES), **flags})


SIDES = {
    "unpatched": Side(None),
    "first": Side(()),
    "again": Side(("--compress-mode", "balance")),
    "size": Side(("--compress-mode", "size")),
    "no-lineinfo": Side(("--no-lineinfo",)),
    "smallest": Side(("--compress-mode", "size", "--no-lineinfo")),
    **{f"hand-{threads}": by_hand(threads) for threads in (1, 2, 4, 0)},
}


def build(sdist: Path, side: Side, folder: Path) -> Path:
    """Build one wheel below a folder and return it; archpatch's sides share a wheelhouse, and the costs in it."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])}
    environ |= {"CUDA_HOME": CUDA_HOME, **side.environ, "ARCHPATCH_CACHE": str(folder / "cache")}
    environ |= {f"{name}_FORCE_BUILD": "TRUE" for name in ("MAMBA", "CAUSAL_CONV1D")}
    if side.archpatch is not None:
        house = ("--wheelhouse", folder / "wheelhouse", "--gpu", "h200")
        return Path(run([sys.executable, "-m", "archpatch", "build", sdist, *house, *side.archpatch], environ).strip())
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "tree", filter="data")
    (tree,) = (folder / "tree").iterdir()
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    run([*pip, "-w", folder / "unpatched", tree], environ)
    (wheel,) = (folder / "unpatched").glob("*.whl")
    return wheel


def run(command: Sequence[object], environ: Mapping[str, str]) -> str:
    """Run a command that has to succeed, and return what it printed."""
    done = subprocess.run(list(map(str, command)), env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def measure(sdist: Path, name: str, folder: Path) -> dict[str, object]:
    """Build by the side `name` and return what it took."""
    folder.mkdir(parents=True, exist_ok=True)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    wheel = build(sdist, SIDES[name], folder)
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    record = Path(f"{wheel}.json")
    files = json.loads(record.read_text())["files"] if record.is_file() else {}
    made = folder / ("unpatched" if SIDES[name].archpatch is None else "wheelhouse")
    if made.name != name:  # the next side puts its wheel in the place of this one
        shutil.copytree(made, folder / name / made.name, symlinks=True, dirs_exist_ok=True)
    return {"side": name, "wall": wall, "cpu": cpu, "bytes": wheel.stat().st_size, "cores": CORES, "files": files}


def table(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """Yield the lines of a table: each side beside the first that archpatch built."""
    base = next((row for row in rows if row["side"] == "first"), rows[0])
    yield "side | wall s | CPU s | MB | wall beside first | bytes beside first"
    for row in rows:
        wall, size = float(str(row["wall"])), float(str(row["bytes"]))
        ratios = f"{wall / float(str(base['wall'])):.2f} | {size / float(str(base['bytes'])):.2f}"
        yield f"{row['side']} | {wall:.1f} | {float(str(row['cpu'])):.0f} | {size / 1e6:.1f} | {ratios}"
    yield f"floor: {float(str(base['cpu'])) / CORES:.1f} s ({CORES} cores)"


def comparisons(package: str, rows: Sequence[Mapping[str, object]]) -> Iterator[Comparison]:
    """Yield what the first build of archpatch is held against: all other sides, and the floor."""
    sides = {str(row["side"]): row for row in rows}

    def took(name: str, called: str = "", *, what: str = "wall", over: float = 1) -> Measured:
        return Measured(name=called or name, value=float(str(sides[name][what])) / over)

    ours = "archpatch for 9.0"
    yield Comparison(
        name=f"{package}: floor",
        measured=took("first", ours),
        against=took("first", f"its core-seconds on {CORES} cores", what="cpu", over=CORES),
    )
    for name in sorted(sides.keys() & {"first", "size", "smallest"}) if "unpatched" in sides else ():
        label = " ".join([package, *(SIDES[name].archpatch or ())])
        full, narrow = took("unpatched", "full wheel", what="bytes"), took(name, "ours", what="bytes")
        yield Comparison(name=f"{label}: build", measured=took("unpatched", "full build"), against=took(name, ours))
        yield Comparison(name=f"{label}: wheel", measured=full, against=narrow, unit="bytes")
    for name in sorted(side for side in sides if side.startswith("hand-")):
        yield Comparison(name=f"{package}: beside {name}", measured=took("first", ours), against=took(name))


def main() -> None:
    """Measure the sides that are named, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sdists", type=Path)
    parser.add_argument("sides", nargs="*", choices=[*SIDES, []], metavar="SIDE")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--package", required=True)
    parser.add_argument("--report", type=Path, help="where the comparisons go as JSON")
    given = parser.parse_args()
    (sdist,) = given.sdists.resolve().glob(f"{given.package}-*.tar.gz")
    given.work.mkdir(parents=True, exist_ok=True)
    results = given.work / f"{given.package}.jsonl"
    for name in given.sides:
        row = measure(sdist, name, given.work.resolve() / given.package)
        print(json.dumps(row), flush=True)
        with results.open("a") as file:
            file.write(json.dumps(row) + "\n")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    print("\n".join(table(rows)))
    if given.report:
        replace(Report.here(), results=tuple(comparisons(given.package, rows))).write(given.report)


if __name__ == "__main__":
    main()
