"""Where torch keeps its version class."""

from __future__ import annotations

from torch import TorchVersion, __version__

__all__ = ["TorchVersion", "__version__"]
