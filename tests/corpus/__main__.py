"""The command: `python tests/corpus [FOLDER] [--output FILE]`; `--help` lists what narrows it down."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# Run as a folder, Python puts this folder onto the path: what a setup.py imports must not be found in it.
sys.path[:] = [str(_HERE.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != _HERE)]

from archpatch.arch.selection import OnMissing  # noqa: E402 - the path comes first
from corpus.files import files_in, files_of_cases  # noqa: E402
from corpus.matrix import ON_MISSING, REQUESTS, Matrix, parse_request  # noqa: E402
from corpus.runner import Summary, ask_all, write_lines  # noqa: E402
from corpus.toolkits import TOOLKITS  # noqa: E402

_CASES = _HERE.parents[1].parent / "shared/cases/pypi-sdists.toml"


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="corpus", description="Check the rewrite of every setup.py of a set.")
    parser.add_argument("folder", nargs="?", type=Path, help="setup.py files, unpacked sdists or archives of sdists")
    parser.add_argument("--cases", type=Path, default=_CASES, help="the list of sdists that is taken without FOLDER")
    parser.add_argument("--output", type=Path, help="write the JSON lines here (default: stdout)")
    parser.add_argument("--request", action="append", help="such as 9.0 or '--gpu h200'; default: all")
    parser.add_argument("--on-missing", action="append", choices=[policy.value for policy in OnMissing])
    parser.add_argument("--toolkit", action="append", choices=list(TOOLKITS))
    parser.add_argument("--jobs", type=int, help="processes at once (default: the cores)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the corpus; return 1 if any verdict is wrong."""
    arguments = _arguments(argv)
    matrix = Matrix(
        requests=tuple(arguments.request or REQUESTS),
        on_missing=tuple(map(OnMissing, arguments.on_missing or ON_MISSING)),
        toolkits=tuple(TOOLKITS[name] for name in arguments.toolkit or TOOLKITS),
    )
    for request in matrix.requests:
        parse_request(request)
    summary = Summary()
    with tempfile.TemporaryDirectory(prefix="archpatch-sdists-") as scratch, contextlib.ExitStack() as stack:
        folder = arguments.folder
        files = list(files_in(folder, Path(scratch)) if folder else files_of_cases(arguments.cases, Path(scratch)))
        sink = stack.enter_context(arguments.output.open("w", encoding="utf-8")) if arguments.output else sys.stdout
        for answers in ask_all(files, matrix, jobs=arguments.jobs):
            write_lines(answers, sink)
            summary.add(answers)
    summary.write(sys.stderr)
    return int(summary.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
