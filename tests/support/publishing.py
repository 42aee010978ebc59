"""Real wheels that are filed without being compiled each time, and what holds of a wheelhouse whatever happens."""

from __future__ import annotations

from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.layout import Stack
from archpatch.wheelhouse.verify import verify

GPUS = {("sm_90",): "h200", ("sm_80", "compute_80"): "a100"}


def stack_of(entry: Entry) -> Stack:
    """Return the torch and CUDA that a wheel was built for."""
    return Stack(torch=entry.record.inputs["torch"], cuda=entry.record.inputs["cuda"])


def publish(house: Wheelhouse, *built: Entry) -> None:
    """Do with wheels what a build does in the end; the key in the memo is the fingerprint."""
    for each in built:
        entry = house.publish(each.wheel, each.record, stack_of(each))
        house.remember(each.record.fingerprint, entry, {})
        house.offer(entry, GPUS[entry.record.device_code], stack_of(each))


def files(house: Wheelhouse) -> list[str]:
    """Return all that lies in a wheelhouse, links too; locks, of which the last build's own stay, are left out."""
    named = (path.relative_to(house.root) for path in house.root.rglob("*") if not path.is_dir())
    return sorted(path.as_posix() for path in named if path.parent.name != "locks")


def locks(house: Wheelhouse) -> list[str]:
    """Return the files of locks."""
    return sorted(path.name for path in (house.root / ".archpatch" / "locks").iterdir())


def assert_intact(house: Wheelhouse, *built: Entry) -> None:
    """Assert that a reader sees intact wheels with their own records alone, and that every hit is the right one."""
    records = [each.record for each in built]
    for entry in (*house.entries(), *(entry for gpu in house.gpus() for entry in house.entries_for(gpu))):
        entry.check()
        assert entry.record in records
    for record in records:
        for found in (house.find(record.fingerprint), house.recall(record.fingerprint, {})):
            assert found is None or found.record == record
    for fault in verify(house):
        # A wheel that was about to be replaced is gone; its rerun brings what its links lead to.
        assert fault.path.is_symlink(), fault
        assert not fault.path.exists(), fault
