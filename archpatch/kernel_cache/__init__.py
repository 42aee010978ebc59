"""Caches of just-in-time compilers: one root, a key, an archive that moves, a shared folder, a report."""

from __future__ import annotations

from archpatch.kernel_cache.variables import environment

__all__ = ["environment"]
