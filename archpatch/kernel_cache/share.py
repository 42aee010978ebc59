"""A folder that many machines mount, and one of this machine: entries go from one to the other, each by a rename.

There are no locks: on network file systems they hang or do nothing. Two that publish one entry at once publish the
same, and who comes second finds it there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from archpatch.errors import MissingFile
from archpatch.kernel_cache.lane import Lane
from archpatch.kernel_cache.ninja import LOG
from archpatch.kernel_cache.place import is_timings, place, point
from archpatch.kernel_cache.restore import clear_staging
from archpatch.kernel_cache.snapshot import HIDDEN, Snapshot
from archpatch.kernel_cache.soundness import GROUP, check
from archpatch.kernel_cache.tree import Entry, Tree, read_quietly
from archpatch.storage.atomic import disk_errors, staging_folder

__all__ = ["Synced", "fetch", "publish"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What a sync did: the names of the entries that were brought, those that were there, and what was left out."""

    brought: tuple[str, ...]
    present: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]


def fetch(root: Path, shared: Path, *, lane: Lane) -> Synced:
    """Bring the lane's sound entries from `shared` below `root`, and note there what it holds now.

    Raises `MissingFile` where `shared` is no folder.
    """
    done = _sync(shared, root, lane)
    tree = Tree.of(root.absolute(), lane)
    Snapshot.take(tree, brought={*done.brought, *done.present}).write(root.absolute(), lane)
    return done


def publish(root: Path, shared: Path, *, lane: Lane) -> Synced:
    """Bring the lane's sound entries from `root` below `shared`, where they are not there yet.

    Groups of Triton's and graphs of Inductor's there name the path `shared` as it is given, so that they can be used
    where they are, too. Raises `MissingFile` where `root` is no folder.
    """
    return _sync(root, shared, lane)


def _sync(source: Path, target: Path, lane: Lane) -> Synced:
    source, target = source.absolute(), target.absolute()
    if not source.is_dir():
        raise MissingFile(f"{source} is no folder", remedy="Mount it, or correct the path.")
    with disk_errors(target):
        (target / HIDDEN).mkdir(parents=True, exist_ok=True)
        clear_staging(target)
        return _Syncing(source=source, target=target, lane=lane).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Syncing:
    source: Path
    target: Path
    lane: Lane

    def run(self) -> Synced:
        """Bring what is missing, entry by entry."""
        existing = {entry.name: entry for entry in Tree.of(self.target, self.lane).entries()}
        brought, present, left_out = list[str](), list[str](), list[tuple[str, str]]()
        for entry in Tree.of(self.source, self.lane).entries():
            there = existing.get(entry.name)
            if any(PurePosixPath(file.name).name == LOG for file in entry.files):
                left_out.append((entry.name, "what ninja built moves by save and restore alone"))
            elif there is not None and _has_all(there, entry):
                present.append(entry.name)
            else:
                faults = list(self._bring(entry, there))
                left_out += [(f"{entry.compiler.name}/{name}", why) for name, why in faults]
                if len(faults) < len(entry.files):
                    brought.append(entry.name)
        return Synced(brought=tuple(brought), present=tuple(present), left_out=tuple(left_out))

    def _bring(self, entry: Entry, there: Entry | None) -> Iterator[tuple[str, str]]:
        """Copy an entry to the target's file system, look at the copy, and put it in place; yield its faults."""
        with staging_folder(self.target / HIDDEN / "sync") as staging:
            for file in entry.files:
                copy = staging / entry.compiler.name / file.name
                copy.parent.mkdir(parents=True, exist_ok=True)
                try:
                    copy.write_bytes(read_quietly(entry.path(file)))
                except FileNotFoundError:
                    continue  # a compiler has replaced it since
                copy.chmod(0o755 if file.executable else 0o644)
            folder = Tree.of(self.target, self.lane).folder(entry.compiler)
            for staged in Tree.below(staging).entries():
                checked = check(staged)
                yield from checked.faults
                point(checked, folder)
                if checked.sound:
                    place(checked, folder, there)


def _has_all(there: Entry, entry: Entry) -> bool:
    """Tell whether nothing of `entry` is missing, torn or newer than in its counterpart."""
    if not entry.compiler.addressed:
        return True
    sizes = {file.name: file.size for file in check(there).sound}
    return all(
        file.name in sizes and (PurePosixPath(file.name).name.startswith(GROUP) or _is_same(there, entry, file.name))
        for file in entry.files
    )


def _is_same(there: Entry, entry: Entry, name: str) -> bool:
    """Tell whether a file holds the same on both sides; what is named by its content does."""
    if not is_timings(entry, name):
        return True
    return (there.folder / name).read_bytes() == read_quietly(entry.folder / name)
