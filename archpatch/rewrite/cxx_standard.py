"""A pinned C++ standard: `-std=c++17` becomes what the installed torch's headers demand."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["falls_short", "mentions_standard", "raised"]

_FLAG = re.compile(r"(?P<option>--?std=(?:c|gnu)\+\+)(?P<year>\w\w)")
_MENTION = re.compile(r"(?<![\w-])--?std=(?:c|gnu)\+\+(?P<year>\w\w)?")
#: The names that compilers took for a standard before it had its year (GCC's manual, "C Dialect Options").
_DRAFTS: Final = {"0x": 11, "1y": 14, "1z": 17, "2a": 20, "2b": 23, "2c": 26}
_FIRST: Final = 98  # of the last century, the only one


def raised(text: str, standard: int) -> str | None:
    """Return the flag with `standard` (its two digits) in the same spelling, None where `text` demands no less."""
    match = _FLAG.fullmatch(text)
    if match is None or _order(match["year"]) >= standard:
        return None
    return f"{match['option']}{standard}"


def mentions_standard(text: str) -> bool:
    """Whether a C++ standard is set somewhere in `text`."""
    return _MENTION.search(text) is not None


def falls_short(text: str, standard: int) -> bool:
    """Whether `text` sets, somewhere in it, a lower standard, or one that is only known at run time."""
    return any(not match["year"] or _order(match["year"]) < standard for match in _MENTION.finditer(text))


def _order(year: str) -> int:
    number = _DRAFTS.get(year) or (int(year) if year.isdecimal() else _FIRST + 1)
    return 0 if number == _FIRST else number
