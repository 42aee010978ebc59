"""Many processes and one wheelhouse: each wheel is built once, nobody fails or hangs, no reader sees a fault."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commandline import FIXTURES, CommandLine, make_sdist, only_index
from killing import drawn, fork
from publishing import publish

from archpatch.errors import WheelhouseDamaged
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.verify import verify

pytestmark = pytest.mark.integration

PROCESSES = 16
#: Eight wheels, and one more request that leads to the wheel of another.
REQUESTS = ("7.5", "8.0", "9.0", "12.0", "7.5;8.0", "8.0;9.0", "9.0;12.0", "9.0+PTX", "h200")
WHEELS = 8

#: One process of the crowd: the command line, once per request, in the order given.
ASKS = """
import sys
from archpatch.cli.main import run
for request in sys.argv[1:]:
    option = "--arch" if request[0].isdigit() else "--gpu"
    status = run(["build", "archpatch_mini==0.1.0", option, request, "--json"])
    if status:
        sys.exit(status)
"""


@dataclass
class Reader:
    """Looks at a wheelhouse over and over, and keeps what was wrong."""

    look: Callable[[], list[str]]
    rounds: int = 0
    wrong: list[str] = field(default_factory=list)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Look for as long as this lasts, in a thread, and once more."""
        over = threading.Event()
        thread = threading.Thread(target=self._read, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _read(self, over: threading.Event) -> None:
        last = False
        while not last:
            last = over.is_set()
            try:
                self.wrong += self.look()
            except Exception:  # noqa: BLE001 - whatever a reader can be shown
                self.wrong.append(traceback.format_exc())
            self.rounds += 1
            time.sleep(0.02)


def objects(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects that were printed one after another."""
    decoder, found = json.JSONDecoder(), []
    while text.strip():
        one, end = decoder.raw_decode(text.lstrip())
        found.append(one)
        text = text.lstrip()[end:]
    return found


def faults(house: Wheelhouse) -> list[str]:
    """Return what verify finds, and what a listing shows that its record does not fit."""
    unfit = [str(entry.wheel) for entry in house.entries() if entry.wheel.name != entry.record.wheel]
    return [*map(str, verify(house)), *unfit]


@pytest.mark.thorough
def test_a_crowd_builds_each_wheel_once(archpatch: CommandLine) -> None:
    make_sdist(FIXTURES / "mini", archpatch.folder / "index")
    cache = archpatch.folder / "cache"
    environ = archpatch.environment({**only_index(archpatch.folder / "index"), "ARCHPATCH_CACHE": str(cache)})
    house, random = Wheelhouse(archpatch.wheelhouse), drawn("crowd")
    house.write_index()
    reader = Reader(partial(faults, house))
    with reader.reading():
        crowd = [
            subprocess.Popen(
                [sys.executable, "-c", ASKS, *random.sample(REQUESTS, len(REQUESTS))],
                cwd=archpatch.folder,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(PROCESSES)
        ]
        told = [process.communicate(timeout=900) for process in crowd]
    assert [stderr for process, (_, stderr) in zip(crowd, told, strict=True) if process.returncode] == []
    assert "Traceback" not in "".join(stderr for _, stderr in told)
    answers = [answer["wheels"][0] for stdout, _ in told for answer in objects(stdout)]
    assert len(answers) == PROCESSES * len(REQUESTS)
    assert collections.Counter(answer["hit"] for answer in answers) == {False: WHEELS, True: len(answers) - WHEELS}
    assert len({(answer["wheel"], answer["sha256"]) for answer in answers}) == WHEELS
    assert len(list(house.entries())) == WHEELS
    # One log for each time that setup.py was run: once per request, whoever asked first.
    assert len(list((cache / "logs").iterdir())) == len(REQUESTS)
    assert sum("creating build" in log.read_text() for log in (cache / "logs").iterdir()) == WHEELS
    assert (reader.wrong, archpatch.left_behind()) == ([], [])
    assert reader.rounds > PROCESSES


def test_readers_see_no_fault_while_wheels_are_replaced_and_removed(built: tuple[Entry, ...], in_memory: Path) -> None:
    house = Wheelhouse(in_memory / "house")
    records = {each.record.fingerprint: each.record for each in built}
    publish(house, *built)
    house.write_index()

    def look() -> list[str]:
        seen = [entry.record for entry in (*house.entries(), *house.entries_for("h200"))]
        strange = [record.wheel for record in seen if record != records.get(record.fingerprint)]
        hits = {name: (house.find(name), house.recall(name, {})) for name in records}
        wrong = [name for name, found in hits.items() for hit in found if hit and hit.record != records[name]]
        return [*strange, *wrong, *map(str, verify(house))]

    def replace_for_ever() -> None:
        while True:
            # One may be removed before it is linked.
            with suppress(WheelhouseDamaged):
                publish(house, *built)
            for entry in house.entries():
                if entry.record == built[-1].record:
                    house.remove(entry)

    reader = Reader(look)
    publishers = [fork(replace_for_ever) for _ in range(4)]
    try:
        with reader.reading():
            time.sleep(10)
            statuses = [os.waitpid(child, os.WNOHANG) for child in publishers]
    finally:
        for child in publishers:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert statuses == [(0, 0)] * len(publishers)
    assert reader.wrong == [], reader.wrong[:3]
    assert reader.rounds > 10
