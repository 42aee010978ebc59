"""The table at the end of a run: what was tried, what became of it, what failed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fuzz.verdict import Campaign, Verdict

__all__ = ["Summary"]

_ALL = "all inputs"


@dataclass(slots=True)
class Summary:
    """Counts by kind of mutation and outcome; an input with several mutations counts for each."""

    campaign: Campaign
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    shapes: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def add(self, verdict: Verdict) -> None:
        """Count one verdict."""
        for kind in (*verdict.kinds, _ALL):
            self.counts[kind, "inputs"] += 1
            self.counts[kind, verdict.outcome] += 1
            self.counts[kind, "failed"] += bool(verdict.failures)
        self.shapes.update((verdict.outcome, shape) for shape in verdict.shapes)
        self.slowest = max(self.slowest, verdict.seconds)

    def fail(self, verdict: Verdict, saved: Path, again: str) -> None:
        """Note a failure, where its input is, and how to have it again."""
        self.failures += [f"input {verdict.number} ({', '.join(verdict.kinds)}): {text}" for text in verdict.failures]
        self.failures.append(f"    saved as {saved}; again: {again}")

    def write(self, sink: IO[str], seconds: float) -> None:
        """Write the tables, the failures and the time."""
        columns = ("inputs", *self.campaign.outcomes, "failed")
        sink.write(f"{'mutation':20}" + "".join(f"{column:>15}" for column in columns) + "\n")
        for kind in (*self.campaign.kinds, _ALL):
            sink.write(f"{kind:20}" + "".join(f"{self.counts[kind, column]:15}" for column in columns) + "\n")
        for outcome in self.campaign.outcomes:
            counts = Counter({shape: count for (name, shape), count in self.shapes.items() if name == outcome})
            if counts:
                found = ", ".join(f"{shape} {count}" for shape, count in counts.most_common())
                sink.write(f"{outcome} by shape: {found}\n")
        sink.writelines(f"FAILED {failure}\n" for failure in self.failures)
        failed = self.counts[_ALL, "failed"]
        sink.write(f"{failed} inputs failed; {seconds:.0f} s, the slowest {self.slowest:.2f} s\n")
