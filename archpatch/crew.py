"""Several cells at once, each in a thread of its own; what they tell is told by one voice."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Final

from archpatch.builder.events import Listener
from archpatch.builder.processes import end_all_sessions
from archpatch.wheelhouse.plan import Cell, Result

__all__ = ["Work", "at_once", "side_by_side"]

#: What is done for a cell; the listener knows which cell it is.
Work = Callable[[Cell, Listener], Result]

_FEWEST, _MOST, _CORES_EACH = 2, 4, 4
#: How long a thread that was told to stop may take (seconds): compilers are ended politely first.
_PATIENCE: Final = 10.0


def at_once(cores: int, jobs: int | None) -> int:
    """Return how many cells to build at once; `jobs` is `MAX_JOBS`, None where that is not set.

    While one fetches, or compiles its last file, others go on. More of them would add trees on the disk, and no
    compilers: those are shared by all cells.
    """
    most = max(_FEWEST, min(_MOST, cores // _CORES_EACH))
    return most if jobs is None else min(most, jobs)


def side_by_side(work: Work, cells: Sequence[Cell], *, most: int, listener: Listener) -> Iterator[Result]:
    """Do `work` for each cell, `most` at once, and yield the results in the order of the cells; raises what it raises.

    Whatever ends the iteration early (Ctrl-C, an error) ends the work: every process that was started for it, and what
    it has to tell next is its last word. Then the results come that are there, and what ended it is raised.
    """
    crew = _Crew(work, listener)
    tasks = [(cell, Future[Result]()) for cell in cells]
    waiting = queue.SimpleQueue[tuple[Cell, "Future[Result]"]]()
    for task in tasks:
        waiting.put(task)
    # A thread that waits for another process's lock is not to keep this process from ending: so, daemons.
    threads = [threading.Thread(target=crew.serve, args=(waiting,), daemon=True) for _ in range(min(most, len(cells)))]
    for thread in threads:
        thread.start()
    told = 0
    try:
        for _, result in tasks:
            found = result.result()
            told += 1
            yield found
    except GeneratorExit:
        raise
    except BaseException:
        crew.dismiss(threads)
        finished = (result for _, result in tasks[told:] if result.done() and result.exception() is None)
        yield from (result.result() for result in finished)
        raise
    finally:
        crew.dismiss(threads)


class _Crew:
    """What the threads share."""

    def __init__(self, work: Work, listener: Listener) -> None:
        self.work, self.listener = work, listener
        self.dismissed = threading.Event()
        self.telling = threading.Lock()
        self.compiling: dict[str, tuple[int, int, tuple[str, ...]]] = {}

    def dismiss(self, threads: Sequence[threading.Thread]) -> None:
        """End all work. A thread that waits for another process's lock is left: it ends with this process."""
        self.dismissed.set()
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            for thread in threads:
                thread.join(0.05)
            if not any(thread.is_alive() for thread in threads):
                break
            # Again and again: what is between two processes may start another one.
            end_all_sessions()

    def serve(self, waiting: queue.SimpleQueue[tuple[Cell, Future[Result]]]) -> None:
        """Take one cell after the other, until there is none left."""
        while not self.dismissed.is_set():
            try:
                cell, result = waiting.get_nowait()
            except queue.Empty:
                return
            voice = _Voice(self, cell.id)
            try:
                result.set_result(self.work(cell, voice))
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
                result.set_exception(error)
            finally:
                voice.done()


class _Voice:
    """The listener of one cell: says which cell it is, and ends the work once the crew is dismissed."""

    def __init__(self, crew: _Crew, name: str) -> None:
        self._crew, self._name = crew, name

    def stage(self, text: str) -> None:
        """Pass on that a step begins."""
        self._check()
        with self._crew.telling:
            self._crew.listener.stage(f"{self._name}: {text}")

    def warn(self, text: str) -> None:
        """Pass on what a person should know."""
        self._check()
        with self._crew.telling:
            self._crew.listener.warn(f"{self._name}: {text}")

    def compiling(self, done: int, total: int, files: tuple[str, ...]) -> None:
        """Pass on how many files of all cells are compiled, and which are now."""
        self._check()
        with self._crew.telling:
            self._crew.compiling[self._name] = (done, total, files)
            each = self._crew.compiling.values()
            current = tuple(file for _, _, files in each for file in files)
            self._crew.listener.compiling(sum(one for one, _, _ in each), sum(one for _, one, _ in each), current)

    def done(self) -> None:
        """Count the files of this cell no more."""
        with self._crew.telling:
            self._crew.compiling.pop(self._name, None)

    def _check(self) -> None:
        if self._crew.dismissed.is_set():
            raise KeyboardInterrupt
