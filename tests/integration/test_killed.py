"""Processes that are killed at random moments: what a reader sees then, and that a rerun ends with the right wheel.

`ARCHPATCH_TEST_KILLS` sets how many kills each phase gets (50), `ARCHPATCH_TEST_SEED` the moments; both are printed.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from commandline import FIXTURES, CommandLine, make_sdist, only_index
from killing import KILLS, Victim, drawn, killed_after, killed_before_step
from publishing import assert_intact, files, locks, publish

from archpatch.builder.working_folder import working_folder
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.record import Record
from archpatch.wheelhouse.verify import verify

pytestmark = pytest.mark.integration

MINI = FIXTURES / "mini"

# --- commands ------------------------------------------------------------------------------------

BUILD = ("build", "archpatch_mini==0.1.0", "--gpu", "h200")
PHASES = {"compile": Victim(BUILD, begins="compiling archpatch_mini for", ends="reading back the device code")}

#: Kills until a rerun may get to its end. Those before it are reruns too, over all that the killed ones left; most of
#: the time goes into importing torch, so this saves minutes.
KILLS_PER_RERUN = 5
#: Series side by side, since that import uses one core.
SERIES = 2


@dataclass(frozen=True)
class Series:
    """Kills of one command, one after another, in one folder; `record` and `files` are what it has to come to."""

    victim: Victim
    archpatch: CommandLine
    seconds: float
    record: Record
    files: list[str]

    @property
    def house(self) -> Wheelhouse:
        return Wheelhouse(self.archpatch.wheelhouse)

    def run(self, kills: int, name: str) -> None:
        """Kill so often, look each time, and let a rerun end now and then."""
        random = drawn(name)
        for number in range(1, kills + 1):
            self.kill(after=[random.uniform(0, self.seconds) for _ in range(20)])
            self.look()
            if number % KILLS_PER_RERUN == 0 or number == kills:
                self.rerun()

    def kill(self, *, after: list[float]) -> None:
        """Kill it in its phase; where it was past that already, try the next moment in an empty wheelhouse."""
        if not any(
            self.victim.kill(self.archpatch, after=partial(time.sleep, seconds)) or self.empty() for seconds in after
        ):
            pytest.fail(f"it was past its phase {len(after)} times, which takes {self.seconds} s")

    def empty(self) -> None:
        """Take out what was built. What killed processes left elsewhere stays."""
        shutil.rmtree(self.house.root, ignore_errors=True)

    def look(self) -> None:
        """Assert that what a reader sees, if anything, is what the command has to come to."""
        assert list(verify(self.house)) == []
        for entry in self.house.entries():
            entry.check()
            assert entry.record.fingerprint == self.record.fingerprint

    def rerun(self) -> None:
        """Assert that the same command ends with the right wheel, and that nothing else is left anywhere."""
        answer = self.archpatch(*self.victim.arguments, "--json", environ=self.victim.environ)
        assert answer.json["wheels"][0]["hit"] is False
        (entry,) = self.house.entries()
        entry.check()
        wanted = (self.record.fingerprint, self.record.device_code)
        assert (entry.record.fingerprint, entry.record.device_code) == wanted
        assert [each.wheel for each in self.house.entries_for("h200")] == [entry.wheel]
        assert list(verify(self.house)) == []
        assert files(self.house) == self.files
        # For all that write, for this request, for this wheel.
        assert len(locks(self.house)) == 3
        assert self.archpatch.left_behind() == self.archpatch.compilers() == []
        again = self.archpatch(*self.victim.arguments, "--json", environ=self.victim.environ)
        assert again.json["wheels"][0]["hit"] is True
        self.empty()


@pytest.mark.thorough
@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_command_shows_nothing_wrong_and_a_rerun_ends_well(phase: str, tmp_path: Path) -> None:
    make_sdist(MINI, tmp_path / "index")
    environ = {**only_index(tmp_path / "index"), "ARCHPATCH_CACHE": str(tmp_path / "cache")}
    victim = replace(PHASES[phase], environ=environ)
    places = [CommandLine(tmp_path / str(number)) for number in range(SERIES)]
    for place in places:
        place.folder.mkdir()
    with ThreadPoolExecutor(SERIES) as pool:
        seconds = max(pool.map(victim.seconds, places))
        (entry,) = Wheelhouse(places[0].wheelhouse).entries()
        found = files(Wheelhouse(places[0].wheelhouse))
        print(f"{phase} takes {seconds:.1f} s")  # noqa: T201 - shown with the seed when this fails
        all_series = [Series(victim, place, seconds, entry.record, found) for place in places]
        for series in all_series:
            series.empty()
        runs = [pool.submit(each.run, -(-KILLS // SERIES), f"{phase} {n}") for n, each in enumerate(all_series)]
        for run in runs:
            run.result()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_compilers_that_outlive_a_killed_build_end_with_the_next_run(archpatch: CommandLine) -> None:
    compiler = archpatch.folder / "nvcc"
    compiler.write_text("#!/bin/sh\nsleep 300\n")
    compiler.chmod(0o755)
    victim = Victim(("build", str(MINI), "--arch", "9.0"), "compiling archpatch_mini for", "reading back")
    victim = replace(victim, environ={"PYTORCH_NVCC": str(compiler)})
    assert victim.kill(archpatch, after=lambda: wait_for(lambda: archpatch.compilers() != []))
    assert archpatch.compilers() != []
    with working_folder(archpatch.folder / "tmp"):
        pass
    wait_for(lambda: archpatch.compilers() == [])
    with working_folder(archpatch.folder / "tmp") as folder:
        assert [name for name in archpatch.left_behind() if name.startswith("archpatch")] == [folder.name]


# --- publishing ----------------------------------------------------------------------------------


def assert_published(house: Wheelhouse, wanted: dict[str, Record], left: list[str]) -> None:
    """Assert that exactly the wheels of `wanted`, by file name, are there, and no file but those in `left`."""
    assert list(verify(house)) == []
    assert {entry.wheel.name: entry.record for entry in house.entries()} == wanted
    assert all(house.recall(record.fingerprint, {}) for record in wanted.values())
    assert files(house) == left
    assert locks(house) == ["publish.lock"]


def last_of_each_name(built: tuple[Entry, ...]) -> dict[str, Record]:
    return {each.wheel.name: each.record for each in built}


def test_a_killed_publisher_shows_nothing_wrong_and_a_rerun_ends_well(built: tuple[Entry, ...], tmp_path: Path) -> None:
    house = Wheelhouse(tmp_path / "house")
    publish(house, *built)
    started = time.monotonic()
    publish(house, *built)
    seconds = time.monotonic() - started
    left, random, kills = files(house), drawn("publish"), 0
    for _ in range(100 * KILLS):
        order = tuple(random.sample(built, len(built)))
        if killed_after(partial(publish, house, *order), random.uniform(0, seconds)):
            kills += 1
            assert_intact(house, *built)
            publish(house, *order)
            assert_published(house, last_of_each_name(order), left)
        if kills == KILLS:
            break
    assert kills == KILLS


@pytest.mark.parametrize("there", ["nothing", "another wheel of the name", "the wheel"])
def test_a_publisher_that_is_killed_before_any_of_its_steps(
    built: tuple[Entry, ...], tmp_path: Path, there: str
) -> None:
    first, other, _ = built
    before, house, reference = (Wheelhouse(tmp_path / name) for name in ("before", "house", "reference"))
    before.root.mkdir()
    publish(before, *{"nothing": [], "another wheel of the name": [other], "the wheel": [first]}[there])
    shutil.copytree(before.root, reference.root, symlinks=True)
    publish(reference, first)
    for number in itertools.count(1):
        shutil.rmtree(house.root, ignore_errors=True)
        shutil.copytree(before.root, house.root, symlinks=True)
        if not killed_before_step(partial(publish, house, first), number):
            break
        assert_intact(house, first, other)
        publish(house, first)
        assert_published(house, {first.wheel.name: first.record}, files(reference))
    print(f"{number - 1} steps")  # noqa: T201 - shown when this fails
    assert number > 25
