"""Find in a build's log what really went wrong: the first compiler error, not the last line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile

__all__ = ["first_error", "is_disk_full"]

#: In the order of trust: what a compiler says, then what the tools around it say.
_COMPILER = re.compile(
    r"""^(?:
        # cudafe++ and cicc: file.cu(12): error: ..., At end of source: error: ...
        (?:\S.*?\(\d+\)|At\ end\ of\ source):\ (?:catastrophic\ |internal\ )?error\b
      | \S.*?:\d+(?::\d+)?:\ (?:fatal\ )?error:           # gcc and clang: file.cpp:12:3: error: ...
      | \S.*:\ internal\ compiler\ error\b
      | nvcc\ fatal\b | ptxas\ (?:.*;\ )?(?:fatal|error)\b | fatbinary\ fatal\b | nvlink\ (?:fatal|error)\b
      | \S*cicc:.*error | \S*(?:cc1plus|cc1|c\+\+|g\+\+|gcc|clang)(?:-[\d.]+)?:\ (?:fatal\ )?error:
      | .*\bKilled\b.*(?:cicc|ptxas|cc1plus|nvcc|cudafe) | nvcc\ error\b | ninja:\ error: )""",
    re.VERBOSE,
)
_CMAKE = re.compile(r"^CMake Error\b")
_LINKER = re.compile(
    r"^(?:\S*[/-])?(?:ld|collect2|mold)(?:\.\w+)?:\s(?!warning:|NOTE:|skipping )|undefined reference to|cannot find -l"
)
#: What it could not run: `sh: 1: /opt/nvcc: Permission denied`.
_SHELL = re.compile(r"^\S*\b(?:ba|da)?sh: (?:(?:line )?\d+: )?\S.*: \S")
_PYTHON = re.compile(r"^(?:[\w.]+(?:Error|Exception|Exit)\b|error:)")
_DISK_FULL = re.compile(r"No space left on device", re.IGNORECASE)
_TRACEBACK = re.compile(r"^Traceback \(")
#: How many lines of an error are shown: compilers quote the source below it. Python's tells all in its own line.
_CONTEXT = 3


def first_error(lines: Iterable[str]) -> str | None:
    """Return the first error of a build's output with the lines that follow it, or None where none is seen.

    A compiler's own error beats a linker's, which beats CMake's, the shell's and Python's, in this order: a failed nvcc
    makes a long tail of tracebacks.
    """
    kept = [line.rstrip() for line in lines if line.strip()]
    for pattern in (_COMPILER, _LINKER, _CMAKE, _SHELL, _PYTHON):
        for number, line in enumerate(kept):
            if pattern.search(line):
                shown = kept[number : number + (1 if pattern is _PYTHON else _CONTEXT)]
                return "\n".join(takewhile(lambda line: not _TRACEBACK.match(line), shown)).strip()
    return None


def is_disk_full(lines: Iterable[str]) -> bool:
    """Tell whether the build failed because a disk is full."""
    return any(_DISK_FULL.search(line) for line in lines)
