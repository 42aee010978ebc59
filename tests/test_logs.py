"""Logs of builds: where they lie, and which old ones go."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from archpatch.builder.logs import FRESH, KEPT, new_log


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ARCHPATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def logs_of_age(cache: Path, seconds: float, *, count: int) -> list[Path]:
    """Make logs, the first the oldest, the last `seconds` old."""
    folder = cache / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / f"old-{seconds}-{number}.log" for number in range(count)]
    for number, log in enumerate(reversed(made)):
        log.touch()
        when = time.time() - seconds - number
        os.utime(log, (when, when))
    return made


def test_each_build_gets_a_log_of_its_own(cache: Path) -> None:
    one, other = new_log("mamba_ssm"), new_log("mamba_ssm")
    assert one != other
    assert one.parent == cache / "logs"
    assert re.fullmatch(r"mamba-ssm-\d{8}T\d{6}-\w+\.log", one.name)
    assert one.read_bytes() == b""


def test_the_oldest_go_and_the_newest_stay(cache: Path) -> None:
    old = logs_of_age(cache, 2 * FRESH, count=KEPT + 3)
    fresh = new_log("mini")
    assert set(fresh.parent.iterdir()) == {fresh, *old[3:]}


def test_none_of_the_last_day_goes(cache: Path) -> None:
    old = logs_of_age(cache, FRESH / 2, count=KEPT + 3)
    fresh = new_log("mini")
    assert set(fresh.parent.iterdir()) == {fresh, *old}


def test_a_few_old_ones_stay(cache: Path) -> None:
    old = logs_of_age(cache, 400 * FRESH, count=3)
    fresh = new_log("mini")
    assert set(fresh.parent.iterdir()) == {fresh, *old}


def test_logs_from_the_future_are_no_error(cache: Path) -> None:
    logs_of_age(cache, -10 * FRESH, count=KEPT)
    old = logs_of_age(cache, 2 * FRESH, count=2)
    new_log("mini")
    assert not any(log.exists() for log in old)
