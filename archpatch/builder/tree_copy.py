"""Copy a project's folder without what earlier builds left in it, and digest what was copied."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from archpatch.errors import FetchFailed
from archpatch.storage.atomic import disk_errors

__all__ = ["copy_tree"]

#: Left out wherever they lie; a stale object or library of another build would else get into the wheel. A library
#: that is not named as an extension (`libvendor.so`) is the project's own.
_LEFT_OUT = (".git", "__pycache__", "*.egg-info", "*.cpython-*.so", "*.abi3.so")
#: Left out at the top alone: deeper down, a folder may be called so for its own reasons.
_LEFT_OUT_AT_TOP = ("build", "dist", ".nox", ".venv")

_CHUNK = 2**20


def copy_tree(source: Path, into: Path, *, leave_out: Collection[Path] = ()) -> str:
    """Copy the folder `source` to the new folder `into`, and return its digest.

    The digest is the sha256 of each file's relative path, whether it is executable, and its content, sorted; owners,
    times and empty folders do not count. Left out are version control, virtual environments, what builds produce, and
    the paths `leave_out`. A link within the tree stays one; one that leaves it is replaced by what it points at.
    Raises `FetchFailed` for what cannot be read and `DiskFull`; then `into` is not left.
    """
    skipped = {_real(path) for path in (*leave_out, into)}
    with disk_errors(into):
        into.mkdir(parents=True)
        try:
            digest = hashlib.sha256()
            for path in _walk(source, skipped=skipped, top=True, above=()):
                entry = _copy_entry(path, root=source, target=into / path.relative_to(source))
                if entry is not None:
                    digest.update(f"{path.relative_to(source)}\0{entry}\0".encode("utf-8", "surrogateescape"))
        except BaseException:
            shutil.rmtree(into, ignore_errors=True)
            raise
    return digest.hexdigest()


def _walk(folder: Path, *, skipped: Collection[Path], top: bool, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yield all that is to be copied, folders before their content, in an order that depends on the names alone."""
    real = _real(folder)
    if real in above:
        raise FetchFailed(f"{folder} is a link to a folder above it", remedy="Remove the link from the project.")
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - only the names are wanted
    except OSError as error:
        raise _unreadable(folder, error) from None
    for name in names:
        path = folder / name
        patterns = (*_LEFT_OUT, *_LEFT_OUT_AT_TOP) if top else _LEFT_OUT
        if any(fnmatchcase(name, pattern) for pattern in patterns) or _real(path) in skipped:
            continue
        yield path
        if path.is_dir() and not _stays_link(path, root=above[0] if above else real):
            yield from _walk(path, skipped=skipped, top=False, above=(*above, real))


def _stays_link(path: Path, *, root: Path) -> bool:
    return path.is_symlink() and _real(path).is_relative_to(_real(root))


def _copy_entry(path: Path, *, root: Path, target: Path) -> str | None:
    """Copy one file, link or folder and return what the digest says of it; None where it says nothing."""
    if path.is_symlink() and (_stays_link(path, root=root) or not path.exists()):
        return _copy_link(path, root=root, target=target)
    if path.is_dir():
        target.mkdir()
        return None
    if not path.is_file():
        # A socket or a pipe of some running tool is no source.
        return None
    return _copy_file(path, target)


def _copy_link(path: Path, *, root: Path, target: Path) -> str:
    link = os.readlink(path)  # noqa: PTH115 - as text: Path would drop a trailing slash and a leading ./
    if os.path.isabs(link) and path.exists():  # noqa: PTH117 - as above
        # It would go on pointing into the user's tree.
        inside = _real(path).relative_to(_real(root))
        link = os.path.relpath(root / inside, path.parent)
    target.symlink_to(link)
    return f"link {link}"


def _copy_file(path: Path, target: Path) -> str:
    digest = hashlib.sha256()
    try:
        source = path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from None
    with source, target.open("wb") as sink:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            sink.write(chunk)
        executable = bool(os.fstat(source.fileno()).st_mode & stat.S_IXUSR)
    shutil.copystat(path, target)
    target.chmod(0o755 if executable else 0o644)
    return f"{'executable' if executable else 'file'} {digest.hexdigest()}"


def _unreadable(path: Path, error: OSError) -> FetchFailed:
    return FetchFailed(f"{path} cannot be read: {error.strerror}", remedy="Give yourself the right to read it.")


def _real(path: Path) -> Path:
    """Return the path with its links followed; `Path.resolve` raises for a link to itself before Python 3.13."""
    return Path(os.path.realpath(path))
