"""The command: `python tests/fuzz [rewrite|slim] [--inputs N] [--seed S] [--jobs J]`; `--help` says the rest."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:] = [
    str(_HERE.parent),
    str(_HERE.parent / "support"),
    *(entry for entry in sys.path if Path(entry or ".").resolve() != _HERE),
]

from fuzz import binaries, mutations, runner, slimming  # noqa: E402 - the path comes first
from fuzz.summary import Summary  # noqa: E402
from fuzz.verdict import Campaign  # noqa: E402

CAMPAIGNS = {
    "rewrite": Campaign(
        inputs=20_000,
        kinds=mutations.KINDS,
        outcomes=runner.OUTCOMES,
        suffix=".py",
        attempt=lambda seed, number: runner.try_one(mutations.make_input(seed, number)),
        source=lambda seed, number: mutations.make_input(seed, number).source,
    ),
    "slim": Campaign(
        inputs=10_000,
        kinds=binaries.KINDS,
        outcomes=slimming.OUTCOMES,
        suffix=".so",
        attempt=lambda seed, number: slimming.try_binary(binaries.make_binary(seed, number)),
        source=lambda seed, number: binaries.make_binary(seed, number).data,
    ),
}


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="fuzz", description="Rewrite mutated setup.py files, or slim mutated libraries, and check what comes out."
    )
    parser.add_argument("what", nargs="?", choices=list(CAMPAIGNS), default="rewrite", help="(default: %(default)s)")
    parser.add_argument("--inputs", type=int, help="how many (default: 20000 files, 10000 libraries)")
    parser.add_argument("--seed", type=int, help="that of an earlier run, to have it again (default: a new one)")
    parser.add_argument("--first", type=int, default=0, help="the first input's number; with --inputs 1, this one only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (default: the cores)")
    parser.add_argument("--output", type=Path, help="where inputs that fail are saved (default: a new folder)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run; return 1 if anything failed."""
    arguments = _arguments(argv)
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    campaign = CAMPAIGNS[arguments.what]
    count = campaign.inputs if arguments.inputs is None else arguments.inputs
    sys.stdout.write(f"{arguments.what}: seed {seed}, {count} inputs, {arguments.jobs} processes\n")
    sys.stdout.flush()
    started, summary = time.monotonic(), Summary(campaign)
    numbers = range(arguments.first, arguments.first + count)
    folder = arguments.output
    for verdict in runner.try_all(campaign, seed, numbers, jobs=arguments.jobs):
        summary.add(verdict)
        if verdict.failures:
            folder = folder or Path(tempfile.mkdtemp(prefix="archpatch-fuzz-"))
            folder.mkdir(parents=True, exist_ok=True)
            saved = folder / f"{seed}-{verdict.number}{campaign.suffix}"
            saved.write_bytes(campaign.source(seed, verdict.number))
            again = f"python tests/fuzz {arguments.what} --seed {seed} --first {verdict.number} --inputs 1"
            summary.fail(verdict, saved, again)
    summary.write(sys.stdout, time.monotonic() - started)
    return int(bool(summary.failures))


if __name__ == "__main__":
    sys.exit(main())
