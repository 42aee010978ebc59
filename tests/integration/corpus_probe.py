"""A process that asks the corpus' harness one thing, and prints a JSON object: see `test_corpus.py`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

sys.path[:] = [str(Path(__file__).parents[1]), *(entry for entry in sys.path if entry != str(Path(__file__).parent))]

from corpus.harness import Settings, harness  # noqa: E402 - the path comes first
from corpus.judge import Case  # noqa: E402
from corpus.matrix import Question  # noqa: E402
from corpus.seen import Seen  # noqa: E402
from corpus.toolkits import TOOLKITS  # noqa: E402

from archpatch.arch.selection import OnMissing, Policy, Request  # noqa: E402
from archpatch.rewrite.outcome import Outcome, Rewritten  # noqa: E402


def capture(setup: Path, toolkit: str, archs: str | None = None) -> Seen:
    """Run the file as it is."""
    variables = {"TORCH_CUDA_ARCH_LIST": archs} if archs else {}
    with harness() as ready:
        return ready.capture(ready.tree(setup), setup.read_bytes(), Settings.of(TOOLKITS[toolkit], variables))


def pairs(setup: Path, toolkit: str) -> dict[str, object]:
    """Return all pairs of the file's own."""
    seen = capture(setup, toolkit)
    return {"pairs": sorted({pair.spelled for command in seen.commands for pair in command.own.pairs})}


def flags(setup: Path, toolkit: str, archs: str | None = None) -> dict[str, object]:
    """Return the flags of each extension, and how often each is there."""
    return {"flags": {each.extension: Counter(each.flags) for each in capture(setup, toolkit, archs).commands}}


def judge(setup: Path, toolkit: str, request: str, *patched: str) -> dict[str, object]:
    """Judge archpatch's rewrite, or with `patched` the one on stdin."""
    given = sys.stdin.buffer.read()

    def replaced(source: bytes, wanted: Request | None, _: Policy) -> Outcome:
        return Rewritten(source=source if wanted is None else given, pairs=(), selection=None)

    question = Question(text=request, on_missing=OnMissing.ERROR, toolkit=TOOLKITS[toolkit])
    with harness() as ready:
        tree = ready.tree(setup)
        case = Case(ready, tree, rewrite=replaced) if patched else Case(ready, tree)
        verdict = case.judge(question)
    return {"verdict": verdict.verdict, "reason": verdict.reason, "extensions": dict(verdict.extensions)}


if __name__ == "__main__":
    _, what, path, *rest = sys.argv
    print(json.dumps({"pairs": pairs, "flags": flags, "judge": judge}[what](Path(path), *rest)))  # noqa: T201 - its answer
