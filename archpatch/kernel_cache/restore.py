"""Bring a lane's kernels back below a root, wherever and by whomever they were compiled."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from archpatch.errors import CacheRefused
from archpatch.kernel_cache.archive import is_old, opened, require_zstd, sweep
from archpatch.kernel_cache.contents import Contents
from archpatch.kernel_cache.lane import Lane
from archpatch.kernel_cache.manifest import Manifest
from archpatch.kernel_cache.ninja import LOG, make_current, read_build
from archpatch.kernel_cache.place import place, point
from archpatch.kernel_cache.snapshot import HIDDEN, Snapshot
from archpatch.kernel_cache.soundness import Checked, check
from archpatch.kernel_cache.store import Store
from archpatch.kernel_cache.tree import Entry, File, Tree
from archpatch.storage.atomic import disk_errors
from archpatch.storage.key import Key
from archpatch.storage.listing import below

__all__ = ["Restored", "clear_staging", "restore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore did: `key` is that of the archive (None: none fitted), `exact` whether it is the one asked for.

    `entries` and `size` (bytes) count what the archive brought; `left_out` are names of what it held and did not bring,
    each with the reason; `refused` says of each archive that was refused why; `locks` counts orphans removed.
    """

    key: str | None = None
    exact: bool = False
    archive: Path | None = None
    entries: int = 0
    size: int = 0
    left_out: tuple[tuple[str, str], ...] = ()
    refused: tuple[str, ...] = ()
    locks: int = 0


def restore(store: Store, root: Path, *, lane: Lane, key: Key, limit: int) -> Restored:
    """Restore the archive for `key`, else the newest of the lane, below `root`, and note there what it holds now.

    What lies there already stays. An archive that is refused is passed over for the next. `limit` is in bytes, as in
    `save`. Raises `DiskFull`, `UsageError` where the root may not be written, and `ToolchainError` where a save could
    not write in the end.
    """
    require_zstd()
    root = root.absolute()
    with disk_errors(root):
        (root / HIDDEN).mkdir(parents=True, exist_ok=True)
        tree = Tree.of(root, lane)
        locks = _clear_leftovers(root, tree)
        had = {entry.name for entry in tree.entries()}
        restored, manifest, refused = _first(store, tree, lane=lane, key=key, root=root, limit=limit)
        snapshot = Snapshot.take(Tree.of(root, lane), manifest, had=had, exact=restored.exact)
        # Not one that another job has saved meanwhile.
        is_refused = store.has(key) and store.place(key) in refused
        replace(snapshot, refused=str(key) if is_refused else None).write(root, lane)
    return replace(restored, locks=locks)


def _clear_leftovers(root: Path, tree: Tree) -> int:
    """Remove what killed processes left: locks that nobody holds, staging folders; return how many locks.

    Older versions of torch wait for ever while a file named `lock` is there, whoever made it. Its maker holds nothing
    that could be asked for; so where something else in the folder was written lately, its lock stays.
    """
    clear_staging(root)
    locks = [path for _, folder in tree.folders for path in _locks(folder) if is_old(path)]
    still = {folder for folder in {path.parent for path in locks} if all(map(is_old, below(folder)))}
    return sum(_unlock(path) for path in locks if path.parent in still)


def clear_staging(root: Path) -> None:
    """Remove the staging folders that killed processes left in a root."""
    sweep(root / HIDDEN)


def _locks(folder: Path) -> Iterator[Path]:
    for path in below(folder):
        if (path.name == "lock" or path.suffix == ".lock") and path.is_file() and not path.is_symlink():
            yield path


def _unlock(path: Path) -> bool:
    """Remove a lock file unless a process holds it, which the kernel knows of locks that it frees itself."""
    try:
        with path.open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another restore may have removed it, and a compiler made it anew.
            if not is_old(path) or not os.path.samestat(os.fstat(file.fileno()), path.lstat()):
                return False
            path.unlink()
    except OSError:
        return False
    return True


def _first(
    store: Store, tree: Tree, *, lane: Lane, key: Key, root: Path, limit: int
) -> tuple[Restored, Manifest | None, frozenset[Path]]:
    """Restore the first archive that is not refused; return its manifest too, and those that are."""
    refused: dict[Path, str] = {}
    for archive in store.candidates(key):
        try:
            with opened(archive, lane, beside=root / HIDDEN, limit=limit) as (manifest, folder):
                placed = _Placing(
                    tree=tree, manifest=manifest, content=Tree.below(folder), contents=Contents(root=root)
                ).run()
        except CacheRefused as error:
            refused[archive] = error.message
            continue
        exact = manifest.key == str(key)
        restored = replace(placed, archive=archive, exact=exact, refused=tuple(refused.values()))
        return restored, manifest, frozenset(refused)
    return Restored(refused=tuple(refused.values())), None, frozenset(refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placing:
    """An archive's content on its way into a root's tree."""

    tree: Tree
    manifest: Manifest
    content: Tree
    contents: Contents

    def run(self) -> Restored:
        """Place every entry; those that ninja built come last, for they may be built from others."""
        existing = {entry.name: entry for entry in self.tree.entries()}
        entries = sorted(self.content.entries(), key=lambda entry: (bool(_builds(entry.files)), entry.name))
        left_out: list[tuple[str, str]] = []
        count = size = 0
        for entry in entries:
            checked = self._sound(entry)
            left_out += [(f"{entry.compiler.name}/{name}", why) for name, why in checked.faults]
            target = self.tree.folder(entry.compiler)
            point(checked, target)
            if not checked.sound:
                continue
            for build in _builds(checked.sound):
                make_current(entry.folder / build, target / build, time.time_ns())
            if place(checked, target, existing.get(entry.name)):
                count, size = count + 1, size + sum(file.size for file in checked.sound)
            else:
                left_out.append((entry.name, "it is there already"))
        return Restored(key=self.manifest.key, entries=count, size=size, left_out=tuple(left_out))

    def _sound(self, entry: Entry) -> Checked:
        """Return what of an entry is whole, without the folders that ninja would take for what they are not."""
        faults = {build: self._build_fault(entry, build) for build in _builds(entry.files)}
        return check(entry).without({build: fault for build, fault in faults.items() if fault is not None})

    def _build_fault(self, entry: Entry, build: str) -> str | None:
        """Say why ninja's folder `build` may not be restored, or None."""
        target = self.tree.folder(entry.compiler) / build
        place_then, digest = self.manifest.builds.get(f"{entry.compiler.name}/{build}", ("", ""))
        if place_then != str(target):
            return f"ninja's commands name the folder that it was built in, {place_then}"
        read = read_build(entry.folder / build, target)
        content = None if read is None else read.content(replace(self.contents, staged={target: entry.folder / build}))
        return None if content is not None and content.digest == digest else "what it was built from has changed"


def _builds(files: Iterable[File]) -> list[str]:
    """Return the folders that ninja built, below the compiler's folder, of which these are the files."""
    names = (PurePosixPath(file.name) for file in files)
    return [str(name.parent) for name in names if name.name == LOG]
