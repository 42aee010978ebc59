"""Where archpatch keeps what can be had again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for caches; it may not exist yet.

    `$ARCHPATCH_CACHE`, else `$XDG_CACHE_HOME/archpatch` (ignored when relative, as its specification says), else
    `~/.cache/archpatch`. Where there is no home folder, or it cannot be written to (a container under any user id),
    a folder of this user in the temporary folder.
    """
    explicit = environ.get("ARCHPATCH_CACHE")
    if explicit:
        return Path(explicit).absolute()
    usual = _usual_folder(environ)
    return usual if usual is not None and _can_write(usual) else _temporary_folder()


def _usual_folder(environ: Mapping[str, str]) -> Path | None:
    xdg = environ.get("XDG_CACHE_HOME")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg, "archpatch")
    home = environ.get("HOME")
    if home and Path(home).is_absolute():
        return Path(home, ".cache", "archpatch")
    try:
        return Path.home() / ".cache" / "archpatch"
    except RuntimeError:
        return None


def _can_write(folder: Path) -> bool:
    """Whether `folder`, or the nearest folder above it that exists, can be written to."""
    try:
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    except OSError:
        # Not even allowed to look: another user's home.
        return False
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _temporary_folder() -> Path:
    """Return a folder that no other user of this machine could have prepared."""
    folder = Path(tempfile.gettempdir(), f"archpatch-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if status.st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink():
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="archpatch-"))
