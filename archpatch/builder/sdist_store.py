"""The downloaded sdists that are kept: `<cache folder>/sdists/<sha256>/<file name>`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from archpatch.builder.requirement import ARCHIVE_SUFFIXES
from archpatch.storage.atomic import sha256_of
from archpatch.storage.cache_folder import cache_folder
from archpatch.storage.listing import matching

__all__ = ["sdist_store", "split_sdist_name", "stored_sdist", "stored_sdists"]


def sdist_store(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the store; it may not exist yet."""
    return cache_folder(environ) / "sdists"


def stored_sdist(store: Path, sha256: str, filename: str) -> Path | None:
    """Return the sdist of that digest, or None; one that was damaged on the disk is removed."""
    path = store / sha256 / filename
    # It may be gone, or go.
    with contextlib.suppress(OSError):
        if sha256_of(path) == sha256:
            return path
        path.unlink()
    return None


def stored_sdists(store: Path, name: str) -> Iterator[tuple[Version, Path]]:
    """Yield the version and path of each sdist of the package `name`."""
    for path in matching(store, "*/*"):
        split = split_sdist_name(path.name)
        if split and split[0] == canonicalize_name(name) and re.fullmatch(r"[0-9a-f]{64}", path.parent.name):
            yield split[1], path


def split_sdist_name(filename: str) -> tuple[str, Version] | None:
    """Return the normalized name and the version in an sdist's file name, None where it is none."""
    suffix = next((suffix for suffix in ARCHIVE_SUFFIXES if filename.lower().endswith(suffix)), None)
    if suffix is None:
        return None
    name, dash, version = filename[: -len(suffix)].rpartition("-")
    try:
        return (canonicalize_name(name), Version(version)) if dash and name else None
    except InvalidVersion:
        return None
