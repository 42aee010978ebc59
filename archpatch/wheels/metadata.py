"""A wheel's name, version and tags, its RECORD, and the same wheel under another local version.

Sources: the binary distribution format and the recorded-projects specifications on packaging.python.org, PEP 440.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import secrets
import stat
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from packaging.metadata import parse_email
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from archpatch.errors import ConfigError, MissingFile, UnreadableBinary, UsageError
from archpatch.wheels.scratch import full_disk, opened_zip

__all__ = ["WheelMetadata", "read_metadata", "relabel", "verify_record"]

#: Hashes that a RECORD may use; the specification rules out md5 and sha1.
_HASHES: Final = ("sha256", "sha384", "sha512")
_UNHASHED: Final = ("RECORD", "RECORD.jws", "RECORD.p7s")
_DIST_INFO_UNHASHED: Final = re.compile(r"^[^/]+\.dist-info/RECORD(\.jws|\.p7s)?$")
_FIRST_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
_UNIX: Final = 3
_EXECUTABLE: Final = 0o111
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelMetadata:
    """What a wheel's file name and its METADATA agree on; `name` is normalized, `tags` are sorted.

    `requires_python` is METADATA's alone, as it stands there.
    """

    name: str
    version: Version
    build: str
    tags: tuple[str, ...]
    requires_python: str | None = None


def read_metadata(wheel: Path) -> WheelMetadata:
    """Read what a wheel says of itself; raise `UnreadableBinary` where file name and METADATA differ."""
    named = _parse_name(wheel)
    with opened_zip(wheel) as archive:
        folder = _dist_info(archive, wheel=wheel)
        raw, _ = parse_email(_read(archive, f"{folder}/METADATA", wheel=wheel))
    name, version = raw.get("name", ""), raw.get("version", "")
    if canonicalize_name(name) != named.name or not _is_version(version, named.version):
        raise UnreadableBinary(
            f"{wheel}: METADATA says {name} {version}, the file name {named.name} {named.version}",
            remedy="Give the file the name that it was built with.",
        )
    return replace(named, requires_python=raw.get("requires_python"))


def verify_record(wheel: Path) -> None:
    """Check that RECORD and the members are the same files with the same hashes; raise `UnreadableBinary` if not."""
    with opened_zip(wheel) as archive:
        folder = _dist_info(archive, wheel=wheel)
        recorded = _read_record(_read(archive, f"{folder}/RECORD", wheel=wheel))
        members = Counter(member.filename for member in _hashed_members(archive, folder))
        wrong = {name for name, count in members.items() if count > 1} | (members.keys() ^ recorded.keys())
        if wrong:
            raise _not_verified(wheel, f"RECORD and the members differ in {', '.join(sorted(wrong)[:3])}")
        for name, digest in recorded.items():
            algorithm = digest.partition("=")[0]
            if algorithm not in _HASHES:
                raise _not_verified(wheel, f"RECORD has no sha256 for {name}")
            with archive.open(name) as content:
                if _copy_hashed(content, None, algorithm=algorithm)[0] != digest:
                    raise _not_verified(wheel, f"{name} is not what RECORD says")


def relabel(wheel: Path, local: str | None, into: Path) -> Path:
    """Write the wheel with the local version `local` (None: without one) into the folder `into`, return its path.

    METADATA's `Version`, the names of the file and of its `.dist-info` and `.data` folders, and RECORD change;
    all else keeps its bytes, executables stay executable. The same wheel gives the same bytes: members are sorted,
    dated 1980 or `SOURCE_DATE_EPOCH`, packed anew. Signatures of RECORD, which would no longer hold, are left out.
    Raises `UnreadableBinary` for a wheel that does not verify, `UsageError` for no valid local version, `DiskFull`.
    """
    verify_record(wheel)
    version = _with_local(read_metadata(wheel).version, local)
    if not into.is_dir():
        raise MissingFile(f"{into} is no folder", remedy="Make it first.")
    distribution, _, *rest = wheel.name.split("-")
    target = into / "-".join([distribution, str(version), *rest])
    staged = into / f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        with full_disk(into), opened_zip(wheel) as source, ZipFile(staged, "w", ZIP_DEFLATED) as archive:
            _copy_members(source, archive, version=version, folder=_dist_info(source, wheel=wheel))
        staged.replace(target)
    finally:
        staged.unlink(missing_ok=True)
    return target


def _copy_members(source: ZipFile, archive: ZipFile, *, version: Version, folder: str) -> None:
    """Copy all under the new names, the dist-info folder last and RECORD at the very end, as the format recommends."""
    stem = folder.removesuffix(".dist-info")
    new_stem = f"{stem.rpartition('-')[0]}-{version}"
    date = _date()
    rows = []
    for member in sorted(_hashed_members(source, folder), key=lambda each: (_top(each) == folder, each.filename)):
        name = re.sub(rf"^{re.escape(stem)}(?=\.(?:dist-info|data)/)", new_stem, member.filename)
        metadata = member.filename == f"{folder}/METADATA"
        content = _with_version(source.read(member), version) if metadata else None
        entry = _entry(name, date=date, executable=_is_executable(member))
        entry.file_size = member.file_size
        with io.BytesIO(content) if content else source.open(member) as old, archive.open(entry, "w") as new:
            digest, size = _copy_hashed(old, new)
        rows.append((name, digest, size))
    name = f"{new_stem}.dist-info/RECORD"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*sorted(rows), (name, "", "")])
    archive.writestr(_entry(name, date=date, executable=False), text.getvalue())


def _copy_hashed(source: IO[bytes], target: IO[bytes] | None, *, algorithm: str = "sha256") -> tuple[str, int]:
    """Read `source` to its end, into `target` if any; return its hash as RECORD spells it and its size in bytes."""
    digest, size = hashlib.new(algorithm), 0
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if target is not None:
            target.write(chunk)
    return f"{algorithm}={base64.urlsafe_b64encode(digest.digest()).rstrip(b'=').decode()}", size


def _hashed_members(archive: ZipFile, folder: str) -> list[ZipInfo]:
    """Return the members that RECORD hashes: every file but RECORD and its signatures."""
    unhashed = {f"{folder}/{name}" for name in _UNHASHED}
    return [member for member in archive.infolist() if not member.is_dir() and member.filename not in unhashed]


def _read_record(content: bytes) -> dict[str, str]:
    """Return the hash of each file in RECORD, less RECORD itself and its signatures."""
    rows = csv.reader(io.StringIO(content.decode("utf-8", "replace"), newline=""))
    hashes = {row[0]: row[1] if len(row) > 1 else "" for row in rows if row}
    return {name: digest for name, digest in hashes.items() if not _DIST_INFO_UNHASHED.search(name)}


def _with_version(content: bytes, version: Version) -> bytes:
    """Replace the value of the `Version` header, and nothing else."""
    header = re.search(rb"(?im)^(Version:[ \t]*)[^\r\n]*", content)
    if header is None:
        raise AssertionError("METADATA was read before, so it has a version")
    return content[: header.start()] + header[1] + str(version).encode() + content[header.end() :]


def _with_local(version: Version, local: str | None) -> Version:
    if local is None:
        return Version(version.public)
    try:
        return Version(f"{version.public}+{local}")
    except InvalidVersion:
        raise UsageError(
            f"{local!r} is no local version", remedy="PEP 440 allows letters and digits, with dots between them."
        ) from None


def _parse_name(wheel: Path) -> WheelMetadata:
    try:
        name, version, build, tags = parse_wheel_filename(wheel.name)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise UnreadableBinary(f"{wheel} has no wheel's name: {error}", remedy="Name a wheel.") from error
    build_tag = "".join(map(str, build))
    return WheelMetadata(name=name, version=version, build=build_tag, tags=tuple(sorted(map(str, tags))))


def _is_version(text: str, version: Version) -> bool:
    try:
        return Version(text) == version
    except InvalidVersion:
        return False


def _dist_info(archive: ZipFile, *, wheel: Path) -> str:
    """Return the name of the wheel's only `.dist-info` folder."""
    found = sorted({_top(member) for member in archive.infolist() if _top(member).endswith(".dist-info")})
    if len(found) != 1:
        raise _not_verified(wheel, f"one .dist-info folder is expected, found: {', '.join(found) or 'none'}")
    return found[0]


