"""JSON objects with a digest of themselves, by which a torn or edited one is known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from archpatch.storage.fingerprint import fingerprint

__all__ = ["seal", "unseal"]

_DIGEST: Final = "digest"


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return `content`, which JSON must be able to hold, with the digest of it all."""
    return {**content, _DIGEST: fingerprint(content)}


def unseal(text: str) -> dict[str, Any]:
    """Return the content of a sealed object's JSON; raises `ValueError` where it is not as it was sealed."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - what was read is wrong, not how this was called
    if content.pop(_DIGEST, None) != fingerprint(content):
        raise ValueError("it was changed after it was written")
    return content
