"""Which rewrite this is: all that a fingerprint needs to know of it, without what a rewrite needs."""

from __future__ import annotations

from typing import Final

__all__ = ["REWRITE_GENERATION"]

#: Part of every build fingerprint: raised once per release in which an input gives other bytes than in the one before.
REWRITE_GENERATION: Final = 6