def _top(member: ZipInfo) -> str:
    return member.filename.partition("/")[0]


def _read(archive: ZipFile, name: str, *, wheel: Path) -> bytes:
    try:
        return archive.read(name)
    except KeyError:
        raise _not_verified(wheel, f"there is no {name}") from None


def _entry(name: str, *, date: tuple[int, int, int, int, int, int], executable: bool) -> ZipInfo:
    entry = ZipInfo(name, date)
    entry.compress_type = ZIP_DEFLATED
    entry.create_system = _UNIX
    entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
    return entry


def _is_executable(member: ZipInfo) -> bool:
    return member.create_system == _UNIX and bool(member.external_attr >> 16 & _EXECUTABLE)


def _date() -> tuple[int, int, int, int, int, int]:
    """Return the date of all members: `SOURCE_DATE_EPOCH` in UTC, or the first that a zip can hold."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not epoch:
        return _FIRST_ZIP_TIME
    if not epoch.isdecimal():
        raise ConfigError(f"SOURCE_DATE_EPOCH is {epoch!r}", remedy="Set it to seconds since 1970, or unset it.")
    return max(_FIRST_ZIP_TIME, time.gmtime(int(epoch))[:6])


def _not_verified(wheel: Path, what: str) -> UnreadableBinary:
    return UnreadableBinary(f"{wheel}: {what}", remedy="The wheel is damaged or was edited; build or fetch it again.")
