"""Which file is compiled next, and with how many threads: told from costs, cores and memory; nothing is done here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from archpatch.builder.host import MEMORY_PER_JOB

__all__ = ["UNKNOWN", "Cost", "File", "Machine", "Rota", "Turn"]

#: A file's share of the cores is what would end all files at once, if its threads were busy all the time. Those of
#: nvcc's optimisers are for about half of it: what comes before and after them is one thread's work.
_THREADS_PER_SHARE: Final = 2
#: A file that takes less than this part of the longest leaves the cores to that one when both want them: the longest
#: decides when the build ends, and what is short fits in beside it.
_SHORT: Final = 0.8
_YIELDING: Final = 10
#: With costs unknown, what seemed short may be the longest. A second thread is worth that; its own cost is 3 %.
_FEWEST_THREADS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What compiling a file takes for one arch: CPU seconds of all processes, and the peak bytes of the largest."""

    seconds: float
    memory: int

    def to_json(self) -> dict[str, float]:
        """Return the cost as a record has it."""
        return {"seconds": round(self.seconds, 3), "memory": self.memory}

    @classmethod
    def read(cls, cost: Mapping[str, float]) -> Cost:
        """Return the cost that a record has."""
        return cls(seconds=float(cost["seconds"]), memory=int(cost["memory"]))


#: The cost of a file that was never compiled here.
UNKNOWN: Final = Cost(seconds=60.0, memory=MEMORY_PER_JOB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What all builds share: cores, bytes of memory, and how many compilers may run side by side."""

    cores: int
    memory: int
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of one extension, compiled for `archs` architectures; the whole machine is wanted where `alone`.

    `extension` is a number that no other has, of whatever build.
    """

    extension: int
    path: str
    cost: Cost = UNKNOWN
    archs: int = 1
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a file runs with: `threads` of nvcc, the bytes of `memory` set aside for it, how `nice` it is to others."""

    threads: int
    memory: int
    nice: int = 0


class Rota:
    """The files of all builds: those that are to come, those that wait, and those that run.

    Longest first: what is long and starts late would run by itself in the end. Nothing overtakes a file that waits for
    memory, which would otherwise wait for ever.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._coming: dict[tuple[int, str], File] = {}
        self._waiting: list[File] = []
        self._running: list[tuple[File, Turn]] = []

    def announce(self, files: Iterable[File]) -> None:
        """Take note of files that are about to be asked for: a file's threads depend on what else there is."""
        self._coming.update({(file.extension, file.path): file for file in files})

    def ask(self, file: File) -> None:
        """Put a file that is ready into the queue."""
        self._coming.pop((file.extension, file.path), None)
        self._waiting.append(file)

    def all_asked(self, extension: int) -> bool:
        """Whether every file is in the queue that was announced for an extension."""
        return all(other != extension for other, _ in self._coming)

    def start(self, file: File) -> Turn | None:
        """Start a file that waits, if it is its turn and there is room for it."""
        if file != max(self._waiting, key=_precedence):
            return None
        turn = self._turn(file)
        if turn is not None:
            self._waiting.remove(file)
            self._running.append((file, turn))
        return turn

    def leave(self, file: File) -> None:
        """Forget a file that is done, or that nobody waits for any more."""
        for entry in self._running:
            if entry[0] == file:
                self._running.remove(entry)
                return
        self._waiting.remove(file)

    def withdraw(self, extension: int) -> None:
        """Forget what was announced for an extension and did not ask: a compiler cache may have had it."""
        self._coming = {key: file for key, file in self._coming.items() if file.extension != extension}

    def _turn(self, file: File) -> Turn | None:
        if self._running and self._is_full_for(file):
            return None
        free = self._machine.memory - sum(turn.memory for _, turn in self._running)
        archs = min(file.archs, free // max(1, file.cost.memory))
        if not self._running:
            # Something has to run, however little memory there is.
            archs = max(1, archs)
        if archs < 1:
            return None
        # nvcc's threads take an arch each, with memory of its own; the threads of an optimiser share one.
        threads = self._threads(file) if archs == file.archs else min(self._threads(file), archs)
        return Turn(threads=threads, memory=file.cost.memory * min(threads, archs), nice=self._nice(file))

    def _is_full_for(self, file: File) -> bool:
        occupied = len(self._running) >= self._machine.jobs
        return file.alone or occupied or any(other.alone for other, _ in self._running)

    def _threads(self, file: File) -> int:
        """Return the threads for a file that waits: its part of all the work that is left, in cores."""
        cores = self._machine.cores
        share = cores * _weight(file) / sum(map(_weight, self._left()))
        return min(cores, max(_FEWEST_THREADS, math.ceil(_THREADS_PER_SHARE * share)))

    def _nice(self, file: File) -> int:
        return _YIELDING if _weight(file) < _SHORT * max(map(_weight, self._left())) else 0

    def _left(self) -> list[File]:
        """Return every file that is not done."""
        return [*self._coming.values(), *self._waiting, *(other for other, _ in self._running)]


def _weight(file: File) -> float:
    # A clock may tell nothing for what is quick.
    return max(0.1, file.cost.seconds * file.archs)


def _precedence(file: File) -> tuple[bool, float]:
    # Whoever wants the machine for himself comes last, or all others would wait for him.
    return (not file.alone, _weight(file))
