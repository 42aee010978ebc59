"""What a root held when a job began: kept in the root, so that what the job used and added can be told afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path, PurePosixPath

from archpatch.kernel_cache.lane import Lane
from archpatch.kernel_cache.manifest import Manifest
from archpatch.kernel_cache.ninja import LOGS
from archpatch.kernel_cache.place import portable
from archpatch.kernel_cache.soundness import kernel_of
from archpatch.kernel_cache.tree import Entry, File, Tree, read_quietly
from archpatch.storage.atomic import disk_errors, write_text

__all__ = ["HIDDEN", "Known", "Snapshot", "is_used"]

#: The folder in a root that is no compiler's.
HIDDEN = ".archpatch"
_SECOND = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An entry as it was: its files as (size, time of change in ns, SHA-256 if an archive holds it), and its past.

    `restored` says that a restore or a fetch brought it, `archived` that the archive which was restored holds it as it
    is, whoever compiled what lies here; `idle` in how many saves in a row nothing had used it.
    """

    files: Mapping[str, tuple[int, int, str | None]]
    restored: bool = False
    archived: bool = False
    idle: int = 0

    def changed(self, entry: Entry) -> bool:
        """Tell whether a file of the entry is another one than before, or was not there."""
        return any(self._changed(entry, file) for file in entry.files)

    def compiled_again(self, entry: Entry) -> bool:
        """Tell whether the entry was written since; Triton writes a group last, and never touches one."""
        groups = (file for file in entry.files if kernel_of(file.name) is not None)
        return self.changed(entry) or any(self.files[file.name][1] != file.modified for file in groups)

    def _changed(self, entry: Entry, file: File) -> bool:
        size, modified, digest = self.files.get(file.name, (-1, 0, None))
        if (size, modified) == (file.size, file.modified):
            return False
        if size != file.size or digest is None:
            return True
        try:  # some compilers touch what they use
            return sha256(read_quietly(entry.path(file))).hexdigest() != digest
        except OSError:  # another user's file, or one that has gone since
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A root at the time `taken` (ns): the key that was restored (None: none was), and the entries by name.

    `refused` is a key under which the store holds an archive that was refused.
    """

    key: str | None
    exact: bool
    taken: int
    entries: Mapping[str, Known]
    refused: str | None = None

    @classmethod
    def take(cls, tree: Tree, manifest: Manifest | None, *, had: Collection[str], exact: bool = False) -> Snapshot:
        """Look at a root after a restore from the archive of `manifest`; `had` are the entries that lay there before.

        Each file's access time is set back, so that the next read of it shows.
        """
        known = {entry.name: _known(entry, manifest) for entry in tree.entries()}
        entries = {name: replace(each, restored=each.restored and name not in had) for name, each in known.items()}
        key = None if manifest is None else manifest.key
        return cls(key=key, exact=exact, entries=entries, taken=time.time_ns())

    @classmethod
    def take_again(cls, tree: Tree, earlier: Snapshot | None, *, brought: Collection[str]) -> Snapshot:
        """Look at a root after a fetch that added `brought`; what a restore from an archive noted stays true."""
        earlier = earlier or cls(key=None, exact=False, entries={}, taken=0)
        noted = earlier.entries if earlier.key is not None else {}
        entries = {}
        for entry in tree.entries():
            known = noted.get(entry.name) or Known(files={}, restored=entry.name in brought)
            digests = {name: digest for name, (_, _, digest) in known.files.items()}
            archived = known.archived and not known.changed(entry)
            entries[entry.name] = replace(known, files=_files(entry, digests), archived=archived)
        return replace(earlier, entries=entries, taken=time.time_ns())

    @classmethod
    def read(cls, root: Path, lane: Lane) -> Snapshot | None:
        """Return the lane's snapshot in the root, or None where there is none that can be read."""
        try:
            data = json.loads(_path(root, lane).read_text(encoding="utf-8"))
            entries = {
                name: Known(
                    files={file: tuple(values) for file, values in known["files"].items()},
                    restored=known["restored"],
                    archived=known["archived"],
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


def _known(entry: Entry, manifest: Manifest | None) -> Known:
    """Return what is known of an entry, compared with an archive, in which groups and graphs name no place."""
    if manifest is None:
        return Known(files=_files(entry, {}))
    digests: dict[str, str | None] = {}
    same = 0
    for file in entry.files:
        told = manifest.files.get(f"{entry.compiler.name}/{file.name}")
        with contextlib.suppress(OSError, ValueError):  # another user's file, a torn group
            if told is not None:
                digests[file.name] = sha256(read_quietly(entry.path(file))).hexdigest()
                # The times in ninja's logs are those of the restore.
                is_log = PurePosixPath(file.name).name in LOGS
                same += is_log or told in (digests[file.name], sha256(portable(entry, file)).hexdigest())
    idle = manifest.idle.get(entry.name, 0)
    return Known(files=_files(entry, digests), restored=bool(digests), archived=same == len(entry.files), idle=idle)


def _files(entry: Entry, digests: Mapping[str, str | None]) -> dict[str, tuple[int, int, str | None]]:
    """Return an entry's files as `Known` has them, and set their access times back."""
    for file in entry.files:
        with contextlib.suppress(OSError):  # another user's file
            os.utime(entry.path(file), ns=(file.modified - _SECOND, file.modified), follow_symlinks=False)
    return {file.name: (file.size, file.modified, digests.get(file.name)) for file in entry.files}


def _path(root: Path, lane: Lane) -> Path:
    return root / HIDDEN / f"{'_'.join(Path(str(lane)).parts)}.json"
