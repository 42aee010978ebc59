"""Processes that are killed at random moments: what a reader sees then, and that a rerun ends with the right wheel.

`ARCHPATCH_TEST_KILLS` sets how many kills each phase gets (50), `ARCHPATCH_TEST_SEED` the moments; both are printed.
`ARCHPATCH_TEST_KILLS_PER_RERUN` is 10 for commands that compile; with 1 each kill is followed by a rerun to the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from commandline import FIXTURES, CommandLine, make_sdist, only_index
from killing import KILLS, KILLS_PER_RERUN, Victim, drawn, killed_after, killed_before_step
from publishing import assert_intact, files, locks, offered, publish

from archpatch.builder.working_folder import working_folder
from archpatch.storage.atomic import sha256_of
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.record import Record
from archpatch.wheelhouse.verify import verify

pytestmark = pytest.mark.integration

MINI = FIXTURES / "mini"

# --- commands ------------------------------------------------------------------------------------

REQUIREMENT = "archpatch_mini==0.1.0"
PHASES = {
    "compile": Victim(("build", REQUIREMENT, "--gpu", "h200"), "compiling archpatch_mini for", "reading back"),
    "refresh": Victim(("refresh",), f"{REQUIREMENT}@h200: ", "1 built"),
}
#: The second GPU type takes the wheel of the first.
PLAN = f"""
[tool.archpatch.plan]
packages = ["{REQUIREMENT}"]
gpu = ["h200", "h100"]
prune = {{ superseded = true }}
"""

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
            # Where the wheel was filed for both right before the kill, the next run would have nothing to do.
            is_done = all(list(self.house.entries_for(gpu)) for gpu in ("h100", "h200"))
            if is_done or number % KILLS_PER_RERUN == 0 or number == kills:
                self.rerun()
                empty(self.archpatch)

    def kill(self, *, after: list[float]) -> None:
        """Kill it in its phase; where it was past that already, try the next moment in an empty wheelhouse."""
        for seconds in after:
            if self.victim.kill(self.archpatch, after=partial(time.sleep, seconds)):
                return
            empty(self.archpatch)
        pytest.fail(f"it was past its phase {len(after)} times, which takes {self.seconds} s")

    def look(self) -> None:
        """Assert that what a reader sees, if anything, is what the command has to come to."""
        for entry in self.house.entries():
            entry.check()
            assert entry.record.fingerprint == self.record.fingerprint
        assert all(sha256_of(wheel) == sha256 for wheel, sha256 in offered(self.house))
        # A page of the index may not name the wheel yet.
        assert all(fault.path.is_relative_to(self.house.root / "index") for fault in verify(self.house))

    def rerun(self) -> None:
        """Assert that the same command ends with the right wheel, and that nothing else is left anywhere."""
        self.end()
        (entry,) = self.house.entries()
        entry.check()
        wanted = (self.record.fingerprint, self.record.device_code)
        assert (entry.record.fingerprint, entry.record.device_code) == wanted
        assert [each.record for each in self.house.entries_for("h200")] == [entry.record]
        assert list(verify(self.house)) == []
        assert files(self.house) == self.files
        # For all that write, for this request, for this wheel, and for another request.
        assert len(locks(self.house)) <= 4
        assert self.archpatch.left_behind() == self.archpatch.compilers() == []
        self.end()
        assert [each.record for each in self.house.entries()] == [entry.record]

    def end(self) -> None:
        answer = self.archpatch(*self.victim.arguments, environ=self.victim.environ)
        assert answer.status == 0, answer.stderr


def empty(archpatch: CommandLine) -> None:
    """Take out all that was built, and leave an index. What killed processes left elsewhere stays."""
    shutil.rmtree(archpatch.wheelhouse, ignore_errors=True)
    Wheelhouse(archpatch.wheelhouse).write_index()


@pytest.mark.thorough
@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_command_shows_nothing_wrong_and_a_rerun_ends_well(phase: str, tmp_path: Path) -> None:
    make_sdist(MINI, tmp_path / "index")
    environ = {**only_index(tmp_path / "index"), "ARCHPATCH_CACHE": str(tmp_path / "cache")}
    victim = replace(PHASES[phase], environ=environ)
    places = [CommandLine(tmp_path / str(number)) for number in range(SERIES)]
    for place in places:
        place.folder.mkdir()
        (place.folder / "pyproject.toml").write_text(PLAN)
        empty(place)
    with ThreadPoolExecutor(SERIES) as pool:
        seconds = max(pool.map(victim.seconds, places))
        house = Wheelhouse(places[0].wheelhouse)
        (entry,) = house.entries()
        found = files(house)
        print(f"{phase} takes {seconds:.1f} s")  # noqa: T201 - shown with the seed when this fails
        for place in places:
            empty(place)
        all_series = [Series(victim, place, seconds, entry.record, found) for place in places]
        runs = [pool.submit(each.run, -(-KILLS // SERIES), f"{phase} {n}") for n, each in enumerate(all_series)]
        for run in runs:
            run.result()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounts are not allowed here")
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


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


def test_what_works_in_a_folder_of_that_name_in_a_container_is_left_alone(tmp_path: Path, scratch: Path) -> None:
    (scratch / "archpatch-work-0").mkdir()
    script = f"mount -t tmpfs none {scratch} && mkdir -p $TMPDIR && touch {tmp_path}/there && exec sleep 60"
    inside = {**os.environ, "TMPDIR": str(scratch / "archpatch-work-0" / "tmp")}
    contained = subprocess.Popen(["unshare", "-rm", "sh", "-c", script], env=inside)
    try:
        wait_for((tmp_path / "there").exists)
        with working_folder(scratch):
            assert list(scratch.iterdir()) != []
        assert contained.poll() is None
    finally:
        contained.kill()
        contained.wait()


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
    house.write_index()
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


@pytest.mark.parametrize("there", ["nothing", "another wheel of the name"])
def test_a_publisher_that_is_killed_before_any_of_its_steps(
    built: tuple[Entry, ...], in_memory: Path, there: str
) -> None:
    first, other, _ = built
    before, house, reference = (Wheelhouse(in_memory / name) for name in ("before", "house", "reference"))
    before.root.mkdir()
    publish(before, *([] if there == "nothing" else [other]))
    before.write_index()
    shutil.copytree(before.root, reference.root, symlinks=True)
    publish(reference, first)
    steps = 0
    while killed_at_step(steps + 1, before, house, lambda: publish(house, first)):
        steps += 1
        assert_intact(house, first, other)
        publish(house, first)
        assert_published(house, {first.wheel.name: first.record}, files(reference))
    assert steps > 20


def killed_at_step(number: int, before: Wheelhouse, house: Wheelhouse, run: Callable[[], object]) -> bool:
    """Make `house` a copy of `before`, run this in it, killed before that step; return whether it had so many."""
    shutil.rmtree(house.root, ignore_errors=True)
    shutil.copytree(before.root, house.root, symlinks=True)
    return killed_before_step(run, number)


def test_a_remover_that_is_killed_before_any_of_its_steps(built: tuple[Entry, ...], in_memory: Path) -> None:
    first, _, third = built
    before, house = (Wheelhouse(in_memory / name) for name in ("before", "house"))
    publish(before, first, third)
    before.write_index()

    def remove() -> None:
        for entry in house.entries():
            if entry.record == first.record:
                house.remove(entry)

    steps = 0
    while killed_at_step(steps + 1, before, house, remove):
        steps += 1
        assert_intact(house, first, third)
        remove()
        # Where nothing was left to remove, the next who writes, whatever it is, ends what was begun.
        publish(house, third)
        assert_published(house, {third.wheel.name: third.record}, files(house))
        assert not list(house.root.rglob(first.wheel.name + "*"))
    assert steps > 10
