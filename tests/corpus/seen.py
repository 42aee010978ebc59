"""What one run of a `setup.py` came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archpatch.arch.gencode import ArchFlags, parse_flags

__all__ = ["Command", "Failure", "Seen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One way in which nvcc is called for an extension.

    `label` tells several ways of one extension apart (`dlink`, a rule of a ninja file). `torch_added` are the arch
    flags that torch added, `torch_failed` what it raised instead. `is_assumed` marks an extension without any CUDA
    source at hand, whose flags are looked at all the same.
    """

    extension: str
    label: str
    flags: tuple[str, ...]
    torch_added: tuple[str, ...] = ()
    torch_failed: str | None = None
    is_assumed: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """What it has in common with the same command of another run."""
        return self.extension, self.label

    @property
    def is_torchs(self) -> bool:
        """Whether torch decides about the archs."""
        return bool(self.torch_added) or self.torch_failed is not None

    @property
    def arch_flags(self) -> ArchFlags:
        """What nvcc makes of all its flags."""
        return parse_flags(self.flags)

    @property
    def own(self) -> ArchFlags:
        """What `setup.py` itself asks for."""
        return ArchFlags(()) if self.is_torchs else self.arch_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception out of `setup.py`; `line` is its own line."""

    kind: str
    message: str
    line: int | None

    def __str__(self) -> str:
        where = f" (setup.py:{self.line})" if self.line else ""
        return f"{self.kind}: {self.message.strip()[:300]}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that one run showed; `extensions` are the names of those that would be built, CUDA or not."""

    name: str | None
    extensions: tuple[str, ...]
    commands: tuple[Command, ...]
    failure: Failure | None
    seconds: float

    @classmethod
    def from_json(cls, data: Mapping[str, Any], seconds: float) -> Seen:
        """Read what `corpus.observe` wrote."""
        return cls(
            name=data["name"],
            extensions=tuple(data["extensions"]),
            commands=tuple(
                Command(
                    extension=each["extension"],
                    label=each["label"],
                    flags=tuple(each["flags"]),
                    torch_added=tuple(each["torch_added"]),
                    torch_failed=each["torch_failed"],
                    is_assumed=each["is_assumed"],
                )
                for each in data["commands"]
            ),
            failure=None if data["failure"] is None else Failure(**data["failure"]),
            seconds=seconds,
        )

    @property
    def view(self) -> tuple[object, ...]:
        """What `setup.py` itself decides: two runs that differ here differ in what the package does."""
        commands = tuple((command.key, frozenset(command.own.pairs)) for command in self.commands)
        return self.extensions, commands, str(self.failure)
