"""Try inputs, many at once: in processes of their own, since an input may take one down."""

from __future__ import annotations

import resource
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final

from archpatch.rewrite.outcome import Outcome, Refused, Unchanged
from archpatch.rewrite.source import rewrite_source
from fuzz.mutations import Input
from fuzz.properties import PROPERTIES, Property, Trial, is_python
from fuzz.verdict import Campaign, Verdict

__all__ = ["OUTCOMES", "judge", "try_all", "try_one"]

#: Seconds of one core for one rewrite, and what a process may take for a whole batch before it is taken for stuck.
MOST_SECONDS: Final = 5.0
_MOST_SECONDS_OF_BATCH: Final = 300
_MOST_MEMORY: Final = 2 * 1024**3
_BATCH: Final = 100

OUTCOMES: Final = ("rewritten", "unchanged", "guarded", "no match", "refused", "no Python")


def try_one(given: Input) -> Verdict:
    """Rewrite one input and look at the result."""
    started = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a warning would end up on the user's screen
            outcome = rewrite_source(given.source, given.request, policy=given.policy, cxx_standard=given.cxx_standard)
    except BaseException:  # noqa: BLE001 - nothing may escape, not even SystemExit
        return Verdict(number=given.number, kinds=given.kinds, outcome="", failures=(_last_lines(),))
    seconds = time.process_time() - started
    return judge(given, outcome, seconds)


def judge(given: Input, outcome: Outcome, seconds: float = 0.0) -> Verdict:
    """Look at what became of one input."""
    failures = [f"took {seconds:.1f} s"] if seconds > MOST_SECONDS else []
    trial = Trial(given, outcome)
    failures += [wrong for holds in PROPERTIES for wrong in _wrongs(holds, trial)]
    name, shapes = _name(given, outcome)
    return Verdict(
        number=given.number, kinds=given.kinds, outcome=name, shapes=shapes, seconds=seconds, failures=tuple(failures)
    )


def _wrongs(holds: Property, trial: Trial) -> list[str]:
    try:
        return [f"{holds.__name__}: {wrong}" for wrong in holds(trial)]
    except Exception:  # noqa: BLE001 - a result that cannot be looked at is as wrong as one that fails
        return [f"{holds.__name__}: {_last_lines()}"]


def _last_lines() -> str:
    return " | ".join(line.strip() for line in traceback.format_exc(limit=-3).splitlines()[-4:])


def _name(given: Input, outcome: Outcome) -> tuple[str, tuple[str, ...]]:
    if isinstance(outcome, Refused):
        shapes = tuple(dict.fromkeys(item.shape for item in outcome.refusals))
        if shapes == ("syntax",) and not is_python(given.source):
            return "no Python", ()
        return ("no match" if outcome.no_match else "refused"), shapes
    if outcome.guarded:
        return "guarded", tuple(dict.fromkeys(item.shape for item in outcome.sources))
    return ("unchanged" if isinstance(outcome, Unchanged) else "rewritten"), ()


def try_all(campaign: Campaign, seed: int, numbers: Sequence[int], *, jobs: int) -> Iterator[Verdict]:
    """Try a campaign's inputs, `jobs` processes at once; a batch whose process dies is halved until one is left."""
    context = get_context("fork")
    waiting = deque(numbers[start : start + _BATCH] for start in range(0, len(numbers), _BATCH))
    running: dict[Connection, tuple[BaseProcess, Sequence[int]]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            batch = waiting.popleft()
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(theirs, campaign, seed, batch))
            process.start()
            theirs.close()
            running[mine] = (process, batch)
        for connection in wait(list(running)):
            assert isinstance(connection, Connection)
            finished, batch = running.pop(connection)
            try:
                yield from connection.recv()
            except EOFError:
                yield from _died(batch, waiting)
            connection.close()
            finished.join()


def _died(batch: Sequence[int], waiting: deque[Sequence[int]]) -> Iterator[Verdict]:
    if len(batch) == 1:
        yield Verdict(number=batch[0], kinds=(), outcome="", failures=("the process died",))
    else:
        half = len(batch) // 2
        waiting.extendleft((batch[half:], batch[:half]))


def _work(connection: Connection, campaign: Campaign, seed: int, batch: Sequence[int]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS_OF_BATCH, _MOST_SECONDS_OF_BATCH))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection.send([campaign.attempt(seed, number) for number in batch])
