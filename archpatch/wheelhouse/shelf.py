"""What of a wheelhouse one interpreter can install: for a GPU type, or for any."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import Version

from archpatch.arch.arch import Arch
from archpatch.arch.gpu import find_gpu
from archpatch.errors import UnknownGpu
from archpatch.wheelhouse.damage import Damage, damages
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.layout import ANY_PYTHON, Stack
from archpatch.wheelhouse.record import Record

__all__ = ["Shelf", "filed_gpu", "requirement_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """The wheels for one torch and CUDA and for one interpreter, whose `python` and `platform` are `inputs`.

    A wheel for any Python is for this one too.

    With a GPU type, by the name of its folder, only what is filed for it counts: what was built for an arch list was
    chosen by other rules, and a wheel that merely runs there is no answer to what should be installed there.
    """

    house: Wheelhouse
    stack: Stack
    inputs: Mapping[str, str]
    gpu: str | None = None

    @property
    def arch(self) -> Arch | None:
        """The arch of the GPU type; None without one, and for one that only a driver named."""
        try:
            return None if self.gpu is None else find_gpu(self.gpu).arch
        except UnknownGpu:
            return None

    def entries(self, packages: Collection[str] = ()) -> Iterator[Entry]:
        """Yield what there is of `packages`, of all where none is named."""
        return self._fitting(self.house.entries() if self.gpu is None else self.house.entries_for(self.gpu), packages)

    def newest(self, packages: Collection[str] = ()) -> dict[str, Entry]:
        """Return the newest wheel of each package, by its normalized name and in that order."""
        return _newest(self.entries(packages))

    def damaged(self, packages: Collection[str] = ()) -> tuple[Damage, ...]:
        """Return what is damaged and might be the newest wheel of its package, if it were not."""
        newest, wanted = self.newest(packages), set(map(canonicalize_name, packages))
        return tuple(
            damage
            for damage in damages(self.house, self.gpu)
            if damage.package is not None
            and (not wanted or damage.package in wanted)
            and damage.path.parent.name == self.stack.folder
            and damage.fits(self.inputs["python"], self.inputs["platform"])
            and (damage.package not in newest or damage.version >= Version(newest[damage.package].record.version))
        )

    def elsewhere(self, packages: Collection[str] = ()) -> dict[str, Entry]:
        """Return the newest wheel that the GPU type would run of each package of which nothing is filed for it.

        Nothing where the arch of the GPU type is not known.
        """
        arch = self.arch
        if arch is None:
            return {}
        here = self.newest(packages)
        running = _newest(each for each in self._fitting(self.house.entries(), packages) if not each.not_run_by(arch))
        return {name: entry for name, entry in running.items() if name not in here}

    def _fitting(self, entries: Iterator[Entry], packages: Collection[str]) -> Iterator[Entry]:
        wanted = set(map(canonicalize_name, packages))
        for entry in entries:
            is_wanted = not wanted or canonicalize_name(entry.record.name) in wanted
            if is_wanted and entry.wheel.parent.name == self.stack.folder and self._takes(entry.record.inputs):
                yield entry

    def _takes(self, inputs: Mapping[str, str]) -> bool:
        any_python = {**self.inputs, "python": ANY_PYTHON}
        return self.inputs.items() <= inputs.items() or any_python.items() <= inputs.items()


def _newest(entries: Iterable[Entry]) -> dict[str, Entry]:
    ordered = sorted(entries, key=lambda entry: (Version(entry.record.version), entry.record.created))
    return dict(sorted({canonicalize_name(entry.record.name): entry for entry in ordered}.items()))


def filed_gpu(house: Wheelhouse, text: str) -> str:
    """Return the name of a GPU type's folder: of a known type, or of one that a driver named and that is filed here.

    Raises `UnknownGpu`.
    """
    filed = house.gpus()
    if text in filed:
        return text
    try:
        return find_gpu(text).name
    except UnknownGpu as error:
        here = f"\nFiled here are: {', '.join(filed)}." if filed else ""
        raise UnknownGpu(error.message, remedy=f"{error.remedy}{here}") from None


def requirement_for(record: Record) -> str:
    """Return what to write after `archpatch build` to come to the same source: a folder, a repository, or a release."""
    origin, digest = record.source.get("origin", ""), record.source.get("digest", "")
    if digest.startswith("tree:"):
        return origin
    if digest.startswith("git:"):
        # Its commit follows in brackets, for people.
        return origin.rpartition(" (")[0]
    return f"{record.name}=={record.version}"
