"""What to build, as written on a command line: a package of the index, a folder, an archive or a git reference."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from archpatch.errors import MissingFile, UsageError

__all__ = [
    "ARCHIVE_SUFFIXES",
    "ArchiveRequirement",
    "FolderRequirement",
    "GitRequirement",
    "IndexRequirement",
    "Requirement",
    "parse_requirement",
    "redact_url",
]

#: The forms of source archive that are read; PEP 625 allows `.tar.gz` alone, older releases have the others.
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".zip")

#: `git://` has neither encryption nor identity, and `ext::` runs any command.
_GIT_SCHEMES = ("https", "http", "ssh", "file")

_HASH = re.compile(r"(?:\s+--hash[=\s]\s*|#)sha256[:=](?P<digest>\S*)\s*$")
_PATH_START = re.compile(r"(\.{1,2}$)|(\.{0,2}/)|(~)|(file:)")
_DIRECT = re.compile(r"^\s*[A-Za-z0-9._-]+\s*(\[[^\]]*\])?\s*@\s*\S")

_CREDENTIALS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^/\s?#]*)@")
_QUERY = re.compile(r"(://[^\s?#]*)\?[^\s#]*")

_FORMS = "Write NAME, NAME==VERSION, a folder (./folder), an sdist (./file.tar.gz) or git+https://host/repo@ref."


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRequirement:
    """A package of the index: `name` as it was written, and which versions and bytes of it will do."""

    name: str
    specifier: SpecifierSet = field(default_factory=SpecifierSet)
    sha256: str | None = None

    @property
    def normalized(self) -> str:
        """The name as the index spells it (PEP 503)."""
        return canonicalize_name(self.name)

    @property
    def version(self) -> Version | None:
        """The one version that will do, or None when several might (`==2.*` and ranges too)."""
        for clause in self.specifier:
            if clause.operator in ("==", "===") and not clause.version.endswith(".*"):
                try:
                    return Version(clause.version)
                except InvalidVersion:
                    return None
        return None

    def __str__(self) -> str:
        return f"{self.name}{self.specifier}"


@dataclass(frozen=True, slots=True)
class FolderRequirement:
    """A project's folder; `path` is absolute."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRequirement:
    """A source archive on this machine; `path` is absolute."""

    path: Path
    sha256: str | None = None

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class GitRequirement:
    """A git repository: `url` without the `git+`, at the tag, branch or commit `ref` (None: its default branch)."""

    url: str
    ref: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        return f"git+{redact_url(self.url)}" + (f"@{self.ref}" if self.ref else "")


Requirement = IndexRequirement | FolderRequirement | ArchiveRequirement | GitRequirement


def parse_requirement(text: str, *, sha256: str | None = None) -> Requirement:
    """Return what a word of the command line names.

    `mamba_ssm` is the index's package even where a folder of that name lies here: a folder is written with a slash
    (`./mamba_ssm`), or as `.` or `..`. A hash is given as `sha256`, as ` --hash=sha256:...` or as `#sha256=...`, and
    belongs to a package or an archive only. Raises `UsageError` and, for a path that is not there, `MissingFile`.
    """
    word, written = _split_hash(text)
    if written and sha256 and written != sha256.lower():
        raise UsageError(f"{text}: two different hashes are given", remedy="Give the one of the sdist that you mean.")
    digest = _check_digest(written or sha256)
    requirement = _parse_word(word.strip(), digest)
    if digest is not None and not isinstance(requirement, (IndexRequirement, ArchiveRequirement)):
        raise UsageError(
            f"{requirement}: a sha256 belongs to an archive, this is none",
            remedy="Leave the hash out. To pin a git repository, name a commit: git+https://host/repo@COMMIT.",
        )
    return requirement


def redact_url(text: str) -> str:
    """Return `text` without what may be secret in the URLs in it: user, password and query.

    An ssh user without a password stays: it is a public convention (`git@`).
    """
    named = _CREDENTIALS.sub(lambda match: match[0] if _is_public(match) else f"{match['scheme']}***@", text)
    return _QUERY.sub(r"\1", named)


def _is_public(match: re.Match[str]) -> bool:
    return match["scheme"].endswith("ssh://") and ":" not in match["user"]


def _split_hash(text: str) -> tuple[str, str | None]:
    match = _HASH.search(text)
    if match is None:
        if "--hash" in text:
            raise UsageError(f"{text}: only one hash, a sha256, can be checked", remedy="Write --hash=sha256:DIGEST.")
        return text, None
    rest = text[: match.start()]
    if "--hash" in rest:
        raise UsageError(f"{text}: more than one hash is given", remedy="Give the one of the sdist.")
    return rest, match["digest"].lower()


def _check_digest(digest: str | None) -> str | None:
    if digest is None or re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        return digest.lower() if digest else None
    raise UsageError(
        f"{digest!r} is no sha256: it must have 64 hexadecimal digits",
        remedy="`sha256sum FILE` prints it, and so does the index's page of the package.",
    )


