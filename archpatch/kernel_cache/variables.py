"""The variables that move every compiler's cache below one root."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from archpatch.errors import UsageError
from archpatch.kernel_cache.compilers import COMPILERS, SETTINGS, Compiler
from archpatch.kernel_cache.lane import Lane, find_lane

__all__ = ["FORMATS", "environment", "folder_of", "left_to_set"]


def environment(root: str | Path, lane: Lane | None = None) -> dict[str, str]:
    """Return the variables that put all caches below `root`, in the lane of this machine or in `lane`.

    They are meant to come first, so that a job's own setting wins: `{**environment(root), **os.environ}`. Nothing is
    created, and torch is not imported. Raises `UsageError` for a root that a variable cannot hold.
    """
    top = Path(root).absolute()
    # DeepGEMM reads DG_JIT_CACHE_DIR as a list of folders.
    if any(character in str(top) for character in ":\n"):
        raise UsageError(f"{top}: no colon may be in a root's path", remedy="Choose another folder.")
    lane = lane or find_lane()
    folders = {
        name: str(top / folder_of(compiler, lane) / below)
        for compiler in COMPILERS
        for name, below in compiler.variables
    }
    return folders | dict(SETTINGS)


def left_to_set(environment: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `environ` lacks: a later line of `$GITHUB_ENV` would override what a job has set."""
    return {name: value for name, value in environment.items() if name not in environ}


def folder_of(compiler: Compiler, lane: Lane) -> PurePosixPath:
    """Return the folder of a compiler's cache, below the root."""
    return (lane.timed if compiler.timed else lane.shared) / compiler.name


def _shell(environment: Mapping[str, str]) -> str:
    """Write lines for any POSIX shell, which set what is not set there."""
    quoted = {name: value.replace("'", _QUOTE) for name, value in environment.items()}
    return "".join(f"[ -n \"${{{name}+set}}\" ] || {name}='{value}'; export {name}\n" for name, value in quoted.items())


def _lines(environment: Mapping[str, str]) -> str:
    """Write `NAME=value` lines, which `$GITHUB_ENV` and docker's `--env-file` take as they are, without quotes."""
    return "".join(f"{name}={value}\n" for name, value in environment.items())


def _k8s(environment: Mapping[str, str]) -> str:
    """Write the list that a container's `env:` takes; a JSON string is a YAML string too."""
    return "".join(f"- name: {name}\n  value: {json.dumps(value)}\n" for name, value in environment.items())


def _ray(environment: Mapping[str, str]) -> str:
    return json.dumps({"env_vars": dict(environment)}, indent=2) + "\n"


_QUOTE = "'\"'\"'"

#: Format -> the text of an environment in it.
FORMATS: Mapping[str, Callable[[Mapping[str, str]], str]] = {
    "shell": _shell,
    "github": _lines,
    "docker": _lines,
    "k8s": _k8s,
    "ray": _ray,
}
