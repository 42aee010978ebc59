"""What torch was built for; set per run."""

from __future__ import annotations

__version__ = "2.14.1+cu130"
cuda: str | None = "13.0"
hip: str | None = None
rocm: str | None = None
xpu: str | None = None
debug = False
git_version = "unknown"
