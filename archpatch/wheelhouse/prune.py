"""What a wheelhouse can do without: superseded, old, or over its size; never what the plan still names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

if TYPE_CHECKING:
    # As in `plan`: the rules are settings, which every command reads.
    from archpatch.wheelhouse.house import Entry

__all__ = ["Keep", "PruneRules", "Surplus", "surplus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRules:
    """When a wheel may go; a rule that is not set takes none.

    `superseded`: a newer version of the package is filed that holds the same device code for the same torch, Python
    and platform. `max_age`: it was built longer ago. `max_size`: bytes of all wheels; the oldest go first.
    """

    superseded: bool = False
    max_age: timedelta | None = None
    max_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What stays whatever the rules say: the plan's wheels, and all wheels of packages whose cells are not settled."""

    wheels: frozenset[Path]
    packages: frozenset[str]

    def __contains__(self, entry: Entry) -> bool:
        return entry.wheel in self.wheels or canonicalize_name(entry.record.name) in self.packages


@dataclass(frozen=True, slots=True, kw_only=True)
class Surplus:
    """A wheel that may go, and why."""

    entry: Entry
    reason: str


def surplus(entries: Iterable[Entry], rules: PruneRules, keep: Keep, *, now: datetime) -> tuple[Surplus, ...]:
    """Return which of `entries` the rules take, oldest first; `now` is aware of its time zone."""
    every = sorted(entries, key=lambda entry: (_created(entry), entry.wheel))
    taken = {id(item.entry): item for item in _by_kind(every, rules, keep, now)}
    if rules.max_size is not None:
        total = sum(entry.record.size for entry in every if id(entry) not in taken)
        for entry in every:
            if total <= rules.max_size:
                break
            if id(entry) not in taken and entry not in keep:
                taken[id(entry)] = Surplus(entry=entry, reason=f"the wheels take more than {rules.max_size} bytes")
                total -= entry.record.size
    return tuple(taken[id(entry)] for entry in every if id(entry) in taken)


def _by_kind(every: Sequence[Entry], rules: PruneRules, keep: Keep, now: datetime) -> Iterator[Surplus]:
    for entry in every:
        if entry in keep:
            continue
        newer = _newer(entry, every) if rules.superseded else None
        if newer is not None:
            yield Surplus(entry=entry, reason=f"superseded by {newer.record.version}")
        elif rules.max_age is not None and now - _created(entry) > rules.max_age:
            yield Surplus(entry=entry, reason=f"built on {entry.record.created}, over {rules.max_age.days} days ago")


def _newer(entry: Entry, every: Collection[Entry]) -> Entry | None:
    """Return a filed wheel that serves whoever `entry` serves, of a newer version."""
    same = [
        other
        for other in every
        if _slot(other) == _slot(entry) and Version(other.record.version) > Version(entry.record.version)
    ]
    return max(same, key=lambda other: Version(other.record.version), default=None)


def _slot(entry: Entry) -> tuple[object, ...]:
    record = entry.record
    decisive = (record.inputs.get(name) for name in ("python", "platform", "local-version"))
    return (canonicalize_name(record.name), entry.wheel.parent, *decisive)


def _created(entry: Entry) -> datetime:
    """Return when a wheel was built; a record that does not tell counts as new."""
    return entry.record.created_at or datetime.max.replace(tzinfo=timezone.utc)
