"""How small device code is made: nvcc's compression, and whether it keeps the lines of its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from archpatch.builder.toolkit import Toolkit
from archpatch.errors import UsageError

__all__ = ["COMPRESS_MODES", "Sizing"]

#: `size` takes fatbinary 0.3 to 0.7 s of one core for each MB of machine code: 89 s for causal_conv1d's largest file,
#: where `balance` takes 0.7 s. So nvcc's own default is the default.
COMPRESS_MODES: Final = ("default", "size", "balance", "speed", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How small: `compress_mode` is nvcc's `--compress-mode`, `default` leaves it to nvcc or to the package.

    Without `lineinfo`, nvcc is told neither to keep source lines nor to print what ptxas has to say. Raises
    `UsageError` for a mode that there is not.
    """

    compress_mode: str = "default"
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
        if self.compress_mode == "default":
            return ()
        if "--compress-mode" in toolkit.options:
            return (f"--compress-mode={self.compress_mode}",)
        raise UsageError(
            f"--compress-mode {self.compress_mode}: nvcc {toolkit.version} has no such option",
            remedy="Take CUDA 12.8 or newer, or leave the option out.",
        )

    def inputs(self, toolkit: Toolkit | None) -> dict[str, str]:
        """Return what of it decides the bytes of a wheel, by name."""
        flags = () if toolkit is None else self.flags(toolkit)
        return {**({"sizing": " ".join(flags)} if flags else {}), **({} if self.lineinfo else {"lineinfo": "no"})}
