"""Download an sdist, prove that it is the one that was meant, and keep it for the next time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from archpatch.builder.index import FoundSdist, find_sdist
from archpatch.builder.pip_settings import IndexSettings
from archpatch.builder.requirement import IndexRequirement, redact_url
from archpatch.builder.sdist_store import sdist_store, stored_sdist
from archpatch.builder.session import IndexSession
from archpatch.builder.working_folder import working_folder
from archpatch.errors import FetchFailed, HashMismatch
from archpatch.storage.atomic import disk_errors

__all__ = ["download", "fetch_sdist"]

_CHUNK = 2**20


def fetch_sdist(
    requirement: IndexRequirement, settings: IndexSettings, *, offline: bool, python_version: str, store: Path
) -> tuple[FoundSdist, Path]:
    """Find and download the sdist of `requirement`; the folder of the returned path is named by its sha256."""
    found = find_sdist(requirement, settings, offline=offline, python_version=python_version, store=store)
    return found, download(found, settings, sha256=requirement.sha256, store=store)


def download(
    found: FoundSdist, settings: IndexSettings, *, sha256: str | None = None, store: Path | None = None
) -> Path:
    """Return the path of the sdist, `store/<sha256>/<file name>`, fetched unless it lies there intact.

    It is verified against the index's sha256 and against `sha256`, the user's pin. Raises `HashMismatch`,
    `FetchFailed` (unreachable, truncated) and `DiskFull`; what has failed leaves nothing behind.
    """
    store = sdist_store() if store is None else store
    if sha256 and found.sha256 and sha256 != found.sha256:
        raise _mismatch(found, wanted=sha256, got=found.sha256)
    wanted = sha256 or found.sha256
    stored = stored_sdist(store, wanted, found.filename) if wanted else None
    if stored is not None:
        return stored
    with disk_errors(store), _new_file(store) as part:
        digest = _fetch(found.url, part, settings)
        if wanted and digest != wanted:
            raise _mismatch(found, wanted=wanted, got=digest)
        final = store / digest / found.filename
        final.parent.mkdir(exist_ok=True)
        part.replace(final)
    return final


def _mismatch(found: FoundSdist, *, wanted: str, got: str) -> HashMismatch:
    return HashMismatch(
        f"{found.filename} from {redact_url(found.url)} has the sha256 {got}, not {wanted}",
        remedy="Do not build it before you know why: compare with the project's own release page.",
    )


@contextmanager
def _new_file(store: Path) -> Iterator[Path]:
    """Give the path of a new file below `store`, which is removed at the end unless it was renamed."""
    with ExitStack() as stack:
        try:
            store.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(working_folder(store))
        except (PermissionError, FileExistsError, NotADirectoryError) as error:
            raise FetchFailed(
                f"downloads cannot be kept in {store}: {error.strerror}",
                remedy="Point ARCHPATCH_CACHE at a folder that can be written to.",
            ) from None
        yield folder / "part"


def _fetch(url: str, part: Path, settings: IndexSettings) -> str:
    """Write what is at `url` to `part`, and return its sha256."""
    if urlsplit(url).scheme == "file":
        return _fetch_file(Path(unquote(urlsplit(url).path)), part)
    with IndexSession(settings) as session:
        return session.retry(url, lambda: _write(session.stream(url, _CHUNK), part))


def _fetch_file(source: Path, part: Path) -> str:
    try:
        content = source.open("rb")
    except OSError as error:
        raise FetchFailed(f"{source} cannot be read: {error.strerror}", remedy="Check pip's find-links.") from None
    with content:
        return _write(iter(lambda: content.read(_CHUNK), b""), part)


def _write(chunks: Iterator[bytes], part: Path) -> str:
    digest = hashlib.sha256()
    with part.open("wb") as sink:
        for chunk in chunks:
            digest.update(chunk)
            sink.write(chunk)
    return digest.hexdigest()
