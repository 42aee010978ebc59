"""Zip archives and mapped files, opened for the length of a call, with archpatch's own errors."""

from __future__ import annotations

import errno
import lzma
import mmap
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile, ZipInfo

from archpatch.errors import DiskFull, MissingFile, UnreadableBinary

__all__ = ["full_disk", "mapped", "mapped_member", "opened_zip", "staged"]

_ZEROS = bytes(1 << 18)


@contextmanager
def opened_zip(path: Path) -> Iterator[ZipFile]:
    """Open an archive for reading; damage found in the body raises `UnreadableBinary`, no file `MissingFile`."""
    try:
        with ZipFile(path) as archive:
            yield archive
    except FileNotFoundError:
        raise MissingFile(f"{path} does not exist", remedy="Name a wheel.") from None
    # zipfile says RuntimeError for an encrypted member, NotImplementedError (one too) for a strange compression.
    except (BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise UnreadableBinary(f"{path} cannot be unpacked: {error}", remedy="Fetch or build it again.") from error


@contextmanager
def mapped(file: IO[bytes], *, to_change: bool = False) -> Iterator[mmap.mmap]:
    """Map an open file, which must not be empty; read-only, or so that what is changed in the map is in the file."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if to_change else mmap.ACCESS_READ) as data:
        yield data


@contextmanager
def mapped_member(archive: ZipFile, member: ZipInfo) -> Iterator[mmap.mmap]:
    """Unpack a member that is not empty into a temporary file and map that; raises `DiskFull`."""
    with tempfile.TemporaryFile() as file:
        with archive.open(member) as packed, full_disk(Path(tempfile.gettempdir())):
            _copy_but_zeros(packed, file)
            file.flush()
        with mapped(file) as data:
            yield data


def _copy_but_zeros(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy to an empty file, with holes where there are zeros: most of a slimmed library."""
    while piece := source.read(len(_ZEROS)):
        if piece == _ZEROS:
            target.seek(len(piece), os.SEEK_CUR)
        else:
            target.write(piece)
    target.truncate()


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield a name beside `target` to write to, which becomes `target` if the body ends well, and is gone if not.

    Raises `MissingFile` where there is no folder for it, and `DiskFull`.
    """
    if not target.parent.is_dir():
        raise MissingFile(f"{target.parent} is no folder", remedy="Make it first.")
    path = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        with full_disk(target.parent):
            yield path
            path.replace(target)
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Raise `DiskFull` for what the system reports as no space left or a quota spent in `folder`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(f"no space is left in {folder}", remedy="Free some, or point TMPDIR elsewhere.") from error
