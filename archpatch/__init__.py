"""Compile CUDA extensions for the GPUs that will run them, and prove it from the binary."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from archpatch import nox
    from archpatch.arch.arch import Arch, ArchRequest, DeviceCode, Pair
    from archpatch.arch.coverage import Verdict, runs_on
    from archpatch.arch.gpu import Gpu, GpuRequest
    from archpatch.arch.selection import OnMissing, Policy, Selection, select
    from archpatch.errors import (
        ArchpatchError,
        BuildFailed,
        CacheRefused,
        CaptureFailed,
        ConfigError,
        DeviceCodeMismatch,
        DiskFull,
        FetchFailed,
        HashMismatch,
        InvalidArchList,
        KnownBadArch,
        MissingFile,
        NoMatchingArch,
        NoSources,
        SetupRefused,
        SlimRefused,
        ToolchainError,
        UnknownGpu,
        UnknownPackage,
        UnreadableBinary,
        UsageError,
        WheelhouseConflict,
        WheelhouseDamaged,
    )
    from archpatch.rewrite.outcome import Refused, Rewritten, Unchanged
    from archpatch.rewrite.source import rewrite_source

__version__ = "0.1.0"

__all__ = [
    "Arch",
    "ArchRequest",
    "ArchpatchError",
    "BuildFailed",
    "CacheRefused",
    "CaptureFailed",
    "ConfigError",
    "DeviceCode",
    "DeviceCodeMismatch",
    "DiskFull",
    "FetchFailed",
    "Gpu",
    "GpuRequest",
    "HashMismatch",
    "InvalidArchList",
    "KnownBadArch",
    "MissingFile",
    "NoMatchingArch",
    "NoSources",
    "OnMissing",
    "Pair",
    "Policy",
    "Refused",
    "Rewritten",
    "Selection",
    "SetupRefused",
    "SlimRefused",
    "ToolchainError",
    "Unchanged",
    "UnknownGpu",
    "UnknownPackage",
    "UnreadableBinary",
    "UsageError",
    "Verdict",
    "WheelhouseConflict",
    "WheelhouseDamaged",
    "__version__",
    "nox",
    "rewrite_source",
    "runs_on",
    "select",
]

#: The modules that define the public names. They are imported when a name is first used, so that `import archpatch`
#: loads neither libcst nor anything else that only one command needs.
_MODULES = {
    "archpatch.arch.arch": ("Arch", "ArchRequest", "DeviceCode", "Pair"),
    "archpatch.arch.coverage": ("Verdict", "runs_on"),
    "archpatch.arch.gpu": ("Gpu", "GpuRequest"),
    "archpatch.arch.selection": ("OnMissing", "Policy", "Selection", "select"),
    "archpatch.rewrite.outcome": ("Refused", "Rewritten", "Unchanged"),
    "archpatch.rewrite.source": ("rewrite_source",),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'archpatch' has no attribute {name!r}")
    if name == "nox":
        return import_module("archpatch.nox")
    module = next((module for module, names in _MODULES.items() if name in names), "archpatch.errors")
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
