"""A folder that many machines mount, and one of this machine: entries go from one to the other, each by a rename.

There are no locks: on network file systems they hang or do nothing. What a compiler names by its content is added to;
any other entry is one, and is replaced by one that has all that it has, and more. Two that publish one at once both
succeed, or one finds the other's there: nobody sees a part of either.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from archpatch.errors import MissingFile
from archpatch.kernel_cache.lane import Lane
from archpatch.kernel_cache.ninja import LOG
from archpatch.kernel_cache.place import place, point
from archpatch.kernel_cache.restore import clear_staging
from archpatch.kernel_cache.snapshot import HIDDEN, Snapshot
from archpatch.kernel_cache.soundness import Checked, check, is_timings, kernel_of
from archpatch.kernel_cache.tree import Entry, File, Tree, read_quietly
from archpatch.storage.atomic import disk_errors, staging_folder

__all__ = ["Synced", "fetch", "publish"]

#: By how much (ns) a file has to be newer than another to be it: file systems round times, FAT to two seconds.
_CLOCKS = 3 * 10**9
#: What reading a file says that was replaced meanwhile; the last is that of NFS.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_WRITTEN = "it is being written"
_PUBLISHED = "another machine is publishing it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What a sync did: the names of the entries that were brought, those that were there, and what was left out."""

    brought: tuple[str, ...]
    present: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]


def fetch(root: Path, shared: Path, *, lane: Lane) -> Synced:
    """Bring the lane's sound entries from `shared` below `root`, and note there what it holds now.

    What a restore noted there before stays true. Raises `MissingFile` where `shared` is no folder.
    """
    root = root.absolute()
    tree = Tree.of(root, lane)
    had = {entry.name for entry in tree.entries()}
    done = _sync(shared, root, lane)
    snapshot = Snapshot.take_again(tree, Snapshot.read(root, lane), brought={*done.brought} - had)
    snapshot.write(root, lane)
    return done


def publish(root: Path, shared: Path, *, lane: Lane) -> Synced:
    """Bring the lane's sound entries from `root` below `shared`, where they are not there yet, or are less.

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
        existing = {entry.name: entry for entry in self._tree.entries()}
        brought, present, left_out = list[str](), list[str](), list[tuple[str, str]]()
        for entry in Tree.of(self.source, self.lane).entries():
            there = existing.get(entry.name)
            if any(PurePosixPath(file.name).name == LOG for file in entry.files):
                left_out.append((entry.name, "what ninja built moves by save and restore alone"))
            elif there is not None and _has_all(there, entry):
                present.append(entry.name)
            elif there is not None and _has_more(there, entry):
                left_out.append((entry.name, "it lacks files of the one that is there"))
            else:
                is_brought, faults = self._bring(entry, there)
                left_out += faults
                if is_brought:
                    brought.append(entry.name)
        return Synced(brought=tuple(brought), present=tuple(present), left_out=tuple(left_out))

    def _bring(self, entry: Entry, there: Entry | None) -> tuple[bool, list[tuple[str, str]]]:
        """Copy an entry to the target's file system, look at the copy, and put it in place.

        Tell whether that was done, and what is wrong with its files.
        """
        with staging_folder(self.target / HIDDEN / "sync") as staging:
            faults = [(f"{entry.compiler.name}/{name}", why) for name, why in _copy(entry, staging)]
            is_one = not entry.compiler.addressed
            if is_one and not faults and not self._tree.is_as_it_was(entry):
                faults = [(entry.name, _WRITTEN)]
            if is_one and faults:
                return False, faults
            is_brought = False
            for staged in Tree.below(staging).entries():
                checked = check(staged)
                faults += [(f"{entry.compiler.name}/{name}", why) for name, why in checked.faults]
                if not checked.sound:
                    continue
                fault = self._put(checked, there)
                is_brought = fault is None
                faults += [(entry.name, fault)] if fault is not None else []
            return is_brought, faults

    def _put(self, checked: Checked, there: Entry | None) -> str | None:
        """Put a copy in place, unless the entry there is another one by now; say why it was not done, or None."""
        compiler = checked.entry.compiler
        if there is not None and not compiler.addressed and not self._tree.is_as_it_was(there):
            return _PUBLISHED
        folder = self._tree.folder(compiler)
        point(checked, folder)
        try:
            is_placed = place(checked, folder, there, replaces=there is not None)
        except PermissionError as error:
            return f"it may not be written there: {error.strerror}"
        return None if is_placed else _PUBLISHED

    @property
    def _tree(self) -> Tree:
        return Tree.of(self.target, self.lane)


def _copy(entry: Entry, staging: Path) -> Iterator[tuple[str, str]]:
    """Copy an entry's files with their times, by which it is known again; yield those that cannot be had now."""
    for file in entry.files:
        copy = staging / entry.compiler.name / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            content = read_quietly(entry.path(file))
            is_same = entry.path(file).stat().st_mtime_ns == file.modified and len(content) == file.size
        except OSError as error:
            yield file.name, _WRITTEN if error.errno in _GONE else f"it cannot be read: {error.strerror}"
            continue
        if is_same:
            copy.write_bytes(content)
            copy.chmod(0o755 if file.executable else 0o644)
            os.utime(copy, ns=(file.modified, file.modified))
        else:
            yield file.name, _WRITTEN


def _has_all(there: Entry, entry: Entry) -> bool:
    """Tell whether nothing of `entry` is missing, torn or newer than in its counterpart."""
    theirs = {file.name: file for file in check(there).sound}
    if entry.compiler.addressed:
        return all(file.name in theirs and _is_same(there, entry, file.name) for file in entry.files)
    mine = {file.name: file for file in check(entry).sound}
    return mine.keys() <= theirs.keys() and len(theirs) == len(there.files) and _time(mine) - _time(theirs) < _CLOCKS


def _has_more(there: Entry, entry: Entry) -> bool:
    """Tell whether an entry that is one would lose files by being replaced; one that is torn has nothing to lose."""
    checked = check(there)
    mine = {file.name for file in check(entry).sound}
    return not entry.compiler.addressed and not checked.faults and not {file.name for file in checked.sound} <= mine


def _time(files: Mapping[str, File]) -> int:
    """Return when the newest of the files was written, but for groups, which are written anew where they are put."""
    return max((file.modified for name, file in files.items() if kernel_of(name) is None), default=0)


def _is_same(there: Entry, entry: Entry, name: str) -> bool:
    """Tell whether a file holds the same on both sides; what is named by its content does."""
    if not is_timings(entry, name):
        return True
    try:
        return read_quietly(there.folder / name) == read_quietly(entry.folder / name)
    except OSError:  # it has gone, or is another user's
        return False
