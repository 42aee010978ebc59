"""A wheelhouse on disk: what is in it, what is intact, and how a wheel gets in."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from archpatch.arch.arch import Arch, DeviceCode
from archpatch.arch.coverage import Verdict, best_for
from archpatch.errors import DiskFull, MissingFile, UnreadableBinary, UsageError, WheelhouseConflict, WheelhouseDamaged
from archpatch.storage.atomic import disk_errors, sha256_of, sync_folder, write_text
from archpatch.storage.fingerprint import differing
from archpatch.storage.listing import matching
from archpatch.storage.sealed import seal, unseal
from archpatch.wheelhouse.layout import HIDDEN, INDEX, Stack, arch_folder, gpu_folder, relative_link
from archpatch.wheelhouse.record import Record, record_path

__all__ = ["Entry", "Wheelhouse", "target_of"]

_STAGING = ".staging"
#: The lock that is held for every change of what readers see; the others are held while a wheel is made.
_WRITING = "publish"
#: A wheelhouse can be shared by users of one group: its locks are everybody's.
_EVERYBODYS = 0o666
#: What file systems without symbolic links answer to one.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One wheel and its record."""

    wheel: Path
    record: Record

    def check(self, *, at_a_glance: bool = False) -> None:
        """Raise `WheelhouseDamaged` unless the wheel is what was recorded: its name, its size and its bytes.

        The bytes, which take a second per GB, are not read `at_a_glance`.
        """
        if self.wheel.is_symlink():
            raise WheelhouseDamaged(f"{self.wheel} is a link, and no wheel", remedy="Build it again.")
        if self.wheel.name != self.record.wheel:
            raise WheelhouseDamaged(f"{self.wheel} was renamed", remedy=f"It was published as {self.record.wheel}.")
        try:
            same = self.wheel.stat().st_size == self.record.size
            same = same and (at_a_glance or sha256_of(self.wheel) == self.record.sha256)
        except OSError as error:
            raise WheelhouseDamaged(
                f"{self.wheel} cannot be read: {error.strerror}", remedy="Build it again."
            ) from None
        if not same:
            raise WheelhouseDamaged(f"{self.wheel} was changed after it was published", remedy="Build it again.")

    def not_run_by(self, gpu: Arch) -> str | None:
        """Return the first extension of which a GPU of arch `gpu` runs nothing, None where it runs all of them."""
        for name, codes in self.record.extensions.items():
            if best_for(map(DeviceCode.parse, codes), gpu)[1] is Verdict.NO:
                return name
        return None


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    """The wheelhouse in the folder `root`, which need not exist yet."""

    root: Path

    # --- reading ---

    def exists(self) -> bool:
        """Whether anything was ever filed here."""
        return (self.root / HIDDEN).is_dir()

    def wheels(self) -> Iterator[Path]:
        """Yield whatever has a wheel's place and name once, sorted; unfinished files are left out."""
        yield from sorted(wheel for folder in self._arch_folders() for wheel in matching(folder, "*/*.whl"))

    def _arch_folders(self) -> Iterator[Path]:
        """Yield the folders of wheels by what they hold. They stay, while those of the index come and go."""
        others = ("gpu", INDEX)
        yield from (path for path in matching(self.root, "*") if path.name not in others and path.is_dir())

    def entries(self) -> Iterator[Entry]:
        """Yield every wheel that has a record which fits it, as far as a glance tells."""
        for wheel in self.wheels():
            with contextlib.suppress(WheelhouseDamaged):
                yield self.entry(wheel)

    def entry(self, wheel: Path) -> Entry:
        """Return the entry of one wheel. Raises `WheelhouseDamaged` where its record is missing, torn or another's."""
        entry = Entry(wheel=wheel, record=Record.read(record_path(wheel)))
        entry.check(at_a_glance=True)
        return entry

    def links(self, gpu: str) -> Iterator[Path]:
        """Yield the links of a GPU type, sorted, whatever they point at; an index's lines count as links."""
        folder = self.root / "gpu" / gpu
        yield from matching(folder, "*/*.whl")
        for index in matching(folder, "*/index.html"):
            text = index.read_text(encoding="utf-8", errors="replace")
            yield from (index.parent / unquote(href) for href in re.findall(r'<a href="([^"]+)">', text))

    def gpus(self) -> tuple[str, ...]:
        """Return the GPU types that have a folder."""
        return tuple(path.name for path in matching(self.root / "gpu", "*") if path.is_dir())

    def entries_for(self, gpu: str) -> Iterator[Entry]:
        """Yield what is filed for a GPU type; links that lead to no wheel of this house are passed over."""
        for link in self.links(gpu):
            with contextlib.suppress(WheelhouseDamaged):
                yield self.linked(link)

    def linked(self, link: Path) -> Entry:
        """Return what a GPU type's link leads to. Raises `WheelhouseDamaged` unless it is a wheel of this house."""
        target = _real(link)
        if not target.is_file():
            raise WheelhouseDamaged(f"{link} leads nowhere", remedy="Build for that GPU type again.")
        same = (target.name, target.parent.name) == (link.name, link.parent.name)
        if not same or not target.is_relative_to(_real(self.root)):
            raise WheelhouseDamaged(
                f"{link} leads to {target}, which is no wheel of this wheelhouse", remedy="Remove it."
            )
        return self.entry(self.root / target.relative_to(_real(self.root)))

    def gpus_of(self, entry: Entry) -> tuple[str, ...]:
        """Return the GPU types that a wheel is filed for."""
        return tuple(gpu for gpu in self.gpus() if any(_real(link) == _real(entry.wheel) for link in self.links(gpu)))

    # --- the memo: which wheel a request led to ---

    def remember(self, key: str, entry: Entry, variables: Mapping[str, str | None]) -> None:
        """Note that the request with the digest `key` leads to `entry` while `variables` have these values."""
        note = {
            "key": key,
            "wheel": entry.wheel.relative_to(self.root).as_posix(),
            "fingerprint": entry.record.fingerprint,
            "variables": dict(variables),
        }
        path = self._memo(key)
        with self._writing(path):
            write_text(path, json.dumps(seal(note)) + "\n")

    def recall(self, key: str, environ: Mapping[str, str]) -> Entry | None:
        """Return the intact wheel that the request with the digest `key` led to, or None."""
        try:
            note = self.note(self._memo(key))
            if any(environ.get(name) != value for name, value in note["variables"].items()):
                return None
            entry = self.entry(self.root / note["wheel"])
            entry.check()
        except WheelhouseDamaged:
            return None
        return entry if entry.record.fingerprint == note["fingerprint"] else None

    def memos(self) -> Iterator[Path]:
        """Yield the files of the memo, sorted."""
        yield from matching(self.root / HIDDEN / "memo", "*.json")

    def note(self, memo: Path) -> dict[str, Any]:
        """Return what a file of the memo says.

        Raises `WheelhouseDamaged` where it is missing, torn, edited or another request's.
        """
        try:
            note = unseal(memo.read_text(encoding="utf-8"))
            if note["key"] != memo.stem:
                raise ValueError("it is another request's")  # noqa: TRY301 - told like a torn one
        except (OSError, ValueError, KeyError) as error:
            raise WheelhouseDamaged(f"{memo} cannot be read: {error}", remedy="Build again, or remove it.") from None
        return note

    def find(self, fingerprint: str) -> Entry | None:
        """Return the intact wheel with this fingerprint, or None."""
        for entry in self.entries():
            if entry.record.fingerprint == fingerprint:
                with contextlib.suppress(WheelhouseDamaged):
                    entry.check()
                    return entry
        return None

    def of_package(self, name: str, stack: Stack) -> Iterator[Entry]:
        """Yield what is filed of a package for this torch and CUDA."""
        wanted = canonicalize_name(name)
        for entry in self.entries():
            if canonicalize_name(entry.record.name) == wanted and entry.wheel.parent.name == stack.folder:
                yield entry

    def newest(self, name: str, specifier: SpecifierSet, stack: Stack, inputs: Mapping[str, str]) -> Version | None:
        """Return the newest filed version of a package that `specifier` takes and that was built with `inputs`."""
        versions = (
            Version(entry.record.version)
            for entry in self.of_package(name, stack)
            if inputs.items() <= entry.record.inputs.items()
        )
        return max((version for version in versions if specifier.contains(version, prereleases=True)), default=None)

    def costs(self, name: str) -> Mapping[str, Mapping[str, float]]:
        """Return what the sources of a package cost, by their path, as far as records tell; the newest counts."""
        wanted = canonicalize_name(name)
        records = (entry.record for entry in self.entries() if canonicalize_name(entry.record.name) == wanted)
        costs: dict[str, Mapping[str, float]] = {}
        for record in sorted(records, key=lambda record: record.created):
            costs.update(record.files)
        return costs

    def occupants(self, name: str, version: str, codes: Iterable[DeviceCode], stack: Stack) -> Iterator[Entry]:
        """Yield the wheels of one release that hold exactly `codes`, for whatever interpreter."""
        folder = self.root / arch_folder(codes, stack)
        for entry in self.of_package(name, stack):
            if entry.wheel.parent == folder and Version(entry.record.version) == Version(version):
                yield entry

    def has_index(self) -> bool:
        """Whether a static index was written here, which every change then keeps up to date."""
        return (self.root / INDEX / "index.html").is_file()

    def index_pages(self, *, without: Path | None = None) -> dict[PurePosixPath, str]:
        """Return the pages of the static index by their paths, as if the wheel `without` were not there.

        Left out is what shows at a glance that it is not what was published; hashes are not computed.
        """
        from archpatch.wheelhouse.index import Listed, index_pages  # noqa: PLC0415 - only what changes a house needs it

        gpus: dict[Path, set[str]] = defaultdict(set)
        for gpu in self.gpus():
            for entry in self.entries_for(gpu):
                gpus[entry.wheel].add(gpu)
        listed = []
        for entry in self.entries():
            if entry.wheel != without:
                with contextlib.suppress(WheelhouseDamaged, UnreadableBinary, MissingFile, OSError):
                    filed = gpus[entry.wheel]
                    listed.append(Listed.read(entry.wheel, entry.record, root=self.root, gpus=filed))
        return index_pages(listed)

    def stale_pages(self) -> tuple[Path, ...]:
        """Return the pages of the index that do not say what is here; none where there is no index."""
        from archpatch.wheelhouse.index import out_of_date  # noqa: PLC0415 - as above

        return tuple(out_of_date(self.root, self.index_pages())) if self.has_index() else ()

    # --- writing ---

    @contextlib.contextmanager
    def lock(self, name: str, *, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock `name`; the system frees it when the holder dies. `waiting` is called if another has it."""
        from filelock import FileLock, Timeout  # noqa: PLC0415 - reading needs no lock

        folder = self.root / HIDDEN / "locks"
        with disk_errors(self.root):
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / f"{name}.lock", mode=_EVERYBODYS)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                waiting()
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def publish(self, wheel: Path, record: Record, stack: Stack, *, replace: bool = True) -> Entry:
        """File `wheel` under the archs that it holds, and return where it lies now.

        The copy is staged beside the target; the record is renamed first and the wheel's rename commits, so that a
        killed process leaves nothing that a reader can see. Raises `WheelhouseConflict` where the name is taken by an
        intact wheel with another fingerprint and `replace` is false.
        """
        codes = [DeviceCode.parse(code) for code in record.device_code]
        folder = self.root / arch_folder(codes, stack)
        target = folder / record.wheel
        with self._writing(target):
            staging = folder / _STAGING
            staging.mkdir()
            try:
                staged = staging / record.wheel
                shutil.copyfile(wheel, staged)
                Entry(wheel=staged, record=record).check()
                write_text(record_path(staged), record.to_json())
                if not replace and self._is_taken(target, record):
                    raise self._conflict(target, record)
                with staged.open("rb") as file:
                    os.fsync(file.fileno())
                self._place(staged, target)
                sync_folder(folder)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
        return Entry(wheel=target, record=record)

    def _place(self, staged: Path, target: Path) -> None:
        """Rename a wheel and its record into place; neither a record nor a page ever stands for another wheel."""
        if target.exists():
            self._keep_index(without=target)
        # Until the last rename there is no wheel of this name: a reader sees the old one with its record, none, or the
        # new one with its own, and never the one with the record of the other.
        target.unlink(missing_ok=True)
        record_path(staged).replace(record_path(target))
        staged.replace(target)

    def _is_taken(self, target: Path, record: Record) -> bool:
        """Tell whether an intact wheel of another fingerprint has the name."""
        try:
            entry = self.entry(target)
            entry.check()
        except WheelhouseDamaged:
            return False
        return entry.record.fingerprint != record.fingerprint

    def _conflict(self, target: Path, record: Record) -> WheelhouseConflict:
        return WheelhouseConflict(
            f"{target.name} is already published: {self.difference(target, record.inputs)}",
            remedy="Leave out --no-replace, or choose another --wheelhouse.",
        )

    def difference(self, published: Path, inputs: Mapping[str, str]) -> str:
        """Say in which inputs a published wheel differs from one with `inputs`."""
        try:
            before = self.entry(published).record.inputs
        except WheelhouseDamaged as error:
            return error.message
        changes = [
            f"{name} was {before.get(name, 'absent')}, is {inputs.get(name, 'absent')}"
            for name in differing(before, inputs)
        ]
        return "; ".join(changes) or "the same inputs, other bytes"

    def offer(self, entry: Entry, gpu: str, stack: Stack) -> Path:
        """File `entry` for a GPU type too, and return the link; an older link of the same package goes.

        Where the file system has no links, the folder gets an `index.html` instead, which pip's `--find-links` takes.
        Raises `WheelhouseDamaged` where another process removed the wheel meanwhile.
        """
        folder = self.root / gpu_folder(gpu, stack)
        link = folder / entry.wheel.name
        target = relative_link(entry.wheel, link)
        placed = target_of(link) == target and not any(_rivals(link))
        if placed and not self._unfinished.exists():
            return link
        with self._writing(link):
            self.entry(entry.wheel)
            return _offer(link, target)

    def write_index(self) -> Path:
        """Write the static index of what is here, and return its folder."""
        with self._writing(self.root / INDEX / "index.html"):
            self._write_index()
        return self.root / INDEX

    def _keep_index(self, *, without: Path | None = None) -> None:
        """Bring the index, if there is one, up to date, less the wheel `without`; the caller holds the lock."""
        if self.has_index():
            self._write_index(without=without)

    def _write_index(self, *, without: Path | None = None) -> None:
        from archpatch.wheelhouse.index import write_pages  # noqa: PLC0415 - as above

        write_pages(self.root, self.index_pages(without=without))

    def remove(self, entry: Entry) -> None:
        """Take a wheel out: from the index and the GPU types, then the wheel, which ends it, then its record."""
        with self._writing(entry.wheel):
            if record_path(entry.wheel).is_file() and self.entry(entry.wheel).record != entry.record:
                # Another process replaced it since.
                return
            self._keep_index(without=entry.wheel)
            for gpu in self.gpus():
                for link in self.links(gpu):
                    if link.is_symlink() and _real(link) == _real(entry.wheel):
                        link.unlink()
                for index in matching(self.root / "gpu" / gpu, "*/index.html"):
                    _take_out_of_index(index, entry.wheel.name)
            entry.wheel.unlink(missing_ok=True)
            record_path(entry.wheel).unlink(missing_ok=True)
            sync_folder(entry.wheel.parent)

    def _memo(self, key: str) -> Path:
        return self.root / HIDDEN / "memo" / f"{key}.json"

    @contextlib.contextmanager
    def unchanging(self) -> Iterator[None]:
        """Hold off whoever would write, unless this wheelhouse may not even be locked."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(UsageError, DiskFull):
                stack.enter_context(self.lock(_WRITING))
            yield

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Hold the lock of all who write, with the folder of `path` made and what killed processes left swept away.

        In the end the index, if there is one, is brought up to date.
        """
        with self.lock(_WRITING), disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sweep()
            # What another user left may not be touched, only removed.
            if not self._unfinished.exists():
                self._unfinished.touch()
            yield
            self._keep_index()
            self._unfinished.unlink()

    @property
    def _unfinished(self) -> Path:
        """What is there from before a change until the index fits it, also when whoever wrote was killed."""
        return self.root / HIDDEN / "unfinished"

    def _sweep(self) -> None:
        """Remove what killed processes left; the lock is held, so nobody is at work on any of it."""
        for folder in self._arch_folders():
            for staging in matching(folder, f"*/{_STAGING}"):
                shutil.rmtree(staging, ignore_errors=True)
            for record in matching(folder, "*/*.whl.json"):
                if not record.with_suffix("").exists():
                    record.unlink()
        hidden = self.root / HIDDEN
        for folder in (self.root / "gpu", self.root / INDEX, hidden / "memo"):
            for unfinished in folder.rglob(".*.tmp"):
                unfinished.unlink()
        for path in matching(hidden, "locks/*.lock"):
            if path.stem != _WRITING:
                _remove_if_free(path)


def _remove_if_free(path: Path) -> None:
    """Remove the file of a lock that nobody holds; who waits for it makes it anew (filelock sees to that)."""
    from filelock import FileLock, Timeout  # noqa: PLC0415 - as in `lock`

    lock = FileLock(path, mode=_EVERYBODYS)
    with contextlib.suppress(Timeout), lock.acquire(timeout=0):
        path.unlink()


def _offer(link: Path, target: Path) -> Path:
    """Place a link, or a line in an index, and take away an older one of the same release; return what was placed."""
    try:
        _place_link(link, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _place_in_index(link.with_name("index.html"), target)
    for other in tuple(_rivals(link)):
        other.unlink()
    return link


def _place_link(link: Path, target: Path) -> None:
    fresh = link.with_name(f".{link.name}.tmp")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


def _rivals(link: Path) -> Iterator[Path]:
    """Yield the other links of the same release beside `link`."""
    yield from (
        other for other in matching(link.parent, "*.whl") if other != link and _same_slot(other.name, link.name)
    )


def target_of(link: Path) -> Path | None:
    """Return what a symbolic link says, None for anything else; it may go at any time."""
    try:
        return link.readlink()
    except OSError:
        return None


def _real(path: Path) -> Path:
    """Return the path with its links followed; `Path.resolve` raises for a link to itself before Python 3.13."""
    return Path(os.path.realpath(path))


def _place_in_index(index: Path, target: Path) -> Path:
    line = f'<a href="{quote(target.as_posix())}">{escape(target.name)}</a><br>'
    lines = index.read_text(encoding="utf-8").splitlines() if index.is_file() else ["<!DOCTYPE html>"]
    kept = [old for old in lines if not (_href(old) and _same_slot(_href(old), target.name))]
    write_text(index, "\n".join([*kept, line]) + "\n")
    return index


def _take_out_of_index(index: Path, name: str) -> None:
    lines = index.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if _href(line) != name]
    if kept != lines:
        write_text(index, "\n".join(kept) + "\n")


def _href(line: str) -> str:
    """Return the wheel's name in a line of an index, or nothing."""
    _, found, rest = line.partition('">')
    return rest.partition("</a>")[0] if found else ""


def _same_slot(one: str, other: str) -> bool:
    """Tell whether two wheels are the same release for the same interpreter, whatever their local versions say."""
    try:
        (name, version, build, tags), (name2, version2, build2, tags2) = map(parse_wheel_filename, (one, other))
    except InvalidWheelFilename:
        return False
    return (name, version.public, build, tags) == (name2, version2.public, build2, tags2)
