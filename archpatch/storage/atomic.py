"""Files that are there whole or not at all, whenever the process dies."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from archpatch.errors import ArchpatchError, DiskFull, MissingFile, UsageError

__all__ = [
    "check_writable",
    "disk_errors",
    "explained",
    "sha256_of",
    "staging_folder",
    "sync_folder",
    "write_bytes",
    "write_text",
]

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
_MISSING: Final = (errno.ENOENT, errno.ENOTDIR)
_CHUNK: Final = 1 << 20


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file, or the file that a link points at, by `content` in one step; its mode is kept.

    After a return the content is on the disk; after a crash the file is the old one or the new one. A device or a pipe
    stays what it is. Raises `DiskFull`, `UsageError` where the folder may not be written, and `MissingFile` where there
    is none.
    """
    target = path.resolve()
    if _takes_bytes(target):
        with disk_errors(target), target.open("wb") as stream:
            stream.write(content)
        return
    staged = _staged(target)
    with disk_errors(target):
        try:
            _write_new(staged, content, mode=target.stat().st_mode & 0o7777 if target.exists() else None)
            staged.replace(target)
        finally:
            staged.unlink(missing_ok=True)
        sync_folder(target.parent)


def write_text(path: Path, content: str) -> None:
    """Replace the file by `content` in UTF-8, line ends as they are; otherwise as `write_bytes`."""
    write_bytes(path, content.encode("utf-8"))


def check_writable(path: Path) -> None:
    """Raise what `write_bytes` would raise now; nothing is left."""
    target = path.resolve()
    if target.is_dir():
        raise UsageError(f"{path} is a folder", remedy="Name a file.")
    if _takes_bytes(target):
        return
    probe = _staged(target)
    with disk_errors(path):
        # Nothing but the try tells of network file systems, quotas and what root may not do.
        _write_new(probe, b"", mode=None)
        probe.unlink()


def _takes_bytes(target: Path) -> bool:
    """Whether something is there that is no file, such as `/dev/null`: root could put a file in its place."""
    return target.exists() and not (target.is_file() or target.is_dir())


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """Yield a new hidden folder beside `target`, on the same file system, to rename from.

    It is removed at the end, however that comes about, with all that was not renamed out of it. Raises as
    `write_bytes` where it cannot be made.
    """
    folder = target.with_name(f".{target.name}.{os.urandom(4).hex()}.staging")
    with disk_errors(target):
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Put the names in `folder` on the disk, so that a rename survives a crash."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have no such thing as a folder's own sync, and say so with EINVAL.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of the file's bytes, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise the project's errors, naming `path`, for what the system says of a full, read-only or missing folder."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(f"no space is left for {path}", remedy="Free some, or choose another place.") from error
        # Some file systems, such as /proc, say that a file is missing where none can be made.
        if error.errno in _FORBIDDEN or (error.errno in _MISSING and path.parent.is_dir()):
            raise UsageError(f"{path} may not be written: {error.strerror}", remedy="Choose another place.") from error
        if error.errno in _MISSING:
            raise MissingFile(f"{path} has no folder to be in", remedy=f"Make {path.parent} first.") from error
        raise


def explained(error: OSError) -> ArchpatchError:
    """Return what the system said as an error of ours; one that names no file is a bug, and is raised."""
    if error.errno in _FULL:
        room = "Free some, or point TMPDIR (work), ARCHPATCH_CACHE (downloads) or --wheelhouse elsewhere."
        return DiskFull(f"no space is left for {error.filename or 'a temporary file'}", remedy=room)
    if error.filename is None:
        raise error
    return UsageError(f"{error.filename}: {error.strerror}", remedy="Check the path and who may use it.")


def _staged(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")


def _write_new(path: Path, content: bytes, *, mode: int | None) -> None:
    """Write a file that does not exist yet, with `mode`, or with what the umask leaves of 0o666."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with open(descriptor, "wb") as file:  # noqa: PTH123  # a descriptor, no path
        if mode is not None:
            os.fchmod(descriptor, mode)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
