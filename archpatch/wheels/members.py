"""An open wheel: its files, each checked against RECORD as it is read."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final
from zipfile import ZipFile, ZipInfo

from packaging.version import Version

from archpatch.errors import UnreadableBinary
from archpatch.wheels.scratch import opened_zip

__all__ = ["HashedReader", "OpenWheel", "dist_info", "not_verified", "opened_wheel", "read_file"]

#: Hashes that a RECORD may use; the specification rules out md5 and sha1.
_HASHES: Final = ("sha256", "sha384", "sha512")
_SIGNATURES: Final = ("RECORD.jws", "RECORD.p7s")
_UNHASHED: Final = ("RECORD", *_SIGNATURES)
#: zipfile copies what it has read ahead with every piece: 1 MiB takes 7 % longer.
_CHUNK: Final = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWheel:
    """A wheel whose RECORD and members name the same files; `info` is its `.dist-info` folder."""

    path: Path
    archive: ZipFile
    info: str
    hashes: Mapping[str, str]

    @property
    def members(self) -> list[ZipInfo]:
        """Every file but RECORD and its signatures, sorted, the dist-info folder last, as the format recommends."""
        return sorted(_hashed(self.archive, self.info), key=lambda each: (_top(each) == self.info, each.filename))

    @property
    def signatures(self) -> list[str]:
        """The files that sign RECORD."""
        signing = {f"{self.info}/{name}" for name in _SIGNATURES}
        return sorted(signing.intersection(self.archive.namelist()))

    def renamed(self, name: str, version: Version) -> str:
        """Return what a file is called in the same wheel under another version."""
        stem = self.info.removesuffix(".dist-info")
        folder, slash, rest = name.partition("/")
        if folder not in (self.info, f"{stem}.data"):
            return name
        return f"{stem.rpartition('-')[0]}-{version}{folder.removeprefix(stem)}{slash}{rest}"

    def verify(self) -> None:
        """Read every file. Raises `UnreadableBinary` where one is not what RECORD says."""
        for name in self.hashes:
            self.copy(name)

    def copy(self, name: str, target: IO[bytes] | None = None) -> None:
        """Read a file to its end, into `target` if any. Raises `UnreadableBinary` where it is not what RECORD says."""
        algorithm, _, _ = self.hashes[name].partition("=")
        with self.archive.open(name) as content:
            reader = HashedReader(content, algorithm)
            while piece := reader.read(_CHUNK):
                if target is not None:
                    target.write(piece)
        if reader.spelled != self.hashes[name]:
            raise not_verified(self.path, f"{name} is not what RECORD says")


class HashedReader:
    """A stream that hashes and counts what is read from it."""

    def __init__(self, source: IO[bytes], algorithm: str = "sha256") -> None:
        self._source = source
        self._digest = hashlib.new(algorithm)
        self.size = 0

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, fewer than `size` only at the end."""
        piece = self._source.read(size)
        self._digest.update(piece)
        self.size += len(piece)
        return piece

    @property
    def spelled(self) -> str:
        """The hash of what was read, as RECORD spells it: `sha256=`, and base64 without its padding."""
        digest = base64.urlsafe_b64encode(self._digest.digest()).rstrip(b"=")
        return f"{self._digest.name}={digest.decode()}"


@contextmanager
def opened_wheel(path: Path) -> Iterator[OpenWheel]:
    """Open a wheel for reading. Raises `UnreadableBinary` where RECORD and the members differ, `MissingFile`."""
    with opened_zip(path) as archive:
        info = dist_info(archive, wheel=path)
        hashes = _read_record(read_file(archive, f"{info}/RECORD", wheel=path), info)
        members = Counter(member.filename for member in _hashed(archive, info))
        wrong = {name for name, count in members.items() if count > 1} | (members.keys() ^ hashes.keys())
        if wrong:
            raise not_verified(path, f"RECORD and the members differ in {', '.join(sorted(wrong)[:3])}")
        for name, digest in hashes.items():
            if digest.partition("=")[0] not in _HASHES:
                raise not_verified(path, f"RECORD has no sha256 for {name}")
        yield OpenWheel(path=path, archive=archive, info=info, hashes=hashes)


def dist_info(archive: ZipFile, *, wheel: Path) -> str:
    """Return the name of the wheel's only `.dist-info` folder."""
    found = sorted({_top(member) for member in archive.infolist() if _top(member).endswith(".dist-info")})
    if len(found) != 1:
        raise not_verified(wheel, f"one .dist-info folder is expected, found: {', '.join(found) or 'none'}")
    return found[0]


def read_file(archive: ZipFile, name: str, *, wheel: Path) -> bytes:
    """Return the bytes of a file that a wheel must have."""
    try:
        return archive.read(name)
    except KeyError:
        raise not_verified(wheel, f"there is no {name}") from None


def not_verified(wheel: Path, what: str) -> UnreadableBinary:
    """Return the error for a wheel that is not whole."""
    return UnreadableBinary(f"{wheel}: {what}", remedy="The wheel is damaged or was edited; build or fetch it again.")


def _hashed(archive: ZipFile, info: str) -> Iterator[ZipInfo]:
    """Yield the members that RECORD hashes."""
    unhashed = {f"{info}/{name}" for name in _UNHASHED}
    return (member for member in archive.infolist() if not member.is_dir() and member.filename not in unhashed)


def _read_record(content: bytes, info: str) -> dict[str, str]:
    """Return the hash of each file in RECORD, less RECORD itself and its signatures."""
    rows = csv.reader(io.StringIO(content.decode("utf-8", "replace"), newline=""))
    hashes = {row[0]: row[1] if len(row) > 1 else "" for row in rows if row}
    return {name: digest for name, digest in hashes.items() if name not in {f"{info}/{each}" for each in _UNHASHED}}


def _top(member: ZipInfo) -> str:
    return member.filename.partition("/")[0]
