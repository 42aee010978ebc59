"""Keys of CI caches: a readable prefix that says what for, and a digest of all that decides the content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archpatch.storage.fingerprint import fingerprint

__all__ = ["Key"]

#: Hexadecimal digits of the digest in a key: 64 bits, so that no two keys of a cache meet by chance.
_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key: `parts` from the most to the least general (`wheelhouse`, `h200`, `torch2.14.1-cu130`), then the inputs.

    The last `passing` parts (a week) say when, not what for: a cache whose key differs in them is worth restoring too.
    The text has only letters, digits, `.`, `_`, `+` and `-`, which every CI's cache takes.
    """

    parts: tuple[str, ...]
    inputs: Mapping[str, str]
    passing: int = 0

    def __str__(self) -> str:
        return f"{self.prefix}{fingerprint(self.inputs)[:_DIGITS]}"

    @property
    def prefix(self) -> str:
        """The part that a person reads; a cache under any key with it is worth restoring."""
        return _joined(self.parts)

    @property
    def restore_prefixes(self) -> tuple[str, ...]:
        """What a key may start with to be worth restoring, the best first."""
        count = len(self.parts)
        return tuple(_joined(self.parts[:end]) for end in range(count, count - self.passing - 1, -1))

    def to_json(self) -> dict[str, Any]:
        """Return `{key, restore_prefixes, inputs}` as the command line prints it."""
        return {
            "key": str(self),
            "restore_prefixes": list(self.restore_prefixes),
            "inputs": dict(sorted(self.inputs.items())),
        }


def _joined(parts: tuple[str, ...]) -> str:
    return "".join(f"{re.sub(r'[^A-Za-z0-9._+]+', '-', part)}-" for part in parts)
