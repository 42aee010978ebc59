"""One lane's entries in one `.tar.zst`: the same content gives the same bytes, and what comes out is checked."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import IO

from archpatch.errors import CacheRefused, FetchFailed, ToolchainError
from archpatch.kernel_cache.lane import Lane
from archpatch.kernel_cache.manifest import NAME, Manifest
from archpatch.storage.archives import unpack
from archpatch.storage.atomic import disk_errors, sha256_of, staging_folder
from archpatch.storage.listing import below, matching

__all__ = ["PER_FILE", "SUFFIX", "Content", "is_old", "opened", "require_zstd", "sweep", "write_archive"]

SUFFIX = ".tar.zst"
#: What a file takes beside its content, at most: two headers of tar's, padding, a line of the manifest (bytes).
PER_FILE = 3072
#: What an archive takes beside its files: the rest of the manifest, the end.
_FRAME = 1 << 20
#: The time of every file in an archive, 1980-01-01: older than whatever a build compares it with.
_TIME = 315532800
#: A kernel of Triton is eight files.
_MOST_FILES = 1_000_000
_LEVEL = 6
#: Seconds after which a lock that nobody holds, or a staging folder, is taken for one that a killed process left.
_ORPHANED = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What goes into an archive for one file."""

    name: str
    data: bytes
    executable: bool


def write_archive(path: Path, content: Iterator[Content], manifest: Mapping[str, object]) -> Manifest:
    """Write `content`, in the order of names, and a manifest with the fields `manifest` and the files' hashes.

    The archive appears whole. Raises `ToolchainError` without the extra `cache`, and `DiskFull`.
    """
    files: dict[str, str] = {}
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, f".*{SUFFIX}.*.staging")
    with staging_folder(path) as staging, disk_errors(path):
        staged = staging / path.name
        with staged.open("wb") as file:
            with _compressed(file) as sink, tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as tar:
                for each in content:
                    _add(tar, each)
                    files[each.name] = sha256(each.data).hexdigest()
                written = Manifest(files=files, **manifest)  # type: ignore[arg-type] # the caller's fields
                _add(tar, Content(name=NAME, data=written.to_json(), executable=False))
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    return written


@contextmanager
def opened(archive: Path, lane: Lane, *, beside: Path, limit: int) -> Iterator[tuple[Manifest, Path]]:
    """Yield the manifest of an archive and the folder, in `beside`, where its files lie for a while.

    Raises `CacheRefused` where it is hostile, damaged, of another lane, holds anything but what its manifest says, or
    more than `limit` bytes, each file counted with `PER_FILE`.
    """
    with staging_folder(beside / "restore") as staging:
        folder = staging / "content"
        try:
            unpack(archive, folder, max_bytes=limit + _FRAME, max_members=_MOST_FILES)
        except FetchFailed as error:
            raise CacheRefused(error.message, remedy=_REMEDY) from None
        try:
            manifest = Manifest.read(folder / NAME)
            _check(folder, manifest, lane)
        except CacheRefused as error:
            raise CacheRefused(f"{archive}: {error.message}", remedy=_REMEDY) from None
        yield manifest, folder


def sweep(folder: Path, pattern: str = ".*.staging") -> None:
    """Remove the staging folders in `folder` that killed processes left, to which nobody writes any more."""
    for staging in matching(folder, pattern):
        if all(map(is_old, (staging, *below(staging)))):
            shutil.rmtree(staging, ignore_errors=True)


def is_old(path: Path) -> bool:
    """Tell whether something was last written so long ago that whoever did is gone."""
    try:
        return path.lstat().st_mtime < time.time() - _ORPHANED
    except OSError:
        return False


_REMEDY = "Delete it, and look at who can write there: a cache of kernels is code that will run."


def require_zstd() -> ModuleType:
    """Return the module that compresses. Raises `ToolchainError` without it, which a job should hear at its start."""
    try:
        import zstandard  # noqa: PLC0415 - the extra `cache`
    except ImportError:
        raise ToolchainError(
            "a cache of kernels is compressed by zstd, which this Python cannot write",
            remedy="Install the extra: pip install 'archpatch[cache]'.",
        ) from None
    return zstandard


@contextmanager
def _compressed(file: IO[bytes]) -> Iterator[IO[bytes]]:
    zstandard = require_zstd()
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    with compressor.stream_writer(file, closefd=False) as sink:
        yield sink


def _add(tar: tarfile.TarFile, content: Content) -> None:
    info = tarfile.TarInfo(content.name)
    info.size, info.mtime, info.mode = len(content.data), _TIME, 0o755 if content.executable else 0o644
    tar.addfile(info, io.BytesIO(content.data))


def _check(folder: Path, manifest: Manifest, lane: Lane) -> None:
    """Raise `CacheRefused` unless `folder` is of the lane and holds the manifest's files, and nothing else."""
    if manifest.lane != lane:
        raise CacheRefused(f"it is of another lane: {lane.difference(manifest.lane)}")
    (folder / NAME).unlink()
    expected, found = manifest.files, set()
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place, name)
            if path.is_symlink():
                raise CacheRefused(f"it holds a link, {name!r}")
        for name in names:
            path = Path(place, name)
            if path.stat().st_nlink > 1:
                raise CacheRefused(f"it holds a hard link, {name!r}")
            relative = str(path.relative_to(folder))
            if expected.get(relative) != sha256_of(path):
                raise CacheRefused(f"{relative!r} is not what the manifest says")
            found.add(relative)
    if found != expected.keys():
        raise CacheRefused(f"{len(expected.keys() - found)} files of the manifest are missing")
