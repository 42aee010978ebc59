"""Ask every question of every file, on all cores, and sum up."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any

from corpus.files import File
from corpus.harness import Harness, harness
from corpus.judge import Case
from corpus.matrix import Matrix

__all__ = ["Answers", "Summary", "ask_all", "ask_one"]

VERDICTS = ("right", "refused", "wrong", "unrunnable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """All verdicts on one file, and how long each capture took (seconds)."""

    file: str
    lines: tuple[dict[str, Any], ...]
    seconds: tuple[float, ...]


@dataclass(slots=True)
class Summary:
    """How many verdicts of each kind there are, per file."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def add(self, answers: Answers) -> None:
        """Count the verdicts on one file."""
        self.counts[answers.file] = Counter(line["verdict"] for line in answers.lines)
        told = (line for line in answers.lines if line["verdict"] != "right")
        self.reasons[answers.file] = Counter(f"{line['verdict']}: {_brief(line['reason'])}" for line in told)
        self.seconds.extend(answers.seconds)

    @property
    def wrong(self) -> int:
        """The number of wrong verdicts."""
        return sum(count["wrong"] for count in self.counts.values())

    def write(self, sink: IO[str]) -> None:
        """Write the table."""
        width = max((len(name) for name in self.counts), default=4)
        sink.write(f"{'file':{width}} " + " ".join(f"{name:>10}" for name in VERDICTS) + "\n")
        for name, count in sorted(self.counts.items()):
            sink.write(f"{name:{width}} " + " ".join(f"{count[verdict]:10}" for verdict in VERDICTS) + "\n")
            for reason, number in self.reasons[name].most_common(3):
                sink.write(f"    {number} x {reason}\n")
        total = sum(self.counts.values(), Counter[str]())
        sink.write(f"{'all':{width}} " + " ".join(f"{total[verdict]:10}" for verdict in VERDICTS) + "\n")
        if self.seconds:
            median, most = statistics.median(self.seconds), max(self.seconds)
            sink.write(f"{len(self.seconds)} captures: median {median:.3f} s, longest {most:.3f} s\n")


def ask_one(harness: Harness, file: File, matrix: Matrix) -> Answers:
    """Ask all questions of one file."""
    case = Case(harness, harness.tree(file.path))
    lines = []
    for question in matrix:
        verdict = case.judge(question)
        line = {"file": file.name, "request": question.text, "on_missing": question.on_missing.value}
        line |= {"toolkit": question.toolkit.release, "verdict": verdict.verdict, "reason": verdict.reason}
        lines.append({**line, "extensions": dict(verdict.extensions)} if verdict.extensions else line)
    return Answers(file=file.name, lines=tuple(lines), seconds=tuple(case.seconds))


def ask_all(files: Iterable[File], matrix: Matrix, *, jobs: int | None = None) -> Iterator[Answers]:
    """Ask all questions of all files, in processes of their own; the answers come in the order of the files."""
    context = get_context("fork")
    with harness() as ready, ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=context) as pool:
        waiting = [pool.submit(_ask, ready.scratch, file, matrix) for file in files]
        for future in waiting:
            yield future.result()


@cache
def _worker_harness(scratch: Path) -> Harness:
    return Harness(scratch)


def _ask(scratch: Path, file: File, matrix: Matrix) -> Answers:
    return ask_one(_worker_harness(scratch), file, matrix)


def _brief(reason: str) -> str:
    return reason if len(reason) < 160 else reason[:157] + "..."


def write_lines(answers: Answers, sink: IO[str] = sys.stdout) -> None:
    """Write one JSON line per verdict."""
    for line in answers.lines:
        sink.write(json.dumps(line) + "\n")
