"""Bring what a requirement names into a fresh folder, without running any of it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Collection, Mapping
from configparser import Error as ConfigParserError
from configparser import RawConfigParser
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from archpatch.builder.commands import Runner, run_command
from archpatch.builder.git import clone
from archpatch.builder.pip_settings import IndexSettings, read_pip_settings
from archpatch.builder.requirement import (
    ArchiveRequirement,
    FolderRequirement,
    GitRequirement,
    IndexRequirement,
    Requirement,
    redact_url,
)
from archpatch.builder.sdist_store import sdist_store, split_sdist_name
from archpatch.builder.tree_copy import copy_tree
from archpatch.errors import ArchpatchError, FetchFailed, HashMismatch, NoSources
from archpatch.storage.atomic import disk_errors, sha256_of, staging_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from archpatch.builder.index import FoundSdist

__all__ = ["SourceTree", "pin", "prepare", "project_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTree:
    """An unpacked project. `version` is None where only running `setup.py` would tell it.

    `digest` names the bytes: the sdist's sha256, `git:COMMIT`, or `tree:SHA256` of a folder's files. `origin` is for
    people.
    """

    path: Path
    name: str
    version: str | None
    digest: str
    origin: str


def prepare(  # noqa: PLR0913 - what a caller may set, all optional
    requirement: Requirement,
    into: Path,
    *,
    offline: bool = False,
    python_version: str = platform.python_version(),
    leave_out: Collection[Path] = (),
    settings: IndexSettings | None = None,
    environ: Mapping[str, str] = os.environ,
    run: Runner = run_command,
) -> SourceTree:
    """Put the source of `requirement` into the new folder `into`.

    `python_version` is that of the interpreter which builds. `leave_out` are paths in a project's folder that are no
    part of it, a wheelhouse for one. `settings` are pip's where None. Raises what `find_sdist`, `download`, `unpack`,
    `clone` and `copy_tree` raise, `HashMismatch` for an archive, and `NoSources` where there is no `setup.py`; then
    `into` is not left.
    """
    with disk_errors(into):
        into.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(requirement, IndexRequirement):
        # unearth and its HTTP client take 0.2 s to import, as long as a rewrite, and most requirements need neither.
        from archpatch.builder.download import fetch_sdist  # noqa: PLC0415

        settings = read_pip_settings(environ=environ, run=run) if settings is None else settings
        found, path = fetch_sdist(
            requirement, settings, offline=offline, python_version=python_version, store=sdist_store(environ)
        )
        return _from_index(found, path, into)
    if isinstance(requirement, ArchiveRequirement):
        return _from_archive(requirement, into)
    if isinstance(requirement, FolderRequirement):
        return _from_folder(requirement, into, leave_out)
    if offline and not requirement.url.startswith("file:"):
        raise FetchFailed(f"--offline forbids fetching {requirement}", remedy="Clone it, and name the folder.")
    return _from_git(requirement, into, run=run, environ=environ)


def pin(
    requirement: IndexRequirement,
    *,
    python_version: str = platform.python_version(),
    settings: IndexSettings | None = None,
    environ: Mapping[str, str] = os.environ,
    run: Runner = run_command,
) -> IndexRequirement:
    """Return `requirement` with the one version that the index would give for it; raises as `find_sdist`."""
    from archpatch.builder.index import find_sdist  # noqa: PLC0415 - as in `prepare`

    settings = read_pip_settings(environ=environ, run=run) if settings is None else settings
    found = find_sdist(requirement, settings, python_version=python_version, store=sdist_store(environ))
    return replace(requirement, specifier=SpecifierSet(f"=={found.version}"))


def project_name(project: Requirement | Path) -> str:
    """Return the name of a project as far as it is written down: in what was asked for, or in its folder (a path).

    A folder that tells none has its own name. Raises `FetchFailed` where its `pyproject.toml` or `setup.cfg` is broken.
    """
    if isinstance(project, IndexRequirement):
        return project.name
    if isinstance(project, ArchiveRequirement):
        return _default_of_archive(project.path).name or project.path.name
    if isinstance(project, GitRequirement):
        return project.name or _default_of_url(project.url).name or project.url
    folder = project if isinstance(project, Path) else project.path
    return _read_metadata(folder, _Metadata(folder.resolve().name))[0]


def _from_index(found: FoundSdist, path: Path, into: Path) -> SourceTree:
    _unpack_project(path, into)
    written = _read_pkg_info(into)
    version = written.version or str(found.version)
    if canonicalize_name(written.name or found.name) != canonicalize_name(found.name) or not _same(
        version, found.version
    ):
        shutil.rmtree(into)
        raise FetchFailed(
            f"{found.filename} says inside that it is {written.name} {version}",
            remedy="Do not build it. Check where it comes from, and report it to those who run that index.",
        )
    withdrawn = "" if found.yanked is None else f" (yanked: {found.yanked or 'no reason given'})"
    return SourceTree(
        path=into,
        name=written.name or found.name,
        version=version,
        digest=path.parent.name,
        origin=f"{found.filename} from {redact_url(found.url)}{withdrawn}",
    )


def _from_archive(requirement: ArchiveRequirement, into: Path) -> SourceTree:
    digest = sha256_of(requirement.path)
    if requirement.sha256 not in (None, digest):
        raise HashMismatch(
            f"{requirement} has the sha256 {digest}, not {requirement.sha256}",
            remedy="Do not build it before you know why: compare with the project's own release page.",
        )
    _unpack_project(requirement.path, into)
    if sha256_of(requirement.path) != digest:
        shutil.rmtree(into)
        raise FetchFailed(f"{requirement} was replaced while it was unpacked", remedy="Build again.")
    return _tree(into, digest=digest, origin=str(requirement), default=_default_of_archive(requirement.path))


def _from_folder(requirement: FolderRequirement, into: Path, leave_out: Collection[Path]) -> SourceTree:
    _check_setup(requirement.path, str(requirement))
    digest = copy_tree(requirement.path, into, leave_out=leave_out)
    default = _Metadata(requirement.path.resolve().name)
    return _tree(into, digest=f"tree:{digest}", origin=str(requirement), default=default)


def _from_git(requirement: GitRequirement, into: Path, *, run: Runner, environ: Mapping[str, str]) -> SourceTree:
    commit = clone(requirement, into, run=run, environ=environ)
    try:
        _check_setup(into, str(requirement))
    except ArchpatchError:
        shutil.rmtree(into)
        raise
    default = _Metadata(requirement.name) if requirement.name else _default_of_url(requirement.url)
    return _tree(into, digest=f"git:{commit}", origin=f"{requirement} ({commit[:12]})", default=default)


def _tree(path: Path, *, digest: str, origin: str, default: _Metadata) -> SourceTree:
    try:
        name, version = _read_metadata(path, default)
    except FetchFailed:
        shutil.rmtree(path)
        raise
    return SourceTree(path=path, name=name, version=version, digest=digest, origin=origin)


# --- the unpacked project ----------------------------------------------------------------------


def _unpack_project(archive: Path, into: Path) -> None:
    """Unpack `archive`, and rename its top-level folder to `into`."""
    from archpatch.storage.archives import unpack  # noqa: PLC0415 - as in `_read_pkg_info`

    with staging_folder(into) as staging:
        unpacked = staging / "unpacked"
        unpack(archive, unpacked)
        inside = list(unpacked.iterdir())
        # A flat archive is no sdist, but it is what some hosts give.
        alone = len(inside) == 1 and inside[0].is_dir() and not inside[0].is_symlink()
        top = inside[0] if alone else unpacked
        _check_setup(top, str(archive))
        top.rename(into)


def _check_setup(folder: Path, what: str) -> None:
    if (folder / "setup.py").is_file():
        return
    backend = _read_table(folder / "pyproject.toml", "build-system").get("build-backend", "no backend that it names")
    raise NoSources(
        f"{what} has no setup.py (it is built by {backend}); archpatch rewrites projects that have one",
        remedy="Name the folder that holds the setup.py; a CMake project takes its archs from its own variables.",
    )


# --- names and versions, as far as they are written down ---------------------------------------


@dataclass(frozen=True, slots=True)
class _Metadata:
    name: str | None = None
    version: str | None = None


def _default_of_archive(path: Path) -> _Metadata:
    split = split_sdist_name(path.name)
    return _Metadata(split[0], str(split[1])) if split else _Metadata(path.name.partition(".")[0])


def _default_of_url(url: str) -> _Metadata:
    return _Metadata(url.rstrip("/").rpartition("/")[2].removesuffix(".git"))


def _read_metadata(folder: Path, default: _Metadata) -> tuple[str, str | None]:
    found = (_read_pkg_info(folder), _read_pyproject(folder), _read_setup_cfg(folder), default)
    name = next((metadata.name for metadata in found if metadata.name), "")
    return name, next((metadata.version for metadata in found if metadata.version), None)


def _read_pkg_info(folder: Path) -> _Metadata:
    path = folder / "PKG-INFO"
    if not path.is_file():
        return _Metadata()
    from email.parser import HeaderParser  # noqa: PLC0415 - a hit needs neither it nor the archives

    headers = HeaderParser().parsestr(path.read_text(encoding="utf-8", errors="replace"))
    name, version = (headers.get(field) for field in ("Name", "Version"))
    return _Metadata(name=None if name == "UNKNOWN" else name, version=version)


def _read_pyproject(folder: Path) -> _Metadata:
    project = _read_table(folder / "pyproject.toml", "project")
    name, version = (value if isinstance(value, str) else None for value in map(project.get, ("name", "version")))
    return _Metadata(name=name, version=version)


def _read_setup_cfg(folder: Path) -> _Metadata:
    path = folder / "setup.cfg"
    if not path.is_file():
        return _Metadata()
    parser = RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (ConfigParserError, UnicodeDecodeError) as error:
        raise FetchFailed(f"{path.name} cannot be read: {error}", remedy="Correct it in the project.") from None
    name, version = (parser.get("metadata", field, fallback=None) for field in ("name", "version"))
    # `attr: package.__version__` and `file: VERSION` are for setuptools to follow.
    dynamic = version is not None and version.startswith(("attr:", "file:"))
    return _Metadata(name=name, version=None if dynamic else version)


def _read_table(path: Path, name: str) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get(name)
        return table if isinstance(table, dict) else {}
    except ValueError as error:
        raise FetchFailed(f"{path.name} is no TOML: {error}", remedy="Correct it in the project.") from None


def _same(text: str, version: Version) -> bool:
    try:
        return Version(text) == version
    except InvalidVersion:
        return False
