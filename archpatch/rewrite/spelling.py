"""The words of nvcc's arch flags as they stand in a `setup.py`: which belong together, and how to write them anew.

Text only. A word is one argument of nvcc, or what is known of it: `UNKNOWN` for an expression, `COMPUTED` for a
string that is put together at run time and has arch flags in it (which is refused where it stands).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from archpatch.arch.arch import Pair
from archpatch.arch.gencode import (
    ARCH_OPTIONS,
    CODE_OPTIONS,
    GENCODE_OPTIONS,
    parse_flags,
    parse_gencode,
)

__all__ = ["HOLE", "Flag", "NotAFlag", "Opaque", "Word", "gencode_option", "is_arch_flag", "keep_codes", "read_flags"]

#: Stands for a placeholder in the text of an f-string; U+FFFC, "object replacement character".
HOLE: Final = "\ufffc"


class Opaque(Enum):
    """A word whose text is not known."""

    UNKNOWN = "unknown"
    COMPUTED = "computed"


Word = str | Opaque


@dataclass(frozen=True, slots=True)
class Flag:
    """One arch flag: the words from `start` up to `stop`, and the pairs that they mean."""

    start: int
    stop: int
    option: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class NotAFlag:
    """A word that looks like an arch flag and is none that nvcc would take; `shape` names the refusal."""

    start: int
    shape: str


_OPTIONS: Final = (*GENCODE_OPTIONS, *ARCH_OPTIONS, *CODE_OPTIONS)
_LONE: Final = (*ARCH_OPTIONS, *CODE_OPTIONS)
_DEVICE = re.compile(r"(?:sm|compute|lto)_|native$|all(?:-major)?$")
_VALUE = re.compile(r"arch=(?:compute|sm)_|(?<![\w-])arch=.*code=|code=\W*(?:sm|compute)_|(?<![\w-])arch=$")
_WITHIN = re.compile(
    r"(?<![\w-])(?:-gencode|--generate-code)(?!\w)"
    rf"|(?<![\w-])(?:-arch|--gpu-architecture|-code|--gpu-code)(?:=(?:{_DEVICE.pattern}|[{{%{HOLE}]|$)|\s+(?:sm|compute)_)"
)


def is_arch_flag(text: str) -> bool:
    """Whether `text` is, holds or begins a CUDA arch flag.

    Not meant are `-arch arm64` (Apple), `--offload-arch` (ROCm) and `-march=native` (the host); a lone `-arch` may
    still be either, its value tells.
    """
    return text in _LONE or _WITHIN.search(text) is not None or _VALUE.search(text) is not None


def read_flags(words: Sequence[Word]) -> Iterator[Flag | NotAFlag]:
    """Yield the arch flags among neighbouring `words`, and what looks like one and is none."""
    position = 0
    while position < len(words):
        word = words[position]
        after = words[position + 1] if position + 1 < len(words) else None
        found, length = (None, 1) if isinstance(word, Opaque) else _read_one(word, after, position)
        if found is not None:
            yield found
        position += length


def keep_codes(text: str, pairs: Sequence[Pair]) -> str:
    """Return a `-gencode` value, or the whole flag, with no other codes than those of `pairs`.

    What surrounds the list of codes (brackets, quotes, escaped ones) stays while there are several.
    """
    codes = ",".join(str(pair.code) for pair in pairs)
    match = re.fullmatch(r"(?P<head>.*code=)(?P<open>[^\w]*)\w+(?:\s*,\s*\w+)*(?P<close>[^\w]*)", text, re.DOTALL)
    if match is None:
        option = text.partition("=")[0] + "=" if text.startswith("-") else ""
        return f"{option}arch={pairs[0].spelled[0]},code={codes if len(pairs) == 1 else f'[{codes}]'}"
    return match["head"] + (codes if len(pairs) == 1 else match["open"] + codes + match["close"])


def gencode_option(option: str) -> str:
    """Return the `-gencode` that fits beside `option`: long beside long, short beside short."""
    if option in GENCODE_OPTIONS:
        return option
    return "--generate-code" if option.startswith("--") else "-gencode"


def _read_one(word: str, after: Word | None, position: int) -> tuple[Flag | NotAFlag | None, int]:
    """Read the flag that begins with `word`: what it is, and how many words it takes."""
    if len(word.split()) > 1:
        return (NotAFlag(position, "one-string") if is_arch_flag(word) else None), 1
    option, equals, value = word.partition("=")
    if option in CODE_OPTIONS:
        is_flag = is_arch_flag(word) and (equals or isinstance(after, str))
        return (NotAFlag(position, "gpu-code") if is_flag else None), 1
    if option in (*GENCODE_OPTIONS, *ARCH_OPTIONS) and equals:
        return (_flag(position, option, value, length=1), 1) if is_arch_flag(word) else (None, 1)
    if word in (*GENCODE_OPTIONS, *ARCH_OPTIONS):
        return _read_separate(word, after, position)
    if parse_gencode(word) is not None or _VALUE.match(word):
        return NotAFlag(position, "orphan-value"), 1
    return (NotAFlag(position, "one-string"), 1) if is_arch_flag(word) else (None, 1)


def _read_separate(option: str, after: Word | None, position: int) -> tuple[Flag | NotAFlag | None, int]:
    """Read an option whose value is the next word."""
    if after is Opaque.COMPUTED:
        return None, 1
    if after is Opaque.UNKNOWN:
        return NotAFlag(position, "computed-value"), 1
    if after is None or after.startswith("-"):
        return NotAFlag(position, "orphan-flag"), 1
    if option in ARCH_OPTIONS and not _DEVICE.match(after):
        return None, 2
    if option in GENCODE_OPTIONS and not _VALUE.search(after):
        return NotAFlag(position, "orphan-flag"), 1
    return _flag(position, option, after, length=2), 2


def _flag(position: int, option: str, value: str, *, length: int) -> Flag | NotAFlag:
    flags = parse_flags([f"{option}={value}"])
    if not flags.problems:
        return Flag(position, position + length, option, flags.pairs)
    return NotAFlag(position, "machine-dependent" if re.match("native|all", value) else "unknown-arch")
