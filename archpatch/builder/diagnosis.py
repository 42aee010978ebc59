"""Find in a build's log what really went wrong: the first compiler error, not the last line."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["first_error", "is_disk_full"]

#: In the order of trust: what a compiler says, then what the tools around it say.
_COMPILER = re.compile(
    r"""^(?:
        \S.*?\(\d+\):\ (?:catastrophic\ )?error\b         # cudafe++ and cicc: file.cu(12): error: ...
      | \S.*?:\d+(?::\d+)?:\ (?:fatal\ )?error:           # gcc and clang: file.cpp:12:3: error: ...
      | nvcc\ fatal\b | ptxas\ (?:fatal|error)\b | fatbinary\ fatal\b | nvlink\ (?:fatal|error)\b
      | \S*cicc:.*error | (?:cc1plus|c\+\+|g\+\+|gcc|clang\+\+):\ (?:fatal\ )?error:
      | .*\bKilled\b.*(?:cicc|ptxas|cc1plus|nvcc|cudafe) | nvcc\ error\b | ninja:\ error: )""",
    re.VERBOSE,
)
_CMAKE = re.compile(r"^CMake Error\b")
_LINKER = re.compile(r"^(?:.*/)?(?:ld|collect2)(?:\.\w+)?:\s|undefined reference to|cannot find -l")
_PYTHON = re.compile(r"^(?:[\w.]+(?:Error|Exception|Exit)\b|error:)")
_DISK_FULL = re.compile(r"No space left on device", re.IGNORECASE)
_CONTEXT = 3


def first_error(lines: Iterable[str]) -> str | None:
    """Return the first error of a build's output with the lines that follow it, or None where none is seen.

    A compiler's own error beats a linker's, which beats CMake's, which beats Python's: a failed nvcc makes a long tail
    of tracebacks.
    """
    kept = [line.rstrip() for line in lines if line.strip()]
    for pattern in (_COMPILER, _LINKER, _CMAKE, _PYTHON):
        for number, line in enumerate(kept):
            if pattern.search(line):
                return "\n".join(kept[number : number + _CONTEXT]).strip()
    return None


def is_disk_full(lines: Iterable[str]) -> bool:
    """Tell whether the build failed because a disk is full."""
    return any(_DISK_FULL.search(line) for line in lines)
