"""What a job did with its kernels: those it found, those it compiled, how long that took, and where else it wrote."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from archpatch.errors import UsageError
from archpatch.kernel_cache.compilers import COMPILERS
from archpatch.kernel_cache.lane import Lane
from archpatch.kernel_cache.ninja import LOG, build_seconds
from archpatch.kernel_cache.save import Plan, plan_save
from archpatch.kernel_cache.snapshot import HIDDEN, Known, Snapshot, is_used
from archpatch.kernel_cache.soundness import kernel_of
from archpatch.kernel_cache.tree import Entry, Tree
from archpatch.storage.atomic import staging_folder
from archpatch.storage.listing import matching

__all__ = ["Counts", "Outside", "Report", "report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Entries of one compiler, or kernels of one name, seen from the snapshot on.

    `had` lay in the root before, `restored` came from an archive or a shared folder; of both, `hit` were used.
    `missed` were compiled in this job: `added`, or there before and compiled again. `seconds` is what compiling took,
    as far as the files tell: ninja logs it, and of a kernel of Triton it is the time between its first file and its
    last.
    """

    name: str
    had: int = 0
    restored: int = 0
    hit: int = 0
    missed: int = 0
    added: int = 0
    seconds: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            name=self.name,
            had=self.had + other.had,
            restored=self.restored + other.restored,
            hit=self.hit + other.hit,
            missed=self.missed + other.missed,
            added=self.added + other.added,
            seconds=self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """A folder outside of the root that something wrote `files` files of `size` bytes to since the snapshot."""

    path: str
    files: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a job did: per compiler, per kernel of Triton, outside of the root; and what a save would write now.

    `tells_hits` is False where the file system keeps no access times: then no hit can be counted.
    """

    key: str | None
    compilers: tuple[Counts, ...]
    kernels: tuple[Counts, ...]
    outside: tuple[Outside, ...]
    plan: Plan
    tells_hits: bool

    def to_json(self) -> dict[str, Any]:
        """Return the report as the command line prints it."""
        return {
            "key": self.key,
            "tells_hits": self.tells_hits,
            "compilers": [_rounded(counts) for counts in self.compilers],
            "kernels": [_rounded(counts) for counts in self.kernels],
            "outside": [asdict(each) for each in self.outside],
            "save": {
                "entries": len(self.plan.entries),
                "new": self.plan.new,
                "size": self.plan.size,
                "left_out": len(self.plan.left_out),
            },
        }


def report(root: Path, lane: Lane, *, limit: int, environ: Mapping[str, str] = os.environ) -> Report:
    """Compare a root with its snapshot. Raises `UsageError` where no restore left one."""
    root = root.absolute()
    snapshot = Snapshot.read(root, lane)
    if snapshot is None:
        raise UsageError(
            f"nothing notes what {root} held before the job, in the lane {lane}",
            remedy="Run archpatch cache restore, or sync --from, before it, with the same --root and --gpu.",
        )
    compilers, kernels = dict[str, Counts](), dict[str, Counts]()
    for entry in Tree.of(root, lane).entries():
        known = snapshot.entries.get(entry.name)
        _count(compilers, _counted(entry, known, entry.compiler.name))
        for name in filter(None, (kernel_of(file.name) for file in entry.files)):
            _count(kernels, _counted(entry, known, name))
    return Report(
        key=snapshot.key,
        compilers=tuple(compilers.values()),
        kernels=tuple(kernels[name] for name in sorted(kernels)),
        outside=tuple(_outside(root, snapshot.taken, environ)),
        plan=plan_save(root, lane, snapshot=snapshot, limit=limit),
        tells_hits=_tells_hits(root),
    )


def _count(table: dict[str, Counts], counts: Counts) -> None:
    table[counts.name] = table[counts.name] + counts if counts.name in table else counts


def _counted(entry: Entry, known: Known | None, name: str) -> Counts:
    if known is None:
        return Counts(name=name, missed=1, added=1, seconds=_seconds(entry))
    changed = known.compiled_again(entry)
    return Counts(
        name=name,
        had=int(not known.restored),
        restored=int(known.restored),
        hit=int(is_used(entry) and not changed),
        missed=int(changed),
        seconds=_seconds(entry) if changed else 0.0,
    )


def _seconds(entry: Entry) -> float:
    """Return what it took to compile the entry, 0 where nothing tells."""
    if any(kernel_of(file.name) for file in entry.files):
        times = [file.modified for file in entry.files]
        return (max(times) - min(times)) / 1e9
    logs = (PurePosixPath(file.name) for file in entry.files if PurePosixPath(file.name).name == LOG)
    return sum(build_seconds(entry.folder / log.parent) for log in logs)


def _outside(root: Path, taken: int, environ: Mapping[str, str]) -> Iterator[Outside]:
    """Yield the places that compilers write to when nobody tells them otherwise, where something is newer."""
    places = {"home": environ.get("HOME") or "/", "tmp": tempfile.gettempdir()}
    for pattern in sorted(default for compiler in COMPILERS for default in compiler.defaults):
        for folder in matching(Path("/"), pattern.format(**places).lstrip("/")):
            sizes = [] if folder.is_relative_to(root) else list(_newer(folder, taken))
            if sizes:
                yield Outside(path=str(folder), files=len(sizes), size=sum(sizes))


def _newer(folder: Path, taken: int) -> Iterator[int]:
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                status = Path(place, name).lstat()
            except OSError:
                continue
            if status.st_mtime_ns > taken:
                yield status.st_size


def _tells_hits(root: Path) -> bool:
    """Tell whether a read shows in a file's access time here."""
    with staging_folder(root / HIDDEN / "probe") as folder:
        probe = folder / "probe"
        probe.write_bytes(b"x")
        os.utime(probe, (0, 1))
        probe.read_bytes()
        return probe.stat().st_atime > 0


def _rounded(counts: Counts) -> dict[str, Any]:
    return {**asdict(counts), "seconds": round(counts.seconds, 3)}
