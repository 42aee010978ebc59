"""A wheel's name, version and tags, its RECORD, and the same wheel under another local version.

Sources: the binary distribution format and the recorded-projects specifications on packaging.python.org, PEP 440.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from packaging.metadata import parse_email
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from archpatch.errors import UnreadableBinary
from archpatch.wheels.members import dist_info, opened_wheel, read_file
from archpatch.wheels.repacking import target_name, with_local, write_wheel
from archpatch.wheels.scratch import opened_zip, staged

__all__ = ["WheelMetadata", "read_metadata", "relabel", "verify_record"]


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
        folder = dist_info(archive, wheel=wheel)
        raw, _ = parse_email(read_file(archive, f"{folder}/METADATA", wheel=wheel))
    name, version = raw.get("name", ""), raw.get("version", "")
    if canonicalize_name(name) != named.name or not _is_version(version, named.version):
        raise UnreadableBinary(
            f"{wheel}: METADATA says {name} {version}, the file name {named.name} {named.version}",
            remedy="Give the file the name that it was built with.",
        )
    return replace(named, requires_python=raw.get("requires_python"))


def verify_record(wheel: Path) -> None:
    """Check that RECORD and the members are the same files with the same hashes; raise `UnreadableBinary` if not."""
    with opened_wheel(wheel) as source:
        source.verify()


def relabel(wheel: Path, local: str | None, into: Path) -> Path:
    """Write the wheel with the local version `local` (None: without one) into the folder `into`, return its path.

    METADATA's `Version`, the names of the file and of its `.dist-info` and `.data` folders, and RECORD change;
    all else keeps its bytes, executables stay executable. The same wheel gives the same bytes: members are sorted,
    dated 1980 or `SOURCE_DATE_EPOCH`. Signatures of RECORD, which would no longer hold, are left out. Raises
    `UnreadableBinary` for a wheel that does not verify, `UsageError` for no valid local version, `DiskFull`.
    """
    version = with_local(read_metadata(wheel).version, local)
    target = into / target_name(wheel, version)
    with staged(target) as path, opened_wheel(wheel) as source:
        source.verify()
        write_wheel(source, path, version)
    return target


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
