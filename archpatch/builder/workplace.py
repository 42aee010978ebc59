"""Where one build happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from archpatch.builder.events import Listener, Silent

__all__ = ["Workplace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """A fresh tree, the interpreter that holds torch, the variables that it runs with, and the log of it all."""

    tree: Path
    python: Path
    environment: Mapping[str, str]
    log: Path
    listener: Listener = field(default_factory=Silent)

    def with_variables(self, variables: Mapping[str, str]) -> Workplace:
        """Return the same place with other values of some variables."""
        return replace(self, environment={**self.environment, **variables})
