"""The matrix of what a wheelhouse should hold: its cells, and what is to be said of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archpatch.arch.arch import ArchRequest
from archpatch.wheelhouse.layout import code_tags

if TYPE_CHECKING:
    # Settings are read by every command, and a plan is part of them; the house takes its time to import.
    from archpatch.wheelhouse.house import Entry

__all__ = ["Cell", "Result", "State"]


class State(str, Enum):
    """What a cell comes to, looked at (`build`: it would have to be built) or carried out (`built`)."""

    HIT = "hit"
    BUILD = "build"
    BUILT = "built"
    REFUSED = "refused"
    KNOWN_BAD = "known bad"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One package for one arch list or one GPU type and one interpreter: plain text, so that it can be sent anywhere.

    `package` and `python` are as the plan has them, `requirement` and `interpreter` the same with paths made absolute.
    Exactly one of `arch` and `gpu` is set; without an interpreter it is the one that archpatch runs in.
    """

    package: str
    requirement: str
    arch: str | None = None
    gpu: str | None = None
    python: str | None = None
    interpreter: str | None = None

    @property
    def id(self) -> str:
        """The name of the cell: the same on every machine, and good for a CI's job or artifact name."""
        parts = filter(None, (self.package, self.target, self.python))
        return "@".join(re.sub(r"[^A-Za-z0-9._+=-]+", "-", part).strip(".-") for part in parts)

    @property
    def target(self) -> str:
        """What it is for in short: `h200`, `sm80-sm90-ptx90`."""
        if self.gpu is not None:
            return self.gpu
        return code_tags(ArchRequest.parse(self.arch or "").device_code)

    def to_json(self) -> dict[str, str | None]:
        """Return the cell as JSON has it; null where nothing is set."""
        return {"id": self.id, "package": self.package, "gpu": self.gpu, "arch": self.arch, "python": self.python}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a cell came to and why in words; fingerprint and wheel as far as there are any; seconds taken."""

    cell: Cell
    state: State
    reason: str
    fingerprint: str | None = None
    entry: Entry | None = None
    log: Path | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the result as the command line prints it."""
        return {
            **self.cell.to_json(),
            "state": self.state.value,
            "reason": self.reason,
            "fingerprint": self.fingerprint,
            "wheel": None if self.entry is None else str(self.entry.wheel),
            "device_code": [] if self.entry is None else list(self.entry.record.device_code),
            "size": None if self.entry is None else self.entry.record.size,
            "log": None if self.log is None else str(self.log),
            "seconds": round(self.seconds, 3),
        }
