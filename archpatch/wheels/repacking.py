"""A wheel written anew: other files in the place of some, another version, and the same bytes each time."""

from __future__ import annotations

import csv
import io
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipInfo

from packaging.version import InvalidVersion, Version

from archpatch.errors import ConfigError, UsageError
from archpatch.wheels.members import HashedReader, OpenWheel
from archpatch.wheels.zip_writing import ZipWriter, workers

__all__ = ["target_name", "with_local", "write_wheel"]

_FIRST_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
_UNIX: Final = 3
_EXECUTABLE: Final = 0o111
_MODES: Final = 0o777
_PLAIN_MODE: Final = 0o644
_EXECUTABLE_MODE: Final = 0o755


def target_name(wheel: Path, version: Version) -> str:
    """Return the file name of the same wheel under another version."""
    distribution, _, *rest = wheel.name.split("-")
    return "-".join([distribution, str(version), *rest])


def with_local(version: Version, local: str | None) -> Version:
    """Return the version with another local part, or without one. Raises `UsageError` where PEP 440 has no such."""
    if local is None:
        return Version(version.public)
    try:
        return Version(f"{version.public}+{local}")
    except InvalidVersion:
        raise UsageError(
            f"{local!r} is no local version", remedy="PEP 440 allows letters and digits, with dots between them."
        ) from None


def write_wheel(
    wheel: OpenWheel,
    path: Path,
    version: Version,
    *,
    changed: Mapping[str, Path] | None = None,
    keep_modes: bool = False,
) -> None:
    """Write a wheel, whose files were checked before, under another version to `path`.

    The files in `changed`, by name, get the bytes of other files. What is deflated already is taken over as it is.
    Permissions become those of a plain or an executable file, whatever umask the wheel was built under, or stay with
    `keep_modes`.
    """
    date = _date()
    rows = []
    with workers() as pool, ZipWriter.to(path, pool) as archive:
        for member in wheel.members:
            mode = _mode(member, exactly=keep_modes)
            entry = _entry(wheel.renamed(member.filename, version), date=date, mode=mode)
            with _new_content(wheel, member, version, changed or {}) as content:
                if content is None:
                    archive.copy(entry, member, wheel.archive)
                    rows.append((entry.filename, wheel.hashes[member.filename], member.file_size))
                else:
                    archive.add(entry, content, size=member.file_size)
                    rows.append((entry.filename, content.spelled, content.size))
        record = wheel.renamed(f"{wheel.info}/RECORD", version)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*sorted(rows), (record, "", "")])
        rows_bytes = text.getvalue().encode()
        archive.add(_entry(record, date=date, mode=_PLAIN_MODE), io.BytesIO(rows_bytes), size=len(rows_bytes))


@contextmanager
def _new_content(
    wheel: OpenWheel, member: ZipInfo, version: Version, changed: Mapping[str, Path]
) -> Iterator[HashedReader | None]:
    """Yield what has to be compressed for a file, None where its bytes can be taken over."""
    if member.filename in changed:
        with changed[member.filename].open("rb") as file:
            yield HashedReader(file)
    elif member.filename == f"{wheel.info}/METADATA":
        yield HashedReader(io.BytesIO(_with_version(wheel.archive.read(member), version)))
    elif member.compress_type != ZIP_DEFLATED:
        with wheel.archive.open(member) as file:
            yield HashedReader(file)
    else:
        yield None


def _entry(name: str, *, date: tuple[int, int, int, int, int, int], mode: int) -> ZipInfo:
    entry = ZipInfo(name, date)
    entry.create_system = _UNIX
    entry.external_attr = (stat.S_IFREG | mode) << 16
    return entry


def _mode(member: ZipInfo, *, exactly: bool) -> int:
    """Return the permissions that a file gets; a wheel that no Unix wrote has none."""
    mode = stat.S_IMODE(member.external_attr >> 16) if member.create_system == _UNIX else 0
    if exactly and mode:
        return mode & _MODES
    return _EXECUTABLE_MODE if mode & _EXECUTABLE else _PLAIN_MODE


def _with_version(content: bytes, version: Version) -> bytes:
    """Replace the value of the `Version` header, and nothing else."""
    header = re.search(rb"(?im)^(Version:[ \t]*)[^\r\n]*", content)
    if header is None:
        raise AssertionError("METADATA was read before, so it has a version")
    return content[: header.start()] + header[1] + str(version).encode() + content[header.end() :]


def _date() -> tuple[int, int, int, int, int, int]:
    """Return the date of all members: `SOURCE_DATE_EPOCH` in UTC, or the first that a zip can hold."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not epoch:
        return _FIRST_ZIP_TIME
    if not epoch.isdecimal():
        raise ConfigError(f"SOURCE_DATE_EPOCH is {epoch!r}", remedy="Set it to seconds since 1970, or unset it.")
    return max(_FIRST_ZIP_TIME, time.gmtime(int(epoch))[:6])
