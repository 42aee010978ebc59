"""What a `setup.py` reads beside itself, where only the file itself was kept: made up, so that it runs all the same."""

# ruff: noqa: ANN401, C901, PTH103, PTH110, PTH112, PTH113, PTH118, PTH119, PTH120, PTH122 - it stands in for untyped functions of the standard library

from __future__ import annotations

import builtins
import glob
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["install"]

_SOURCES = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".hip", ".inl")
#: Folders that a `setup.py` demands to be there (submodules), and those of sources.
_FOLDERS = re.compile(r"(^|/)(third_?party|3rd_?party|cutlass|csrc|src|external|extern|submodules|deps|kernels?)(/|$)")
_VERSIONS = re.compile(r"version|__init__|about|meta", re.IGNORECASE)


def made_up(path: str) -> str:
    """Return the content of a file that is not there."""
    name = os.path.basename(path)
    if name.endswith(".py"):
        return '__version__ = "0.0.0"\nversion = "0.0.0"\nVERSION = (0, 0, 0)\n' if _VERSIONS.search(name) else ""
    return "0.0.0\n" if _VERSIONS.search(name) else ""


def install(folder: Path) -> None:
    """Put it in place, for this process and for good: for paths in `folder` alone."""
    root = os.path.realpath(folder)

    def is_absent(path: Any) -> bool:
        if not isinstance(path, str | os.PathLike):
            return False
        full = os.path.realpath(os.fspath(path))
        return full.startswith(root + os.sep) and not real_exists(full)

    def is_wanted(path: Any) -> bool:
        if not is_absent(path):
            return False
        below = os.path.relpath(os.path.realpath(os.fspath(path)), root)
        return below.endswith(_SOURCES) or _FOLDERS.search(below) is not None

    real_exists, real_isdir, real_open = os.path.exists, os.path.isdir, builtins.open
    real_iglob, real_listdir = glob.iglob, os.listdir

    def fake_open(file: Any, mode: str = "r", *rest: Any, **kwargs: Any) -> Any:
        if isinstance(mode, str) and not set(mode) & set("wax+") and is_absent(file):
            text = made_up(os.fspath(file))
            return io.BytesIO(text.encode()) if "b" in mode else io.StringIO(text)
        if isinstance(mode, str) and set(mode) & set("wax") and is_absent(file):
            os.makedirs(os.path.dirname(os.path.realpath(os.fspath(file))), exist_ok=True)
        return real_open(file, mode, *rest, **kwargs)

    def fake_glob(pattern: Any, **kwargs: Any) -> list[str]:
        found = list(real_iglob(pattern, **kwargs))
        text = os.fspath(pattern)
        if found or not isinstance(text, str) or not text.endswith(_SOURCES) or not glob.has_magic(text):
            return found
        return [_named(text)]

    def fake_path_glob(self: Path, pattern: str, **_: Any) -> Iterator[Path]:
        yield from (Path(name) for name in fake_glob(os.path.join(self, pattern), recursive=True))

    builtins.open = io.open = fake_open  # type: ignore[assignment]
    glob.glob = fake_glob  # type: ignore[assignment]
    glob.iglob = lambda pattern, **kwargs: iter(fake_glob(pattern, **kwargs))  # type: ignore[assignment, misc]
    Path.glob = fake_path_glob  # type: ignore[assignment, method-assign]
    Path.rglob = lambda self, pattern, **_: fake_path_glob(self, "**/" + pattern)  # type: ignore[assignment, method-assign, misc]
    os.path.exists = lambda path: real_exists(path) or is_wanted(path)  # type: ignore[assignment]
    os.path.isfile = _isfile(os.path.isfile, is_wanted)  # type: ignore[assignment]
    os.path.isdir = lambda path: real_isdir(path) or (is_wanted(path) and not os.path.splitext(path)[1])  # type: ignore[assignment]
    os.listdir = lambda path=".": [] if is_absent(path) else real_listdir(path)  # type: ignore[assignment, misc]
    Path.exists = lambda self, **_: os.path.exists(self)  # type: ignore[assignment, method-assign, misc]
    Path.is_file = lambda self, **_: os.path.isfile(self)  # type: ignore[assignment, method-assign, misc]
    Path.is_dir = lambda self, **_: os.path.isdir(self)  # type: ignore[assignment, method-assign, misc]


def _isfile(real: Any, is_wanted: Any) -> Any:
    return lambda path: real(path) or (is_wanted(path) and os.fspath(path).endswith(_SOURCES))


def _named(pattern: str) -> str:
    """Return a file name that fits the pattern."""
    text = pattern.replace("**/", "").replace("*", "stub")
    return re.sub(r"\[(!?)(.)[^\]]*\]", lambda match: "x" if match[1] else match[2], text).replace("?", "x")
