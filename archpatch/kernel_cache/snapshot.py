"""What a root held when a job began: kept in the root, so that what the job used and added can be told afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from archpatch.kernel_cache.lane import Lane
from archpatch.kernel_cache.manifest import Manifest
from archpatch.kernel_cache.tree import Entry, File, Tree, read_quietly
from archpatch.storage.atomic import disk_errors, write_text

__all__ = ["HIDDEN", "Known", "Snapshot", "is_used"]

#: The folder in a root that is no compiler's.
HIDDEN = ".archpatch"
_SECOND = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An entry as it was: its files as (size, time of change in ns, SHA-256 where an archive told), and its past.

    `restored` says that the archive that was restored holds it, `idle` in how many saves in a row nothing had used it.
    """

    files: Mapping[str, tuple[int, int, str | None]]
    restored: bool
    idle: int

    def changed(self, entry: Entry) -> bool:
        """Tell whether a file of the entry is another one than before, or was not there."""
        return any(self._changed(entry, file) for file in entry.files)

    def _changed(self, entry: Entry, file: File) -> bool:
        size, modified, digest = self.files.get(file.name, (-1, 0, None))
        if (size, modified) == (file.size, file.modified):
            return False
        # Some compilers touch what they use.
        return size != file.size or digest is None or sha256(read_quietly(entry.path(file))).hexdigest() != digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A root at the time `taken` (ns): the key that was restored (None: none was), and the entries by name."""

    key: str | None
    exact: bool
    taken: int
    entries: Mapping[str, Known]

    @classmethod
    def take(
        cls, tree: Tree, manifest: Manifest | None = None, *, exact: bool = False, brought: Collection[str] = ()
    ) -> Snapshot:
        """Look at a root, and set each file's access time back, so that the next read of it shows.

        Restored are the entries of `manifest`, or those that were `brought` from a shared folder.
        """
        digests, idle = ({}, {}) if manifest is None else (manifest.files, manifest.idle)
        key = None if manifest is None else manifest.key
        entries = {entry.name: _known(entry, digests, idle, brought=entry.name in brought) for entry in tree.entries()}
        return cls(key=key, exact=exact, entries=entries, taken=time.time_ns())

    @classmethod
    def read(cls, root: Path, lane: Lane) -> Snapshot | None:
        """Return the lane's snapshot in the root, or None where there is none that can be read."""
        try:
            data = json.loads(_path(root, lane).read_text(encoding="utf-8"))
            entries = {
                name: Known(
                    files={file: tuple(values) for file, values in known["files"].items()},
                    restored=known["restored"],
                    idle=known["idle"],
                )
                for name, known in data.pop("entries").items()
            }
            return cls(entries=entries, **data)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, root: Path, lane: Lane) -> None:
        """Keep the snapshot in the root, in place of an earlier one."""
        path = _path(root, lane)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(self)) + "\n")


def is_used(entry: Entry) -> bool:
    """Tell whether a file of the entry was read since a snapshot set its access time back.

    Linux keeps access times unless a file system is mounted with `noatime`; there, nothing counts as used.
    """
    return any(file.accessed > file.modified - _SECOND for file in entry.files)


def _known(entry: Entry, digests: Mapping[str, str], idle: Mapping[str, int], *, brought: bool) -> Known:
    files = {}
    for file in entry.files:
        files[file.name] = (file.size, file.modified, digests.get(f"{entry.compiler.name}/{file.name}"))
        with contextlib.suppress(OSError):  # another user's file
            os.utime(entry.path(file), ns=(file.modified - _SECOND, file.modified), follow_symlinks=False)
    restored = brought or any(digest is not None for _, _, digest in files.values())
    return Known(files=files, restored=restored, idle=idle.get(entry.name, 0))


def _path(root: Path, lane: Lane) -> Path:
    return root / HIDDEN / f"{'_'.join(Path(str(lane)).parts)}.json"
