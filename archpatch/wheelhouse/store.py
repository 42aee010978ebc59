"""What a build needs of the place where wheels are filed; `Wheelhouse`, a folder, is the one that there is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from archpatch.arch.arch import DeviceCode
from archpatch.wheelhouse.house import Entry
from archpatch.wheelhouse.layout import Stack
from archpatch.wheelhouse.record import Record

__all__ = ["Store"]


class Store(Protocol):
    """Wheels with their records. An entry that it returns is intact; what it does not return was never published."""

    def recall(self, key: str, environ: Mapping[str, str]) -> Entry | None:
        """Return the wheel that the request with the digest `key` led to, or None."""

    def remember(self, key: str, entry: Entry, variables: Mapping[str, str | None]) -> None:
        """Note that the request with the digest `key` leads to `entry` while `variables` have these values."""

    def find(self, fingerprint: str) -> Entry | None:
        """Return the wheel with this fingerprint, or None."""

    def newest(self, name: str, specifier: SpecifierSet, stack: Stack, inputs: Mapping[str, str]) -> Version | None:
        """Return the newest version of a package that `specifier` takes and that was built with `inputs`, or None."""

    def costs(self, name: str) -> Mapping[str, Mapping[str, float]]:
        """Return what the sources of a package cost, by their path, as far as records tell; the newest counts."""

    def occupants(self, name: str, version: str, codes: Iterable[DeviceCode], stack: Stack) -> Iterator[Entry]:
        """Yield the wheels of one release that hold exactly `codes`, for whatever interpreter."""

    def difference(self, published: Path, inputs: Mapping[str, str]) -> str:
        """Say in which inputs a published wheel differs from one with `inputs`."""

    def lock(self, name: str, *, waiting: Callable[[], None]) -> AbstractContextManager[None]:
        """Hold the lock `name` against every process that sees the store; `waiting` is called if another has it."""

    def publish(self, wheel: Path, record: Record, stack: Stack, *, replace: bool) -> Entry:
        """File `wheel` in one step. Raises `WheelhouseConflict` where `replace` is false and the name is taken."""

    def offer(self, entry: Entry, gpu: str, stack: Stack) -> Path:
        """File `entry` for a GPU type too, and return where."""
