"""What becomes of one input, and what a run needs to know of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Campaign", "Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one input: `outcome` is one of its campaign's, `shapes` say why, `failures` what does not hold."""

    number: int
    kinds: tuple[str, ...]
    outcome: str
    shapes: tuple[str, ...] = ()
    seconds: float = 0.0
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """One thing to run inputs through: `attempt` tries the input of a seed and a number, `source` is its bytes.

    `kinds` and `outcomes` are the rows and the columns of the summary, `suffix` is for a file with the input.
    """

    inputs: int
    kinds: tuple[str, ...]
    outcomes: tuple[str, ...]
    suffix: str
    attempt: Callable[[int, int], Verdict]
    source: Callable[[int, int], bytes]
