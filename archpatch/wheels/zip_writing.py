"""Zip archives written on several cores, with the same bytes for the same content on any number of them.

The zipfile module compresses on one core, and cannot take over what another archive has compressed already. Here it
writes the directory alone.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Final, Protocol
from zipfile import ZIP64_LIMIT, ZIP_DEFLATED, ZipFile, ZipInfo

__all__ = ["Readable", "ZipWriter", "workers"]

#: Bytes that are deflated at once; each piece has the end of the one before as its dictionary.
_PIECE: Final = 1 << 20
_DICTIONARY: Final = 1 << 15
_ZEROS: Final = bytes(_PIECE)
#: Pieces that are read before the first of them is written: what a wheel takes of memory, in MiB.
_MOST_WAITING: Final = 32
#: Measured on one core: 98 MB/s of cubins, and a tenth of the time of a whole wheel less than level 4. The wheel is
#: 4 % larger than at level 4, and 8 % larger than at level 6, which has 38 MB/s.
_LEVEL: Final = 2
#: No header and no checksum of zlib's own, and a window of 32 KiB.
_RAW: Final = -15
_MOST_WORKERS: Final = 8
#: A local header ends in the lengths of the name and of the extra field, which follow it.
_LOCAL_HEADER: Final = struct.Struct("<26xHH")


class Readable(Protocol):
    """What is read from: fewer bytes than were asked for come only at its end."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes."""


@contextmanager
def workers() -> Iterator[Executor]:
    """Yield threads, one for each core that this process has, and at most eight: zlib and hashlib run side by side.

    What has not begun when the body ends, in an error, never does.
    """
    pool = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), _MOST_WORKERS))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True)
class ZipWriter:
    """An archive that is being written to a file; `pool` are the threads that compress."""

    file: IO[bytes]
    archive: ZipFile
    pool: Executor

    @classmethod
    @contextmanager
    def to(cls, path: Path, pool: Executor) -> Iterator[ZipWriter]:
        """Write the archive `path`; its directory is written when the body ends."""
        with path.open("wb") as file, ZipFile(file, "w") as archive:
            yield cls(file, archive, pool)

    def add(self, entry: ZipInfo, content: Readable, *, size: int) -> None:
        """Compress `content` to its end; `size` is what it is expected to be, in bytes."""
        entry.compress_type = ZIP_DEFLATED
        entry.CRC = entry.file_size = entry.compress_size = 0
        entry.header_offset = self.file.tell()
        # What cannot be compressed becomes larger, by much less than a thousandth.
        is_large = size + size // 1000 > ZIP64_LIMIT
        self.file.write(entry.FileHeader(is_large))
        start = self.file.tell()
        for piece, packed in _deflated(content, self.pool):
            entry.CRC = zlib.crc32(piece, entry.CRC)
            entry.file_size += len(piece)
            self.file.write(packed)
        end = self.file.tell()
        entry.compress_size = end - start
        self.file.seek(entry.header_offset)
        self.file.write(entry.FileHeader(is_large))
        self.file.seek(end)
        self._list(entry)

    def copy(self, entry: ZipInfo, member: ZipInfo, source: ZipFile) -> None:
        """Take over a member of the open archive `source` as it is compressed there."""
        entry.compress_type, entry.CRC = member.compress_type, member.CRC
        entry.file_size, entry.compress_size = member.file_size, member.compress_size
        entry.header_offset = self.file.tell()
        self.file.write(entry.FileHeader())
        if source.fp is None:
            raise ValueError("the archive is closed")
        # Of the file that is open: another may have its name by now.
        descriptor, offset = source.fp.fileno(), member.header_offset
        name, extra = _LOCAL_HEADER.unpack(os.pread(descriptor, _LOCAL_HEADER.size, offset))
        offset += _LOCAL_HEADER.size + name + extra
        end = offset + member.compress_size
        while offset < end and (piece := os.pread(descriptor, min(end - offset, _PIECE), offset)):
            offset += len(piece)
            self.file.write(piece)
        self._list(entry)

    def _list(self, entry: ZipInfo) -> None:
        """Put the entry that was just written into the directory, which so far would start behind it."""
        self.archive.filelist.append(entry)
        self.archive.start_dir = self.file.tell()


def _deflated(content: Readable, pool: Executor) -> Iterator[tuple[bytes, bytes]]:
    """Yield each piece of the content, and what it is deflated to; the second parts make up one deflate stream."""
    waiting: deque[tuple[bytes, Future[bytes]]] = deque()
    before, piece = b"", content.read(_PIECE)
    while True:
        following = content.read(_PIECE) if piece else b""
        waiting.append((piece, pool.submit(_deflate, piece, before[-_DICTIONARY:], is_last=not following)))
        if not following:
            break
        before, piece = piece, following
        if len(waiting) == _MOST_WAITING:
            first, packed = waiting.popleft()
            yield first, packed.result()
    yield from ((first, packed.result()) for first, packed in waiting)


def _deflate(piece: bytes, dictionary: bytes, *, is_last: bool) -> bytes:
    """Deflate one piece, up to a whole byte, after a piece that ends in `dictionary`."""
    if piece == _ZEROS and not is_last:
        return _deflated_zeros()
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW, zdict=dictionary)
    return compressor.compress(piece) + compressor.flush(zlib.Z_FINISH if is_last else zlib.Z_SYNC_FLUSH)


@cache
def _deflated_zeros() -> bytes:
    """Return what a piece of zeros is deflated to: most of a slimmed library."""
    compressor = zlib.compressobj(zlib.Z_BEST_COMPRESSION, zlib.DEFLATED, _RAW)
    return compressor.compress(_ZEROS) + compressor.flush(zlib.Z_SYNC_FLUSH)
