"""Which file compiles next, and with how many threads."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

import pytest

from archpatch.builder.schedule.rota import Cost, File, Machine, Rota, Turn

GIB = 1 << 30
#: CPU seconds like those of mamba_ssm's files: three long ones among ten.
MAMBA = (150, 140, 130, 70, 65, 60, 50, 40, 20, 19)


def files(*seconds: float, memory: int = GIB, archs: int = 1, extension: int = 0) -> list[File]:
    costs = (Cost(seconds=each, memory=memory) for each in seconds)
    return [File(extension=extension, path=f"{number}.cu", cost=cost, archs=archs) for number, cost in enumerate(costs)]


def rota(cores: int = 16, memory: int = 64 * GIB, jobs: int | None = None) -> Rota:
    return Rota(Machine(cores=cores, memory=memory, jobs=jobs or cores))


def started(rota: Rota, asking: Sequence[File]) -> dict[str, Turn]:
    """Return the turns of all files that start at once."""
    rota.announce(asking)
    for file in asking:
        rota.ask(file)
    turns: dict[str, Turn] = {}
    waiting = list(asking)
    while True:
        found = next(((file, turn) for file in waiting if (turn := rota.start(file)) is not None), None)
        if found is None:
            return turns
        waiting.remove(found[0])
        turns[found[0].path] = found[1]


def test_the_longest_comes_first_whoever_asked_first() -> None:
    one = rota(cores=1)
    short, long = files(1, 100)
    one.ask(short)
    one.ask(long)
    assert one.start(short) is None
    assert one.start(long) is not None
    assert one.start(short) is None
    one.leave(long)
    assert one.start(short) is not None


def test_files_of_unknown_cost_share_the_cores_twice_over() -> None:
    turns = started(rota(cores=16), [File(extension=0, path=f"{number}") for number in range(10)])
    assert {(turn.threads, turn.nice) for turn in turns.values()} == {(4, 0)}


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (16, 16)])
def test_a_file_by_itself_gets_all_cores(cores: int, threads: int) -> None:
    (turn,) = started(rota(cores=cores), files(300)).values()
    assert turn.threads == threads


def test_a_long_file_gets_more_threads_than_a_short_one() -> None:
    turns = started(rota(cores=16), files(*MAMBA))
    assert len(turns) == len(MAMBA)
    assert [turn.threads for turn in turns.values()] == sorted((turn.threads for turn in turns.values()), reverse=True)
    assert turns["0.cu"].threads == 7
    assert turns["9.cu"].threads == 2
    # The three that decide when the build ends yield to nobody, all others yield to them.
    assert [turn.nice for turn in turns.values()] == [0] * 3 + [10] * 7


def test_what_is_announced_counts_before_it_asks() -> None:
    all_files = files(10, 10, 10, 10)
    desk = rota(cores=4)
    desk.announce(all_files)
    assert not desk.all_asked(0)
    assert desk.all_asked(1)
    desk.ask(all_files[0])
    turn = desk.start(all_files[0])
    assert turn is not None
    assert turn.threads == 2
    desk.withdraw(0)
    assert desk.all_asked(0)


def test_no_more_run_than_there_are_jobs() -> None:
    assert len(started(rota(cores=16, jobs=3), files(*MAMBA))) == 3


def test_a_file_that_lacks_memory_waits_and_nothing_overtakes_it() -> None:
    desk = rota(cores=16, memory=10 * GIB)
    (big,), (large,), (small,) = (
        files(seconds, memory=memory * GIB, extension=extension)
        for extension, (seconds, memory) in enumerate([(100, 6), (90, 6), (1, 1)])
    )
    for file in (big, large, small):
        desk.ask(file)
    assert desk.start(big) is not None
    assert desk.start(large) is None
    assert desk.start(small) is None
    desk.leave(big)
    assert desk.start(large) is not None
    assert desk.start(small) is not None


def test_something_runs_however_little_memory_there_is() -> None:
    turns = started(rota(memory=GIB), files(100, 100, memory=5 * GIB, archs=3))
    assert list(turns.values()) == [Turn(threads=1, memory=5 * GIB)]


def test_each_arch_that_compiles_side_by_side_takes_memory() -> None:
    (turn,) = started(rota(cores=16, memory=64 * GIB), files(100, memory=5 * GIB, archs=3)).values()
    assert turn == Turn(threads=16, memory=15 * GIB)
    (turn,) = started(rota(cores=16, memory=11 * GIB), files(100, memory=5 * GIB, archs=3)).values()
    assert turn == Turn(threads=2, memory=10 * GIB)


def test_whoever_wants_the_machine_alone_waits_for_all_and_all_for_him() -> None:
    desk = rota()
    (running,) = files(1)
    alone = File(extension=1, path="", alone=True)
    (late,) = files(1, extension=2)
    desk.ask(running)
    assert desk.start(running) is not None
    desk.ask(alone)
    assert desk.start(alone) is None
    desk.leave(running)
    assert desk.start(alone) is not None
    desk.ask(late)
    assert desk.start(late) is None
    desk.leave(alone)
    assert desk.start(late) is not None


def test_a_file_that_nobody_waits_for_any_more_holds_nothing_up() -> None:
    desk = rota(cores=1)
    first, second = files(2, 1)
    desk.ask(first)
    desk.ask(second)
    desk.leave(first)
    assert desk.start(second) is not None


@pytest.mark.parametrize("seed", range(200))
def test_everything_runs_once_and_within_the_limits(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
    machine = Machine(cores=chance.randint(1, 32), memory=chance.randint(1, 64) * GIB, jobs=chance.randint(1, 32))
    desk, running, done = Rota(machine), list[tuple[float, int, File, Turn]](), list[File]()
    waiting = [
        File(
            extension=extension,
            path=f"{number}",
            cost=Cost(seconds=chance.choice([0, 1, 10, 300]), memory=chance.randint(0, 12) * GIB),
            archs=chance.choice([1, 1, 3]),
            alone=chance.random() < 0.05,
        )
        for extension in range(3)
        for number in range(chance.randint(1, 20))
    ]
    total = len(waiting)
    desk.announce(waiting)
    for file in waiting:
        desk.ask(file)
    now = 0.0
    while waiting or running:
        found = next(((file, turn) for file in waiting if (turn := desk.start(file)) is not None), None)
        if found is not None:
            file, turn = found
            waiting.remove(file)
            heapq.heappush(running, (now + file.cost.seconds / turn.threads, len(done) + len(running), file, turn))
            assert 1 <= turn.threads <= machine.cores
            assert len(running) <= machine.jobs
            assert len(running) == 1 or sum(each[3].memory for each in running) <= machine.memory
            assert len(running) == 1 or not any(each[2].alone for each in running)
            continue
        now, _, file, _ = heapq.heappop(running)
        desk.leave(file)
        done.append(file)
    assert len(done) == total
