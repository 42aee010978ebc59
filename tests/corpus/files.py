"""Where the files under test come from: a folder, or the sdists of a list."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from archpatch.builder.download import fetch_sdist
from archpatch.builder.pip_settings import IndexSettings
from archpatch.builder.requirement import ARCHIVE_SUFFIXES, IndexRequirement, parse_requirement
from archpatch.builder.sdist_store import sdist_store
from archpatch.storage.archives import unpack

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["File", "files_in", "files_of_cases", "read_cases"]


@dataclass(frozen=True, slots=True, order=True)
class File:
    """A `setup.py` (or a loose `*.py` that was one) and what to call it."""

    name: str
    path: Path


def files_in(folder: Path, scratch: Path) -> Iterator[File]:
    """Yield each `setup.py` below `folder`, each `*.py` directly in it, and those at the top of archives of sdists.

    A folder of an sdist that was unpacked counts with its top `setup.py` alone; archives are unpacked in `scratch`,
    those that lie beside their own unpacked folder are left out.
    """
    for path in sorted(folder.iterdir()):
        if path.name.lower().endswith(ARCHIVE_SUFFIXES):
            if not (folder / _stem(path)).is_dir():
                yield from _unpacked(path, scratch)
        elif path.suffix == ".py" and path.is_file():
            yield File(path.name, path)
        elif (path / "PKG-INFO").is_file():
            yield from ([File(f"{path.name}/setup.py", path / "setup.py")] if (path / "setup.py").is_file() else [])
        elif path.is_dir():
            yield from (File(str(each.relative_to(folder)), each) for each in sorted(path.rglob("setup.py")))


def read_cases(path: Path) -> list[dict[str, object]]:
    """Return the entries of a list of sdists: name, version, sha256 and what is known of them."""
    return list(tomllib.loads(path.read_text(encoding="utf-8"))["sdist"])


def files_of_cases(path: Path, scratch: Path) -> Iterator[File]:
    """Yield the `setup.py` of each sdist in the list, fetched from the index by its hash or taken from the cache."""
    for case in read_cases(path):
        requirement = parse_requirement(f"{case['name']}=={case['version']}", sha256=str(case["sha256"]))
        assert isinstance(requirement, IndexRequirement)
        _, archive = fetch_sdist(
            requirement, IndexSettings(), offline=False, python_version=platform.python_version(), store=sdist_store()
        )
        yield from _unpacked(archive, scratch)


def _unpacked(archive: Path, scratch: Path) -> Iterator[File]:
    name = _stem(archive)
    folder = scratch / name
    if not folder.exists():
        unpack(archive, folder)
    for setup in sorted(folder.glob("*/setup.py")):
        yield File(f"{name}/setup.py", setup)


def _stem(archive: Path) -> str:
    return archive.name[: -len(next(end for end in ARCHIVE_SUFFIXES if archive.name.lower().endswith(end)))]
