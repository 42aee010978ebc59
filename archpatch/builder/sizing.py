"""How small device code is made: nvcc's compression, and whether it keeps the lines of its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from archpatch.builder.toolkit import Toolkit
from archpatch.errors import UsageError

__all__ = ["COMPRESS_MODES", "Sizing"]

COMPRESS_MODES: Final = ("auto", "default", "size", "balance", "speed", "none")
#: What is compressed so needs a driver of CUDA 12.4 at least (NVIDIA's manual of nvcc, `--compress-mode`). Every driver
#: that CUDA 13 runs on is newer; with 12.8 and 12.9 it would be a new demand.
_SAFE_SINCE: Final = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How small: `compress_mode` is nvcc's, or `auto`, which is `size` where every driver can read it.

    Without `lineinfo`, nvcc is told neither to keep source lines nor to print what ptxas has to say. Raises
    `UsageError` for a mode that there is not.
    """

    compress_mode: str = "auto"
    lineinfo: bool = True

    def __post_init__(self) -> None:
        if self.compress_mode not in COMPRESS_MODES:
            raise UsageError(
                f"compress-mode {self.compress_mode!r} is not one of {', '.join(COMPRESS_MODES)}", remedy="Correct it."
            )

    def flags(self, toolkit: Toolkit) -> tuple[str, ...]:
        """Return what to tell nvcc first, so that flags of the package rank above.

        Raises `UsageError` for a mode that this nvcc does not have.
        """
        if self.compress_mode == "auto":
            knows = "--compress-mode" in toolkit.options and toolkit.version.major >= _SAFE_SINCE
            return ("--compress-mode=size",) if knows else ()
        if "--compress-mode" in toolkit.options:
            return (f"--compress-mode={self.compress_mode}",)
        if self.compress_mode == "default":
            return ()
        raise UsageError(
            f"--compress-mode {self.compress_mode}: nvcc {toolkit.version} has no such option",
            remedy="Take CUDA 12.8 or newer, or leave the option out.",
        )

    def inputs(self, toolkit: Toolkit | None) -> dict[str, str]:
        """Return what of it decides the bytes of a wheel, by name."""
        flags = () if toolkit is None else self.flags(toolkit)
        return {**({"sizing": " ".join(flags)} if flags else {}), **({} if self.lineinfo else {"lineinfo": "no"})}
