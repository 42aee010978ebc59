"""Unpack source archives that may be hostile: nothing outside the folder, no devices, no bombs, all or nothing.

Python's own extraction filter is the second net, not the first: until 3.11.13, 3.12.11 and 3.13.4 chains of links led
it astray (CVE-2025-4330, CVE-2025-4517). Here no member is ever written through a link, and no link leaves the tree.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import os
import posixpath
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from archpatch.errors import FetchFailed, ToolchainError
from archpatch.storage.atomic import disk_errors

__all__ = ["MAX_BYTES", "MAX_MEMBERS", "unpack"]

#: Some way above the largest sdist with CUDA sources known (flash-attn with CUTLASS: 120 MB, 6,000 files).
MAX_BYTES = 4 * 2**30
MAX_MEMBERS = 200_000

_CHUNK = 2**20
#: What tarfile reads in one piece, other than file contents, are headers; a longer one is meant to fill the memory.
_MAX_HEADER = 16 * 2**20
_MAX_LINK = 4096
#: Enough for every level up to 19; `zstd --ultra` and `--long` ask for more.
_ZSTD_WINDOW = 8 * 2**20
#: The one failure to write that is not the archive's fault.
_FULL = (errno.ENOSPC, errno.EDQUOT)

#: What a damaged archive raises, besides `OSError`, in tarfile, zipfile and the decompressors.
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    struct.error,
    ValueError,
    OverflowError,
    NotImplementedError,
    RuntimeError,
)

_TAR_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.zst")
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class _Refused(Exception):
    """A member that no honest source archive holds."""


@dataclass(slots=True, kw_only=True)
class _Budget:
    """How much may still be unpacked."""

    bytes_left: int
    members_left: int

    def take_bytes(self, count: int) -> None:
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise _Refused("it unpacks to more than any source archive: a decompression bomb?")

    def take_member(self) -> None:
        self.members_left -= 1
        if self.members_left < 0:
            raise _Refused("it has more members than any source archive: a decompression bomb?")


def unpack(archive: Path, into: Path, *, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS) -> None:
    """Unpack `archive` (`.tar.gz`, `.tgz`, `.tar.bz2`, `.tar.zst`, `.zip`) into the new folder `into`.

    The limits are counted while unpacking, whatever the headers say. Refused are absolute names, `..`, links that
    leave the tree, members below a link, devices and everything else that is no file, folder or link; set-user-id
    bits are dropped. Raises `FetchFailed` for a hostile or damaged archive and `DiskFull`; then `into` is not left.
    A `.tar.zst` needs the extra `cache`, without which it raises `ToolchainError`.
    """
    if not hasattr(tarfile, "data_filter"):
        raise ToolchainError(
            "this Python cannot unpack archives safely: tarfile has no extraction filter",
            remedy="Update Python to the latest release of its series (3.10.12, 3.11.4 or later).",
        )
    budget = _Budget(bytes_left=max_bytes, members_left=max_members)
    with disk_errors(into):
        into.mkdir(parents=True)
        try:
            with _failures_named(archive):
                if archive.name.lower().endswith(".zip"):
                    _unpack_zip(archive, into, budget)
                else:
                    _unpack_tar(archive, into, budget)
        except BaseException:
            shutil.rmtree(into, ignore_errors=True)
            raise


@contextmanager
def _failures_named(archive: Path) -> Iterator[None]:
    try:
        yield
    except _Refused as error:
        raise FetchFailed(
            f"{archive} is not safe to unpack: {error}",
            remedy="Do not build it. Check where it comes from, and compare its sha256 with the project's own.",
        ) from None
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            raise
        raise FetchFailed(
            f"{archive} cannot be unpacked, it may be damaged: {str(error) or type(error).__name__}",
            remedy="Fetch it again; if that does not help, report it to those who published it.",
        ) from error


# --- tar ---------------------------------------------------------------------------------------


class _Stream(Protocol):
    """What of a decompressor is used."""

    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class _Zstd:
    """A decompressor for Zstandard; how far back a stream may refer is bounded, since all of that is held in memory."""

    def __init__(self, archive: Path) -> None:
        try:
            import zstandard  # noqa: PLC0415 - only those who have such archives have it
        except ImportError:
            raise ToolchainError(
                f"{archive} is compressed by zstd, which this Python cannot read",
                remedy="Install the extra: pip install 'archpatch[cache]'.",
            ) from None
        self._error = zstandard.ZstdError
        self._file = archive.open("rb")
        self._reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).stream_reader(self._file)

    def read(self, size: int, /) -> bytes:
        try:
            return self._reader.read(size)
        except self._error as error:
            raise tarfile.ReadError(str(error)) from None

    def close(self) -> None:
        self._file.close()


def _opened(archive: Path) -> _Stream:
    name = archive.name.lower()
    if name.endswith(".zst"):
        return _Zstd(archive)
    return bz2.BZ2File(archive) if name.endswith(".bz2") else gzip.GzipFile(archive)


class _Forward:
    """A decompressed stream that is only read forwards, and counted: rewinding is how a small tar does much work."""

    def __init__(self, raw: _Stream, budget: _Budget) -> None:
        self._raw = raw
        self._budget = budget
        self._position = 0
        self._last = b""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MAX_HEADER:
            raise _Refused("it has a header of absurd size")
        data = self._raw.read(size)
        self._position += len(data)
        self._budget.take_bytes(len(data))
        self._last = data
        return data

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> int:
        if position < self._position:
            raise _Refused("its members refer backwards")
        while self._position < position and self.read(min(_CHUNK, position - self._position)):
            pass
        return self._position

    def finish(self) -> None:
        """Read to the end, where the compressor's checksum is; raise where members follow that were not understood.

        tarfile takes a damaged header for the end of the archive. The true end is blocks of zeros.
        """
        while self._last:
            if self._last.strip(b"\0"):
                raise tarfile.ReadError("a member's header is damaged")
            self.read(_CHUNK)


def _unpack_tar(archive: Path, into: Path, budget: _Budget) -> None:
    if not archive.name.lower().endswith(_TAR_SUFFIXES):
        raise tarfile.ReadError(f"it is none of {', '.join((*_TAR_SUFFIXES, '.zip'))}")
    with closing(_opened(archive)) as raw:
        stream = _Forward(raw, budget)
        # mypy: typeshed wants a whole file object; tarfile only reads, seeks and tells.
        with tarfile.open(fileobj=stream, mode="r:", encoding="utf-8") as tar:  # type: ignore[call-overload]
            for member in tar:
                budget.take_member()
                _extract_member(tar, member, into)
        stream.finish()


def _extract_member(tar: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    target = _target(into, member.name)
    if target is None:
        return
    if member.issym():
        _check_link(member.name, member.linkname)
    elif member.islnk():
        linked = _target(into, member.linkname)
        if linked is None or not linked.is_file():
            raise _Refused(f"{member.name!r} is a hard link to {member.linkname!r}, which is no earlier file")
    elif member.issparse() or not (member.isfile() or member.isdir()):
        raise _Refused(f"{member.name!r} is no plain file, folder or link")
    tar.extract(member, into, filter="data")


# --- zip ---------------------------------------------------------------------------------------


def _unpack_zip(archive: Path, into: Path, budget: _Budget) -> None:
    with zipfile.ZipFile(archive) as source:
        for info in source.infolist():
            budget.take_member()
            # A NUL and what follows it are cut off by zipfile: the name as stored is the one to judge.
            target = _target(into, info.orig_filename)
            if target is not None:
                _extract_zip_member(source, info, target=target, budget=budget)


def _extract_zip_member(source: zipfile.ZipFile, info: zipfile.ZipInfo, *, target: Path, budget: _Budget) -> None:
    if info.compress_type not in _ZIP_METHODS:
        raise zipfile.BadZipFile(f"{info.filename!r} is compressed by method {info.compress_type}")
    mode = info.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if info.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open(info) as content:
        if kind == stat.S_IFLNK:
            link = os.fsdecode(content.read(_MAX_LINK + 1))
            _check_link(info.filename, link)
            target.symlink_to(link)
        elif kind in (0, stat.S_IFREG):
            _copy(content, target, budget)
            target.chmod(0o755 if mode & 0o100 else 0o644)
        else:
            raise _Refused(f"{info.filename!r} is no file, folder or link")


def _copy(content: IO[bytes], target: Path, budget: _Budget) -> None:
    with target.open("wb") as sink:
        while chunk := content.read(_CHUNK):
            budget.take_bytes(len(chunk))
            sink.write(chunk)


# --- names -------------------------------------------------------------------------------------


def _target(into: Path, name: str) -> Path | None:
    """Return where the member `name` goes, None for the folder itself; never through or onto a link."""
    if name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise _Refused(f"{name!r} leads out of the folder")
    target = into
    for part in name.split("/"):
        if part in ("", "."):
            continue
        target = target / part
        if target.is_symlink():
            raise _Refused(f"{name!r} goes through a link")
    return None if target == into else target


def _check_link(name: str, link: str) -> None:
    """Refuse a symbolic link that leaves the archive's top-level folder, which is what a build gets to see.

    `..` is taken only at the link's start, where it goes up real folders (no member lies below a link): after a name
    that is itself a link, it would go up from elsewhere.
    """
    parts = link.split("/")
    ups = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    depth = len([part for part in posixpath.dirname(name).split("/") if part not in ("", ".")])
    if not link or len(link) > _MAX_LINK or link.startswith("/") or "\0" in link:
        raise _Refused(f"{name!r} is a link to {link[:200]!r}")
    if ".." in parts[ups:] or (ups > 0 and ups >= depth):
        raise _Refused(f"{name!r} is a link out of the folder, to {link[:200]!r}")
