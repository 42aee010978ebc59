"""What verify finds besides damaged wheels, which take real ones (`tests/integration/test_damage.py`)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from archpatch.errors import UsageError
from archpatch.storage.sealed import seal
from archpatch.wheelhouse.house import Wheelhouse
from archpatch.wheelhouse.verify import Fault, verify


@pytest.fixture
def memo(tmp_path: Path) -> Path:
    """A torn memo in a wheelhouse without wheels."""
    path = tmp_path / "wheelhouse" / ".archpatch" / "memo" / "key.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    return path


@pytest.fixture
def house(memo: Path) -> Wheelhouse:
    return Wheelhouse(memo.parents[2])


def test_a_torn_memo_is_a_fault(house: Wheelhouse, memo: Path) -> None:
    (fault,) = verify(house)
    assert fault.path == memo
    assert "cannot be read" in fault.problem


def test_a_wheelhouse_without_faults_is_not_locked(house: Wheelhouse, memo: Path) -> None:
    memo.unlink()
    assert verify(house) == ()
    assert [path.name for path in memo.parents[1].iterdir()] == ["memo"]


@pytest.mark.parametrize("leads_to", ["nowhere.whl", "itself.whl", ".."])
def test_a_link_that_leads_to_no_wheel_is_a_fault(house: Wheelhouse, memo: Path, leads_to: str) -> None:
    memo.unlink()
    link = house.root / "gpu" / "h200" / "torch2.14.1-cu130" / "itself.whl"
    link.parent.mkdir(parents=True)
    link.symlink_to(leads_to)
    assert verify(house) == (Fault(link, f"{link} leads nowhere"),)


def test_a_line_of_an_index_that_leads_nowhere_is_a_fault(house: Wheelhouse, memo: Path) -> None:
    memo.unlink()
    index = house.root / "gpu" / "h200" / "torch2.14.1-cu130" / "index.html"
    index.parent.mkdir(parents=True)
    index.write_bytes(b'\xff<a href="../x.whl">x</a>')
    (fault,) = verify(house)
    assert fault.problem.endswith("leads nowhere")


@pytest.mark.parametrize("replaced", [True, False])
def test_what_was_replaced_meanwhile_is_no_fault(
    house: Wheelhouse, memo: Path, monkeypatch: pytest.MonkeyPatch, *, replaced: bool
) -> None:
    """The first look was in the middle of a change, which is over once the lock is had."""

    @contextlib.contextmanager
    def changed_first(_: Wheelhouse) -> Iterator[None]:
        if replaced:
            memo.write_text(json.dumps(seal({"key": "key"})))
        else:
            memo.unlink()
        yield

    monkeypatch.setattr(Wheelhouse, "unchanging", changed_first)
    assert verify(house) == ()


def test_what_cannot_be_locked_is_verified_all_the_same(
    house: Wheelhouse, memo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def refuse(_: Wheelhouse, name: str) -> Iterator[None]:
        raise UsageError(f"{name} may not be written: Read-only file system")
        yield

    monkeypatch.setattr(Wheelhouse, "lock", refuse)
    assert [fault.path for fault in verify(house)] == [memo]