def _parse_word(word: str, sha256: str | None) -> Requirement:
    if not word or word.startswith("-"):
        raise UsageError(f"{word!r} names no package", remedy=_FORMS)
    if word.startswith("git+"):
        return _parse_git(word, name=None)
    if _DIRECT.match(word) and not _PATH_START.match(word):
        return _parse_direct(word, sha256)
    if _PATH_START.match(word):
        return _parse_path(word, sha256)
    if "://" in word:
        raise _bad_url(word)
    if "/" in word or word.lower().endswith(ARCHIVE_SUFFIXES):
        return _parse_path(word, sha256)
    return _parse_name(word, sha256)


def _parse_name(word: str, sha256: str | None) -> IndexRequirement:
    parsed = _parse_pep508(word)
    return IndexRequirement(name=parsed.name, specifier=parsed.specifier, sha256=sha256)


def _parse_direct(word: str, sha256: str | None) -> Requirement:
    parsed = _parse_pep508(word)
    url = parsed.url or ""
    if url.startswith("git+"):
        return _parse_git(url, name=parsed.name)
    if url.startswith("file:"):
        return _parse_path(url, sha256)
    raise _bad_url(url)


def _parse_pep508(word: str) -> Pep508:
    try:
        parsed = Pep508(word)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"{redact_url(word)!r} is no requirement: {reason}", remedy=_FORMS) from None
    if parsed.extras:
        raise UsageError(
            f"{parsed.name}: extras add other packages, not code to this one",
            remedy=f"Name it without [{','.join(sorted(parsed.extras))}], and install those packages with pip.",
        )
    if parsed.marker is not None:
        raise UsageError(
            f"{parsed.name}: a marker ({parsed.marker}) has no meaning here, the package is built in any case",
            remedy="Leave out what follows the semicolon.",
        )
    return parsed


def _bad_url(url: str) -> UsageError:
    return UsageError(
        f"{redact_url(url)}: only git repositories and file: URLs can be named by URL",
        remedy="Write git+https://host/repo@ref, or download the archive and name the file.",
    )


def _parse_path(word: str, sha256: str | None) -> FolderRequirement | ArchiveRequirement:
    if word.startswith("file:"):
        parts = urlsplit(word)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise UsageError(f"{word} names a file of another machine", remedy="Write file:///absolute/path.")
        word = unquote(parts.path)
    path = _absolute(word)
    if path.is_dir():
        return FolderRequirement(path)
    if not path.exists():
        raise MissingFile(f"{path} does not exist", remedy="Correct the path. A package of the index has no slash.")
    if not path.name.lower().endswith(ARCHIVE_SUFFIXES):
        raise UsageError(
            f"{path} is no source archive ({', '.join(ARCHIVE_SUFFIXES)})",
            remedy="For a setup.py, name its folder. A wheel is built already: see `archpatch inspect`.",
        )
    return ArchiveRequirement(path=path, sha256=sha256)


def _absolute(word: str) -> Path:
    try:
        return Path(word).expanduser().absolute()
    except RuntimeError:
        raise MissingFile(f"{word}: there is no such home folder", remedy="Write the whole path.") from None


def _parse_git(word: str, *, name: str | None) -> GitRequirement:
    parts = urlsplit(word.removeprefix("git+"))
    shown = redact_url(word)
    _check_git_scheme(shown, scheme=parts.scheme, host=parts.hostname or "")
    if parts.query:
        raise UsageError(f"{shown}: a git URL has no query", remedy="Leave out what follows the question mark.")
    # Only the path can hold the ref: an @ before the host separates the user.
    path, _, ref = parts.path.rpartition("@") if "@" in parts.path else (parts.path, "", None)
    if ref is not None:
        _check_ref(shown, ref)
    if not path.strip("/"):
        raise UsageError(f"{shown} names no repository", remedy="Write git+https://host/repo@ref.")
    egg = _parse_fragment(shown, parts.fragment)
    return GitRequirement(url=urlunsplit((parts.scheme, parts.netloc, path, "", "")), ref=ref, name=name or egg)


def _check_git_scheme(shown: str, *, scheme: str, host: str) -> None:
    if scheme not in _GIT_SCHEMES:
        raise UsageError(
            f"{shown}: git over {scheme or 'no scheme'!r} is not supported",
            remedy="Write git+https://host/repo@ref, git+ssh://git@host/repo@ref or git+file:///folder@ref.",
        )
    # A host or path that starts with a dash would be read as an option by ssh (CVE-2017-1000117).
    if host.startswith("-") or (not host and scheme != "file"):
        raise UsageError(f"{shown} has no valid host", remedy="Write git+https://host/repo@ref.")


def _check_ref(shown: str, ref: str) -> None:
    if not re.fullmatch(r"(?!-)(?!.*\.\.)(?!.*@\{)[^\s~^:?*\[\\\x00-\x20\x7f]+", ref):
        raise UsageError(f"{shown}: {ref!r} is no name of a tag, branch or commit", remedy="Write ...@v1.0 at its end.")


def _parse_fragment(shown: str, fragment: str) -> str | None:
    """Return the name in `#egg=name`, the one part of a fragment that means something here."""
    if not fragment:
        return None
    key, _, value = fragment.partition("=")
    if key != "egg" or not re.fullmatch(r"[A-Za-z0-9._-]+", value):
        raise UsageError(
            f"{shown}: #{fragment} is not understood",
            remedy="Leave it out; for a project in a subfolder, clone the repository and name the folder.",
        )
    return value
