"""The command: `python tests/fuzz [--inputs N] [--seed S] [--jobs J]`; `--help` says the rest."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [str(_HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != _HERE)]

from fuzz.mutations import make_input  # noqa: E402 - the path comes first
from fuzz.runner import try_all  # noqa: E402
from fuzz.summary import Summary  # noqa: E402


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fuzz", description="Rewrite mutated setup.py files and check what comes out."
    )
    parser.add_argument("--inputs", type=int, default=20_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="that of an earlier run, to have it again (default: a new one)")
    parser.add_argument("--first", type=int, default=0, help="the first input's number; with --inputs 1, this one only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (default: the cores)")
    parser.add_argument("--output", type=Path, help="where inputs that fail are saved (default: a new folder)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run; return 1 if anything failed."""
    arguments = _arguments(argv)
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    sys.stdout.write(f"seed {seed}, {arguments.inputs} inputs, {arguments.jobs} processes\n")
    sys.stdout.flush()
    started, summary = time.monotonic(), Summary()
    numbers = range(arguments.first, arguments.first + arguments.inputs)
    folder = arguments.output
    for verdict in try_all(seed, numbers, jobs=arguments.jobs):
        summary.add(verdict)
        if verdict.failures:
            folder = folder or Path(tempfile.mkdtemp(prefix="archpatch-fuzz-"))
            folder.mkdir(parents=True, exist_ok=True)
            saved = folder / f"{seed}-{verdict.number}.py"
            saved.write_bytes(make_input(seed, verdict.number).source)
            summary.fail(verdict, saved, f"python tests/fuzz --seed {seed} --first {verdict.number} --inputs 1")
    summary.write(sys.stdout, time.monotonic() - started)
    return int(bool(summary.failures))


if __name__ == "__main__":
    sys.exit(main())
