"""Every error that archpatch raises on purpose: one class per remedy, each with its exit status.

A message says what is wrong, where (a file and line, an option, a dotted setting) and what to do. Anything that is
not an `ArchpatchError` is a bug and propagates with its traceback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "ArchpatchError",
    "BuildFailed",
    "CacheRefused",
    "CaptureFailed",
    "ConfigError",
    "DeviceCodeMismatch",
    "DiskFull",
    "FetchFailed",
    "HashMismatch",
    "InvalidArchList",
    "KnownBadArch",
    "MissingFile",
    "NoMatchingArch",
    "NoSources",
    "SetupRefused",
    "SlimRefused",
    "ToolchainError",
    "UnknownGpu",
    "UnknownPackage",
    "UnreadableBinary",
    "UsageError",
    "WheelhouseConflict",
    "WheelhouseDamaged",
]


class ArchpatchError(Exception):
    """Base of all errors raised on purpose; `exit_status` is what the command line exits with.

    `log` is the log of the build that it ended, if there is one.
    """

    exit_status = 1

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.log: Path | None = None

    def __str__(self) -> str:
        return self.message if self.remedy is None else f"{self.message}\n{self.remedy}"


# --- 2: wrong usage or configuration -----------------------------------------------------------


class UsageError(ArchpatchError):
    """The options do not fit together: change the command line."""

    exit_status = 2


class ConfigError(UsageError):
    """A setting or a recipe is wrong: change the file that the message names."""


class InvalidArchList(UsageError):
    """The arch list cannot be read: write it as the message shows."""


class UnknownGpu(UsageError):
    """No such GPU type: take one of those that the message lists."""


class UnknownPackage(UsageError):
    """The index has no such package or version: correct the name, or point at another index."""


class MissingFile(UsageError):
    """A file or folder that was named does not exist: correct the path."""


class UnreadableBinary(UsageError):
    """A file is no wheel, no ELF file, or is damaged: name another file."""


# --- 3: no matching arch, or a file that is refused --------------------------------------------


class NoMatchingArch(ArchpatchError):
    """Nothing that was asked for is among what the package compiles: ask for another arch or policy."""

    exit_status = 3


class KnownBadArch(NoMatchingArch):
    """What was asked for is reported to compute wrong values: ask for another arch, or allow it."""


class SetupRefused(ArchpatchError):
    """`setup.py` has a shape that cannot be rewritten safely: do what the refusal's remedy says."""

    exit_status = 3


class SlimRefused(ArchpatchError):
    """A binary or a wheel is not laid out as it must be to take device code out of it: leave it as it is."""

    exit_status = 3


# --- 4: the build failed, or what it needs could not be had ------------------------------------


class FetchFailed(ArchpatchError):
    """The source could not be fetched or unpacked: check the index, the network or the archive."""

    exit_status = 4


class HashMismatch(FetchFailed):
    """What was fetched is not what was pinned: do not build it; check the pin and the index."""


class NoSources(FetchFailed):
    """The source lacks files that its own `setup.py` names: build from the repository instead."""


class ToolchainError(ArchpatchError):
    """A tool that the build needs is missing or does not fit: install what the message names."""

    exit_status = 4


class CaptureFailed(ArchpatchError):
    """`setup.py` failed before it could compile anything: see its own error in the message."""

    exit_status = 4


class BuildFailed(ArchpatchError):
    """The compile failed: see the first compiler error and the log that the message names."""

    exit_status = 4


class DeviceCodeMismatch(BuildFailed):
    """The wheel does not hold the device code that was asked for: look for what changed it, such as other flags."""


class DiskFull(ArchpatchError):
    """No space is left: free some, or point `TMPDIR` or the wheelhouse elsewhere."""

    exit_status = 4


# --- 5: the wheelhouse or a cache is damaged or in conflict ------------------------------------


class WheelhouseDamaged(ArchpatchError):
    """A wheel or record does not verify: remove it, or build it again."""

    exit_status = 5


class WheelhouseConflict(ArchpatchError):
    """The name is taken by a wheel with another fingerprint: allow replacing it, or choose another wheelhouse."""

    exit_status = 5


class CacheRefused(ArchpatchError):
    """An archive of kernels is hostile, damaged, or of another lane: delete it, and let a trusted job write it anew."""

    exit_status = 5
