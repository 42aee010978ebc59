"""Compile CUDA extensions for the GPUs that will run them, and prove it from the binary."""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

#: Public name -> the module that defines it. They are imported when they are first used, so that `import archpatch`
#: loads neither libcst nor anything else that only one command needs.
_PUBLIC = {
    "Arch": "archpatch.arch.arch",
    "ArchRequest": "archpatch.arch.arch",
    "DeviceCode": "archpatch.arch.arch",
    "Pair": "archpatch.arch.arch",
    "Gpu": "archpatch.arch.gpu",
    "GpuRequest": "archpatch.arch.gpu",
    "Verdict": "archpatch.arch.coverage",
    "runs_on": "archpatch.arch.coverage",
    "OnMissing": "archpatch.arch.selection",
    "Policy": "archpatch.arch.selection",
    "Selection": "archpatch.arch.selection",
    "select": "archpatch.arch.selection",
    "rewrite_source": "archpatch.rewrite.source",
    "Rewritten": "archpatch.rewrite.outcome",
    "Unchanged": "archpatch.rewrite.outcome",
    "Refused": "archpatch.rewrite.outcome",
}
_ERRORS = (
    "ArchpatchError",
    "BuildFailed",
    "CaptureFailed",
    "ConfigError",
    "DeviceCodeMismatch",
    "DiskFull",
    "FetchFailed",
    "HashMismatch",
    "InvalidArchList",
    "MissingFile",
    "NoMatchingArch",
    "NoSources",
    "SetupRefused",
    "ToolchainError",
    "UnknownGpu",
    "UnknownPackage",
    "UnreadableBinary",
    "UsageError",
    "WheelhouseConflict",
    "WheelhouseDamaged",
)
_PUBLIC |= dict.fromkeys(_ERRORS, "archpatch.errors")

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604 - the names are strings, kept in the table above


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'archpatch' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
