"""The key of one job's kernels: the lane, the week and the kernel sources."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from pathlib import Path

from archpatch.errors import UsageError
from archpatch.kernel_cache.lane import Lane
from archpatch.storage.atomic import sha256_of
from archpatch.storage.fingerprint import fingerprint
from archpatch.storage.key import Key

__all__ = ["Job", "digest_of_sources", "job_key"]

#: An archive is named after its key, in 255 characters, and while it is written, `..tar.zst.01234567.staging` comes on.
_LONGEST = 229


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job whose kernels are kept: its name, the globs of its kernel sources, and inputs of the user's own."""

    name: str
    sources: tuple[str, ...] = ()
    extras: Mapping[str, str] = field(default_factory=dict)


def job_key(job: Job, lane: Lane, *, today: date | None = None, folder: Path = Path()) -> Key:
    """Return the key of the job's cache: exact for sources and week, else by week, else by lane.

    The week bounds how long kernels that nothing uses are carried along, and how often a cache is written. Globs start
    at `folder`. Raises `UsageError` for one that matches no file, and for a name with which the key is too long.
    """
    year, week, _ = (today or datetime.now(timezone.utc).date()).isocalendar()
    when = f"{year}-W{week:02}"
    inputs = {"job": job.name, **lane.to_json(), "week": when, "sources": digest_of_sources(job.sources, folder)}
    parts = ("archpatch", "kernels", job.name, *lane.parts, when)
    key = Key(parts=parts, inputs=inputs | dict(job.extras), passing=1)
    if len(str(key)) > _LONGEST:
        raise UsageError(
            f"--lane {job.name:.40}...: a key of {len(str(key))} characters is too long",
            remedy=f"Shorten the name: a key may have {_LONGEST}.",
        )
    return key


def digest_of_sources(globs: tuple[str, ...], folder: Path) -> str:
    """Return a digest of the names and contents of all files that the globs (`**` goes down) match."""
    digests: dict[str, str] = {}
    for pattern in globs:
        names = glob.glob(pattern, root_dir=folder, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute ones
        files = [name for name in names if (folder / name).is_file()]
        if not files:
            raise UsageError(
                f"--sources {pattern}: no file matches", remedy=f"Globs start at {folder.absolute()}; quote them."
            )
        digests |= {name: sha256_of(folder / name) for name in files}
    return fingerprint(digests)
