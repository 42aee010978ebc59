"""What a rewrite can end in. Imports no libcst, so that any layer can name these types for free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from archpatch.arch.arch import Pair
from archpatch.arch.selection import Action, Selection
from archpatch.errors import ArchpatchError, NoMatchingArch, SetupRefused

__all__ = [
    "REWRITE_GENERATION",
    "FlagSource",
    "Outcome",
    "PairAction",
    "PairReport",
    "Refusal",
    "Refused",
    "Rewritten",
    "Unchanged",
]

#: Part of every build fingerprint: raised once per release in which an input gives other bytes than in the one before.
REWRITE_GENERATION: Final = 6

PairAction = Action | Literal["guarded"]
"""What becomes of a pair of the text; `guarded`: the guard decides when `setup.py` runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """One pair of the file: `line` counts from 1 in the source as given (for an added pair, the one it stands by)."""

    pair: Pair
    line: int
    action: PairAction
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return `{pair, line, action, reason}` as the command line and a wheel's record have it."""
        return {"pair": list(self.pair.spelled), "line": self.line, "action": self.action, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A place that the text alone does not prove; `shape` is a short, stable name such as `f-string`."""

    line: int
    shape: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.shape}: {self.reason}. {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSource:
    """A place that decides about arch flags only when `setup.py` runs, so that the guard takes over.

    `line` counts from 1 in the source as given; `shape` is a short, stable name such as `f-string`.
    """

    line: int
    shape: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return `{line, shape, action, reason}` as the command line and a wheel's record have it."""
        return {"line": self.line, "shape": self.shape, "action": "guarded", "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The file changed; `notes` are for a person, such as a C++ standard that was raised.

    Where it is `guarded`, the flags in the text are as they were and a guard selects among those that nvcc would get;
    `selection` is None then, and `sources` says why.
    """

    source: bytes
    pairs: tuple[PairReport, ...]
    selection: Selection | None
    notes: tuple[str, ...] = ()
    guarded: bool = False
    sources: tuple[FlagSource, ...] = ()
    outcome: ClassVar[Literal["rewritten"]] = "rewritten"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """There was nothing to change: all pairs stay, there are none and torch reads the variable, or the guard is there.

    The fields are those of `Rewritten`.
    """

    source: bytes
    pairs: tuple[PairReport, ...]
    selection: Selection | None
    notes: tuple[str, ...] = ()
    guarded: bool = False
    sources: tuple[FlagSource, ...] = ()
    outcome: ClassVar[Literal["unchanged"]] = "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The file is left as it is: either `refusals` says where the proof fails, or `no_match` what is not there."""

    source: bytes
    pairs: tuple[PairReport, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    no_match: NoMatchingArch | None = None
    outcome: ClassVar[Literal["refused"]] = "refused"

    def error(self) -> ArchpatchError:
        """Return the error for a caller who cannot go on: `NoMatchingArch`, or `SetupRefused` with every refusal."""
        if self.no_match is not None:
            return self.no_match
        return SetupRefused("setup.py cannot be rewritten safely:\n" + "\n".join(f"  {item}" for item in self.refusals))


Outcome = Rewritten | Unchanged | Refused
