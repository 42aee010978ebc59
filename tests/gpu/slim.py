"""Prove on a machine with a GPU that a slimmed wheel computes what the whole one does, bit by bit.

    python tests/gpu/slim.py WHEEL --work FOLDER

`WHEEL` is bitsandbytes as PyPI has it, or any other wheel with `--results SCRIPT`, a script that prints a line for each
result. Needs archpatch importable, torch with CUDA, and numpy; no network. The wheel is slimmed for the GPU that is
here, and to an arch that it does not run. Each wheel is installed into a folder of its own and used by a process of
its own. A short table comes last, and the exit status is 1 if anything was not as it must be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("bitsandbytes_results.py")


@dataclass(frozen=True)
class Place:
    """Where this works: the whole wheel, the script that uses it, and a folder for wheels and installs."""

    wheel: Path
    results: Path
    work: Path

    def python(self, *arguments: str, site: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run Python with archpatch, or with an install folder, first on its path."""
        path = os.pathsep.join([str(site or PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, cwd=self.work, capture_output=True, text=True, check=False)

    def slim(self, name: str, *request: str) -> tuple[Path, str]:
        """Slim the wheel into a folder of its own; return it and what the table says of it."""
        options = ["--allow-relocatable", "--json", "-o", str(self.work / name)]
        answer = self.python("-m", "archpatch", "slim", str(self.wheel), *request, *options)
        if answer.returncode:
            raise RuntimeError(f"archpatch slim {request}: exit {answer.returncode}\n{answer.stderr[-3000:]}")
        told = json.loads(answer.stdout)
        sizes = f"{self.wheel.stat().st_size / 1e6:.1f} MB to {told['size'] / 1e6:.1f} MB"
        return Path(told["path"]), f"{' '.join(told['device_code'])}, {sizes}, {told['seconds']:.1f} s"

    def install(self, wheel: Path, name: str) -> Path:
        """Install a wheel into a folder of its own and return it."""
        target = self.work / "installed" / name
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--upgrade", "--target"]
        subprocess.run([*command, str(target), str(wheel)], check=True)
        return target

    def run(self, wheel: Path, name: str) -> tuple[list[str], str, float]:
        """Install a wheel and use it; return its results, what it said at the end, and the seconds of the use."""
        site, started = self.install(wheel, name), time.monotonic()
        answer = self.python(str(self.results), site=site)
        print(f"{name}: exit {answer.returncode}, {len(answer.stdout.splitlines())} results", flush=True)
        last = (answer.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        said = f"exit {answer.returncode}: {last}" if answer.returncode else ""
        return answer.stdout.splitlines(), said, time.monotonic() - started


def other_arch() -> str:
    """Return an arch whose cubins the GPU that is here does not run, and that most wheels hold."""
    import torch

    return "8.0" if torch.cuda.get_device_capability()[0] != 8 else "9.0"


def main() -> int:
    """Slim, install, use, compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=RESULTS, help="what uses the wheel (default: %(default)s)")
    parser.add_argument("--gpu", default="native", help="the type to slim for (default: the GPU that is here)")
    arguments = parser.parse_args()
    place = Place(arguments.wheel.resolve(), arguments.results.resolve(), arguments.work.resolve())
    place.work.mkdir(parents=True, exist_ok=True)

    slimmed, told = place.slim("slim", "--gpu", arguments.gpu)
    misfit, told_of_misfit = place.slim("misfit", "--arch", other_arch())
    wide, said, wide_seconds = place.run(place.wheel, "wide")
    narrow, said_narrow, narrow_seconds = place.run(slimmed, "slim")
    wrong, said_wrong, _ = place.run(misfit, "misfit")
    differing = [before for before, after in zip(wide, narrow, strict=False) if before != after]
    rows = [
        ("slimmed", True, told),
        ("whole wheel", bool(wide) and not said, said or f"{len(wide)} results in {wide_seconds:.1f} s"),
        ("slim wheel", bool(narrow) and not said_narrow, said_narrow or f"{len(narrow)} in {narrow_seconds:.1f} s"),
        ("bit-equal", wide == narrow, "; ".join(differing)[:300] or f"{len(wide)} of {len(narrow)}"),
        (f"other arch ({told_of_misfit})", wrong != wide and bool(said_wrong), said_wrong[:300]),
    ]
    print("\nwhat | as it must be | detail")
    for what, is_right, detail in rows:
        print(f"{what} | {'yes' if is_right else 'NO'} | {detail}")
    return int(not all(is_right for _, is_right, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
