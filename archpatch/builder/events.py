"""What a long job tells while it runs; the command line shows it, a library user may ignore it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Listener", "Silent"]


class Listener(Protocol):
    """Hears of what happens. No method may raise, but to end the work: what it raises comes out of that."""

    def stage(self, text: str) -> None:
        """Take note that a step begins: `fetching mamba_ssm`."""

    def warn(self, text: str) -> None:
        """Take note of something that a person should know."""

    def compiling(self, done: int, total: int, files: tuple[str, ...]) -> None:
        """Take note that `done` of `total` source files are compiled and `files` are being compiled now."""


class Silent:
    """Hears nothing."""

    def stage(self, text: str) -> None:
        """Ignore it."""

    def warn(self, text: str) -> None:
        """Ignore it."""

    def compiling(self, done: int, total: int, files: tuple[str, ...]) -> None:
        """Ignore it."""
