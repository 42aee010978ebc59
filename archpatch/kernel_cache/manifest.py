"""The manifest in an archive: which lane it is of, and what it holds, down to each file's hash."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archpatch.errors import CacheRefused
from archpatch.kernel_cache.lane import Lane

__all__ = ["NAME", "SCHEMA", "Manifest"]

SCHEMA = "archpatch.kernels/1"
#: The most bytes of one: a million files, with a line for each.
_LONGEST = 1 << 28
#: Its name in an archive, where it is the last member.
NAME = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an archive says of itself.

    `files` are the SHA-256 of each file by its name in the archive, `idle` counts for an entry in how many saves in a
    row nothing had used it (absent: 0). `builds` are the folders that ninja built: where they lay, and the digest of
    what they were built from.
    """

    key: str
    lane: Lane
    inputs: Mapping[str, str]
    files: Mapping[str, str]
    idle: Mapping[str, int]
    builds: Mapping[str, tuple[str, str]]

    def to_json(self) -> bytes:
        """Return the manifest as it is written: the same content gives the same bytes."""
        data = {
            "schema": SCHEMA,
            "key": self.key,
            "lane": self.lane.to_json(),
            "inputs": dict(self.inputs),
            "files": dict(self.files),
            "idle": {name: count for name, count in self.idle.items() if count},
            "builds": {name: list(build) for name, build in self.builds.items()},
        }
        return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode("ascii")

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a manifest. Raises `CacheRefused` where it is missing, or is none of this schema."""
        try:
            if path.stat().st_size > _LONGEST:
                raise CacheRefused(f"its manifest is longer than {_LONGEST >> 20} MiB")
            data = json.loads(path.read_bytes())
            if data["schema"] != SCHEMA:
                raise CacheRefused(f"its manifest is of schema {data['schema']!r:.50}, not {SCHEMA}")
            return cls(
                key=_key(data["key"]),
                lane=Lane.from_json(data["lane"]),
                inputs=_texts(data["inputs"]),
                files=_texts(data["files"]),
                idle={_text(name): int(count) for name, count in data["idle"].items()},
                builds={_text(name): (_text(place), _text(digest)) for name, (place, digest) in data["builds"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise CacheRefused(f"it has no manifest that can be read: {type(error).__name__}") from None


def _key(value: Any) -> str:  # noqa: ANN401 - what JSON holds
    """Return a key, which ends up on terminals and in a CI's variables: it has no other characters than keys have."""
    if re.fullmatch(r"[A-Za-z0-9._+-]{1,500}", _text(value)) is None:
        raise ValueError("no key")
    return _text(value)


def _text(value: Any) -> str:  # noqa: ANN401 - as above
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _texts(value: Any) -> dict[str, str]:  # noqa: ANN401 - as above
    return {_text(name): _text(text) for name, text in value.items()}
