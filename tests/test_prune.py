from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from records import STACK, make

from archpatch.jobs import Terms
from archpatch.pipeline import prune
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.plan import Cell, Result, State
from archpatch.wheelhouse.prune import Keep, PruneRules, surplus

NOW = datetime(2026, 11, 30, tzinfo=timezone.utc)
NOTHING = Keep(wheels=frozenset(), packages=frozenset())


def entry(version: str, *, days: float = 0, codes: str = "sm_90", size: int = 10, python: str = "cp311") -> Entry:
    _, record = make(None, codes=codes, version=version, python=python, created=NOW - timedelta(days=days), size=size)
    return Entry(wheel=Path("house", codes, record.wheel), record=record)


def gone(entries: list[Entry], rules: PruneRules, keep: Keep = NOTHING) -> list[str]:
    return [item.entry.record.version for item in surplus(entries, rules, keep, now=NOW)]


def test_without_rules_nothing_goes() -> None:
    assert gone([entry("1.0", days=9999, size=10**12), entry("2.0")], PruneRules()) == []


def test_a_wheel_is_superseded_by_a_newer_version_of_the_same_kind_alone() -> None:
    rules = PruneRules(superseded=True)
    assert gone([entry("1.9"), entry("1.10"), entry("1.2")], rules) == ["1.2", "1.9"]
    assert gone([entry("1.0"), entry("2.0", codes="sm_80")], rules) == []
    assert gone([entry("1.0"), entry("2.0", python="cp312")], rules) == []


def test_age_counts_from_when_it_was_built_and_a_clock_that_was_set_back_makes_nothing_old() -> None:
    rules = PruneRules(max_age=timedelta(days=30))
    assert gone([entry("1.0", days=31), entry("2.0", days=29), entry("3.0", days=-400)], rules) == ["1.0"]


def test_over_the_size_the_oldest_go_until_it_is_met() -> None:
    wheels = [entry("3.0", days=1), entry("1.0", days=3), entry("2.0", days=2)]
    assert gone(wheels, PruneRules(max_size=30)) == []
    assert gone(wheels, PruneRules(max_size=29)) == ["1.0"]
    assert gone(wheels, PruneRules(max_size=10)) == ["1.0", "2.0"]


def test_what_is_kept_stays_whatever_the_rules_say() -> None:
    old, newer = entry("1.0", days=400), entry("2.0", days=300)
    rules = PruneRules(superseded=True, max_age=timedelta(days=1), max_size=1)
    assert gone([old, newer], rules, Keep(wheels=frozenset({old.wheel}), packages=frozenset())) == ["2.0"]
    assert gone([old, newer], rules, Keep(wheels=frozenset(), packages=frozenset({"mini"}))) == []


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    house = Wheelhouse(tmp_path / "house")
    for version in ("1.0", "2.0"):
        filed = house.publish(*make(tmp_path / "made", version=version), STACK)
        house.offer(filed, "h200", STACK)
    return house


def settled(house: Wheelhouse, version: str) -> Result:
    (found,) = (entry for entry in house.entries() if entry.record.version == version)
    return Result(cell=Cell(package="mini", requirement="mini", gpu="h200"), state=State.HIT, reason="", entry=found)


def test_pruning_takes_wheel_record_and_links(house: Wheelhouse) -> None:
    rules, terms = PruneRules(superseded=True), Terms(wheelhouse=house.root)
    would = prune(rules, [settled(house, "2.0")], terms, dry_run=True)
    assert len(list(house.wheels())) == 2
    assert prune(rules, [settled(house, "2.0")], terms) == would
    (left,) = house.entries()
    assert left.record.version == "2.0"
    assert [link.resolve() for link in house.links("h200")] == [left.wheel]
    assert list(left.wheel.parent.glob("*.json")) == [left.wheel.with_name(f"{left.wheel.name}.json")]


def test_the_plan_keeps_an_old_version_and_an_open_cell_keeps_its_package(house: Wheelhouse) -> None:
    rules, terms = PruneRules(superseded=True), Terms(wheelhouse=house.root)
    assert prune(rules, [settled(house, "1.0")], terms) == ()
    failed = Result(cell=Cell(package="Mini", requirement="Mini", gpu="l4"), state=State.FAILED, reason="no network")
    assert prune(rules, [settled(house, "2.0"), failed], terms) == ()
    assert len(list(house.wheels())) == 2


def test_without_links_the_index_of_a_gpu_type_loses_its_line(
    house: Wheelhouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    filed = house.publish(*make(tmp_path / "made", version="3.0"), STACK)
    index = house.offer(filed, "l4", STACK)
    house.remove(filed)
    assert "<a href=" not in index.read_text()
