"""Find a package's sdist on the index, as pip would choose it, without running any of it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from unearth import Link, Package, PackageFinder
from unearth.collector import is_secure_origin
from unearth.fetchers import Fetcher

from archpatch.builder.pip_settings import IndexSettings
from archpatch.builder.requirement import ARCHIVE_SUFFIXES, IndexRequirement, redact_url
from archpatch.builder.sdist_store import sdist_store, stored_sdist, stored_sdists
from archpatch.builder.session import IndexSession
from archpatch.errors import (
    ArchpatchError,
    ConfigError,
    FetchFailed,
    HashMismatch,
    NoSources,
    ToolchainError,
    UnknownPackage,
)

__all__ = ["Candidate", "FoundSdist", "choose_sdist", "find_sdist"]

_NEIGHBOURS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSdist:
    """The sdist to build. `sha256` is the index's, None where it gives none; `yanked` is the reason, if it was."""

    name: str
    version: Version
    filename: str
    url: str
    sha256: str | None = None
    yanked: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A file of the package on an index, sdist or wheel; `yanked` is the reason (maybe empty), None if it is not."""

    version: Version
    filename: str
    url: str
    sha256: str | None = None
    yanked: str | None = None
    requires_python: str | None = None

    @property
    def is_sdist(self) -> bool:
        """Whether it is a source archive of a form that is read here."""
        return self.filename.lower().endswith(ARCHIVE_SUFFIXES)


def find_sdist(
    requirement: IndexRequirement,
    settings: IndexSettings,
    *,
    offline: bool = False,
    python_version: str = platform.python_version(),
    store: Path | None = None,
) -> FoundSdist:
    """Return the newest sdist that fits: from the store where version and hash are pinned, else from the index.

    With `offline`, only the store and the settings' local folders are looked at. Raises `UnknownPackage` (no such
    name or version), `NoSources` (wheels alone), `HashMismatch`, `ToolchainError` (it needs another Python) and
    `FetchFailed` (an index could not be read: never taken for an unknown package).
    """
    store = sdist_store() if store is None else store
    kept = list(_kept(requirement, store, offline=offline))
    if kept and requirement.sha256 and requirement.version is not None:
        return choose_sdist(requirement, kept, python_version=python_version, where=str(store))
    sources = [source for source in _sources(settings) if not offline or _is_local(source[1])]
    where = ", ".join(redact_url(url) for _, url in sources) or "pip's find-links"
    candidates = [*kept, *_collect(requirement, sources, settings=settings)]
    if not offline:
        return choose_sdist(requirement, candidates, python_version=python_version, where=where)
    candidates = [candidate for candidate in candidates if _is_local(candidate.url)]
    try:
        return choose_sdist(requirement, candidates, python_version=python_version, where=f"{store}, {where}")
    except UnknownPackage as error:
        raise FetchFailed(
            f"{requirement} is not on this machine, and --offline forbids fetching it: {error.message}",
            remedy="Run once without --offline, or put the sdist into a folder of pip's find-links.",
        ) from None


def choose_sdist(
    requirement: IndexRequirement, candidates: Sequence[Candidate], *, python_version: str, where: str
) -> FoundSdist:
    """Return what pip would take of `candidates` if it took sdists alone; `where` is for messages.

    Pre-releases count when asked for or when there is nothing else (PEP 440); yanked files only for a pinned version
    that has no others (PEP 592). A pinned hash selects among what fits. Raises as `find_sdist`.
    """
    fitting = [item for item in candidates if item.is_sdist and _runs_on(item, python_version)]
    allowed = set(requirement.specifier.filter({item.version for item in fitting}))
    matching = [item for item in fitting if item.version in allowed]
    usable = [item for item in matching if item.yanked is None]
    if not usable and requirement.version is not None:
        usable = matching
    if not usable:
        raise _explain(requirement, candidates, python_version=python_version, where=where)
    best = max(_with_hash(requirement, usable, where=where), key=lambda item: item.version)
    return FoundSdist(
        name=requirement.name,
        version=best.version,
        filename=best.filename,
        url=best.url,
        sha256=best.sha256,
        yanked=best.yanked,
    )


def _with_hash(requirement: IndexRequirement, usable: list[Candidate], *, where: str) -> list[Candidate]:
    """Return those with the pinned hash, else those whose hash the index does not give."""
    if requirement.sha256 is None:
        return usable
    same = [item for item in usable if item.sha256 == requirement.sha256]
    unknown = [item for item in usable if item.sha256 is None]
    if not same and not unknown:
        newest = max(usable, key=lambda item: item.version)
        raise HashMismatch(
            f"{requirement}: no sdist at {where} has the sha256 {requirement.sha256}, {newest.filename} has"
            f" {newest.sha256}",
            remedy="Do not build it before you know why: compare with the project's own release page.",
        )
    return same or unknown


def _runs_on(candidate: Candidate, python_version: str) -> bool:
    if not candidate.requires_python:
        return True
    try:
        return SpecifierSet(candidate.requires_python).contains(python_version, prereleases=True)
    except InvalidSpecifier:
        # As pip: what cannot be read forbids nothing.
        return True


# --- why there is none -------------------------------------------------------------------------


def _explain(
    requirement: IndexRequirement, candidates: Sequence[Candidate], *, python_version: str, where: str
) -> ArchpatchError:
    matching = [item for item in candidates if requirement.specifier.contains(item.version, prereleases=True)]
    sdists = [item for item in matching if item.is_sdist]
    newest = max(sdists or matching, key=lambda item: item.version, default=None)
    if newest is None:
        return _unknown(requirement, candidates, where)
    if not sdists:
        return NoSources(
            f"{requirement}: {where} has only wheels of {newest.version}, no sdist",
            remedy=f"Name its repository: git+https://host/{requirement.name}@v{newest.version}.",
        )
    if not any(_runs_on(item, python_version) for item in sdists):
        return ToolchainError(
            f"{requirement.name} {newest.version} needs Python {newest.requires_python}, this is {python_version}",
            remedy="Name another interpreter with --python, or another version of the package.",
        )
    return UnknownPackage(
        f"{requirement}: {newest.version} was withdrawn (yanked): {newest.yanked or 'no reason given'}",
        remedy=f"Name another version, or {requirement.name}=={newest.version} to take it nevertheless.",
    )


def _unknown(requirement: IndexRequirement, candidates: Sequence[Candidate], where: str) -> UnknownPackage:
    if not candidates:
        return UnknownPackage(
            f"{requirement.name} is unknown at {where}",
            remedy="Correct the name, or point pip's index-url at an index that has it.",
        )
    versions = sorted({item.version for item in candidates if item.is_sdist} or {item.version for item in candidates})
    near = ", ".join(map(str, _near(versions, requirement.version)))
    return UnknownPackage(
        f"{where} has no {requirement}", remedy=f"Near it are {near}; the newest of {len(versions)} is {versions[-1]}."
    )


def _near(versions: Sequence[Version], wanted: Version | None) -> Sequence[Version]:
    """Return the versions around `wanted`, or the newest."""
    position = len(versions) if wanted is None else sum(version < wanted for version in versions)
    return versions[max(0, position - _NEIGHBOURS) : position + _NEIGHBOURS]


# --- where from --------------------------------------------------------------------------------


def _kept(requirement: IndexRequirement, store: Path, *, offline: bool) -> Iterator[Candidate]:
    """Yield what the store has: for a pinned hash that file, for `offline` all; else the index is to be asked."""
    for version, path in stored_sdists(store, requirement.name):
        sha256 = path.parent.name
        wanted = sha256 == requirement.sha256 if requirement.sha256 else offline
        if wanted and stored_sdist(store, sha256, path.name):
            yield Candidate(version=version, filename=path.name, url=path.as_uri(), sha256=sha256)


def _sources(settings: IndexSettings) -> Iterator[tuple[str, str]]:
    """Yield (kind, URL) of each place to look; a find-links folder that is not there is passed over, as by pip."""
    for link in settings.find_links:
        path = Path(link).expanduser() if link.startswith("~") else Path(link)
        if "://" in link:
            yield "find_links", link
        elif path.exists():
            yield "find_links", path.absolute().as_uri()
    for url in settings.index_urls:
        if "://" not in url and not Path(url).exists():
            raise ConfigError(
                f"pip's index-url {url!r} is neither a URL nor a folder", remedy="Correct it with `pip config set`."
            )
        yield "index", url if "://" in url else Path(url).absolute().as_uri()


def _is_local(url: str) -> bool:
    return urlsplit(url).scheme == "file"


def _collect(
    requirement: IndexRequirement, sources: Iterable[tuple[str, str]], *, settings: IndexSettings
) -> list[Candidate]:
    """Return the package's files at all `sources`.

    One source that cannot be read fails it all, unless another has the very bytes that were pinned: what lies there
    could be newer, or the private package whose name someone took on the public index.
    """
    candidates: list[Candidate] = []
    failures: list[FetchFailed] = []
    with IndexSession(settings) as session:
        for kind, url in sources:
            try:
                candidates += map(_candidate, _ask(session, kind, url=url, name=requirement.normalized))
            except FetchFailed as error:  # noqa: PERF203 - a request takes longer than a try
                failures.append(error)
    pinned = requirement.sha256 and any(item.sha256 == requirement.sha256 for item in candidates)
    if failures and not pinned:
        raise failures[0]
    return candidates


def _ask(session: IndexSession, kind: str, *, url: str, name: str) -> list[Package]:
    # A cast, since unearth's protocol of a response does not fit its own client's either.
    fetcher = cast(Fetcher, session)
    if not is_secure_origin(fetcher, Link(url)):
        raise FetchFailed(
            f"{redact_url(url)} is not encrypted, and its host is none of pip's trusted hosts",
            remedy="Use https, or name the host in pip's trusted-host.",
        )
    finder = PackageFinder(
        session=fetcher,
        index_urls=[url] if kind == "index" else [],
        find_links=[url] if kind == "find_links" else [],
        # Wheels of every platform are listed too, to tell "only wheels" from "unknown"; `_runs_on` looks at Python.
        ignore_compatibility=True,
    )
    try:
        return list(finder.find_all_packages(name, allow_yanked=True))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        # unearth does not check a page's shape before it takes it apart.
        raise FetchFailed(
            f"{redact_url(url)} gives a page for {name} that cannot be read: {redact_url(str(error))}",
            remedy="Check that pip's index-url and find-links name a package index.",
        ) from error


def _candidate(package: Package) -> Candidate:
    link = package.link
    # Declared a string, but `true` in an index's JSON stays what it is.
    reason: object = link.yank_reason
    hashes = link.hash_option or {}
    return Candidate(
        version=Version(package.version or ""),
        filename=link.filename,
        url=link.url_without_fragment,
        sha256=next((value.lower() for value in hashes.get("sha256", [])), None),
        yanked=None if reason is None else (reason if isinstance(reason, str) else ""),
        requires_python=link.requires_python,
    )
