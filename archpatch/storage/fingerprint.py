"""Digests of named inputs: the same inputs give the same digest on every machine, in every locale and folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["differing", "fingerprint"]


def fingerprint(inputs: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of `inputs`, which are JSON values; the order of keys does not matter."""
    canonical = json.dumps(dict(inputs), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the inputs that differ, or that only one side has, sorted."""
    return tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))
