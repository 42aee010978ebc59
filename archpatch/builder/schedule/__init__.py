"""How the compilers of all builds of one command share the cores and the memory of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["STAND_IN"]

#: What torch starts in the place of nvcc.
STAND_IN: Final = Path(__file__).with_name("nvcc_stand_in.py")
