"""Time `archpatch.nox.build` in a nox session on a machine with a GPU: wheelhouse cold, then warm.

    python tests/gpu/nox_session.py REQUIREMENT MODULE --work FOLDER

`REQUIREMENT` is what the session builds, `MODULE` what it imports afterwards. Needs archpatch, nox and a CUDA build of
torch in this interpreter; the session's environment sees them by PYTHONPATH, and nothing is fetched. A short table
comes last; the exit status is 1 if a session failed or the second one compiled.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

PROJECT = Path(__file__).parents[2]
NOXFILE = """
import nox

import archpatch.nox


@nox.session(venv_backend="venv", reuse_venv=False)
def tests(session):
    wheel = archpatch.nox.build(session, {requirement!r}, gpu="native")
    session.install("--no-deps", "--no-index", "--force-reinstall", wheel)
    session.run("python", "-c", "import torch, {module}; print({module}.__file__, torch.cuda.get_device_name())")
"""


def run(work: Path) -> tuple[float, str]:
    """Run the session, and return its seconds and output; raises where it fails."""
    installed = sysconfig.get_path("purelib")
    path = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")]), installed])
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "nox", "-f", str(work / "noxfile.py")],
        cwd=work,
        env={**os.environ, "PYTHONPATH": path, "ARCHPATCH_WHEELHOUSE": str(work / "wheelhouse")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"nox ended with {done.returncode}\n{done.stdout[-4000:]}")
    return time.monotonic() - started, done.stdout


def main() -> int:
    """Run the session twice and print both times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requirement")
    parser.add_argument("module")
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True)
    requirement = options.requirement
    if Path(requirement).exists():
        requirement = str(Path(requirement).resolve())
    (options.work / "noxfile.py").write_text(NOXFILE.format(requirement=requirement, module=options.module))
    times, outputs = zip(*(run(options.work) for _ in range(2)), strict=True)
    for name, seconds, output in zip(("cold", "warm"), times, outputs, strict=True):
        (line,) = (line for line in output.splitlines() if " is built: " in line or " was there: " in line)
        print(f"{name}: {seconds:7.1f} s  {line.partition('archpatch: ')[2]}")
    print(f"ratio: {times[0] / times[1]:.1f}")
    return int("was there" not in outputs[1])


if __name__ == "__main__":
    sys.exit(main())
