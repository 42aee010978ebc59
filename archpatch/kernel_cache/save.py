"""Write a lane's kernels into an archive: only what is whole, only if there is something new, within a budget."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from archpatch.kernel_cache.archive import PER_FILE, Content, write_archive
from archpatch.kernel_cache.contents import Contents
from archpatch.kernel_cache.lane import Lane
from archpatch.kernel_cache.ninja import LOG, current_digest
from archpatch.kernel_cache.place import portable
from archpatch.kernel_cache.snapshot import Known, Snapshot, is_used
from archpatch.kernel_cache.soundness import Checked, check
from archpatch.kernel_cache.store import Store
from archpatch.kernel_cache.tree import Entry, Tree
from archpatch.storage.key import Key

__all__ = ["Plan", "Saved", "plan_save", "save"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a save would write: the entries, their bytes, and what it would leave out, with the reasons.

    `new` counts entries that the archive which was restored does not hold as they are now. `idle` and `builds` are as
    in a manifest.
    """

    entries: tuple[Checked, ...] = ()
    size: int = 0
    new: int = 0
    left_out: tuple[tuple[str, str], ...] = ()
    idle: Mapping[str, int] = field(default_factory=dict)
    builds: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a save did: the archive (None: none was written, and `reason` says why), and what went into it."""

    archive: Path | None
    reason: str
    plan: Plan


def save(store: Store, root: Path, *, lane: Lane, key: Key, limit: int) -> Saved:
    """Write the archive for `key` unless it exists already or nothing is new since the restore.

    One that the restore refused is replaced. `limit` is the most bytes of files that go into it, each with `PER_FILE`
    for what an archive says of it; what was not used for the most saves in a row is left out first.
    """
    root = root.absolute()
    snapshot = Snapshot.read(root, lane)
    is_refused = snapshot is not None and snapshot.refused == str(key)
    is_restored = snapshot is not None and snapshot.exact and snapshot.key == str(key)
    if is_restored or (store.has(key) and not is_refused):
        return Saved(archive=None, reason=f"{key} is there already", plan=Plan())
    plan = plan_save(root, lane, snapshot=snapshot, limit=limit)
    if not plan.new and not (is_refused and plan.entries):
        return Saved(archive=None, reason="nothing is new", plan=plan)
    archive = store.place(key)
    fields = {"key": str(key), "lane": lane, "inputs": key.inputs, "idle": plan.idle, "builds": plan.builds}
    write_archive(archive, _content(plan.entries), fields)
    reason = f"{plan.new} entries are new" if plan.new else "the one that was there was refused"
    return Saved(archive=archive, reason=reason, plan=plan)


def plan_save(root: Path, lane: Lane, *, snapshot: Snapshot | None, limit: int) -> Plan:
    """Look at what a save would write now; nothing is changed, access times neither."""
    tree = Tree.of(root, lane)
    known = {} if snapshot is None else snapshot.entries
    left_out: list[tuple[str, str]] = []
    found: list[tuple[int, Checked]] = []
    builds: dict[str, tuple[str, str]] = {}
    contents = Contents(root=root.resolve())
    for entry in tree.entries():
        checked, built = _with_builds(check(entry), contents)
        left_out += [(f"{entry.compiler.name}/{name}", why) for name, why in checked.faults]
        if checked.sound:
            found.append((_idle(entry, known.get(entry.name)), checked))
            builds |= built
    left_out += [(path, "it is no plain file") for path in tree.skipped]
    kept, over = _within(found, limit)
    return Plan(
        entries=tuple(sorted((checked for _, checked in kept), key=lambda checked: checked.entry.name)),
        size=sum(_size(checked) for _, checked in kept),
        new=sum(_is_new(checked.entry, known.get(checked.entry.name)) for _, checked in kept),
        left_out=tuple(left_out + [(name, "the budget is used up") for name in over]),
        idle={checked.entry.name: idle for idle, checked in kept},
        builds={name: build for name, build in builds.items() if not _is_below(name, over)},
    )


def _is_new(entry: Entry, known: Known | None) -> bool:
    return known is None or not known.archived or known.changed(entry)


def _idle(entry: Entry, known: Known | None) -> int:
    return 0 if known is None or is_used(entry) else known.idle + 1


def _within(found: list[tuple[int, Checked]], limit: int) -> tuple[list[tuple[int, Checked]], list[str]]:
    """Return what fits into `limit` bytes, the most lately used first, and the names of the rest."""
    kept, over, left = [], [], limit
    for idle, checked in sorted(found, key=lambda each: (each[0], each[1].entry.name)):
        cost = _size(checked) + PER_FILE * len(checked.sound)
        if cost <= left:
            kept.append((idle, checked))
            left -= cost
        else:
            over.append(checked.entry.name)
    return kept, over


def _size(checked: Checked) -> int:
    return sum(file.size for file in checked.sound)


def _is_below(name: str, entries: list[str]) -> bool:
    return any(PurePosixPath(name).is_relative_to(entry) for entry in entries)


def _with_builds(checked: Checked, contents: Contents) -> tuple[Checked, dict[str, tuple[str, str]]]:
    """Return the entry without folders of ninja's that cannot be told to be current, and what the others came from."""
    entry, unclear, builds = checked.entry, list[str](), dict[str, tuple[str, str]]()
    for log in (file for file in entry.files if PurePosixPath(file.name).name == LOG):
        below = PurePosixPath(log.name).parent
        digest = current_digest(entry.folder / below, contents)
        if digest is None:
            unclear.append(str(below))
        else:
            builds[f"{entry.compiler.name}/{below}"] = (str(entry.folder / below), digest)
    return checked.without(dict.fromkeys(unclear, "ninja's files do not prove that it is current")), builds


def _content(entries: tuple[Checked, ...]) -> Iterator[Content]:
    for checked in entries:
        for file in checked.sound:
            name = f"{checked.entry.compiler.name}/{file.name}"
            with contextlib.suppress(FileNotFoundError, PermissionError):  # a job that still runs may replace it
                yield Content(name=name, data=portable(checked.entry, file), executable=file.executable)
