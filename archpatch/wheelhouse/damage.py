"""Wheels that are filed but damaged: told, since whoever reads a wheelhouse would otherwise miss them in silence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from archpatch.errors import WheelhouseDamaged
from archpatch.wheelhouse.house import Entry, Wheelhouse, target_of
from archpatch.wheelhouse.layout import ANY_PYTHON
from archpatch.wheelhouse.record import Record, record_path

__all__ = ["Damage", "damages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A wheel, or a GPU type's link to one, that shows at a glance that it is not what was published.

    `record` is its record, where that is still whole.
    """

    path: Path
    problem: str
    record: Record | None

    @property
    def package(self) -> str | None:
        """The normalized name of the package, None where the file's name is no wheel's."""
        try:
            return canonicalize_name(parse_wheel_filename(self.path.name)[0])
        except InvalidWheelFilename:
            return None

    @property
    def version(self) -> Version:
        """The version without its local part, as records have it."""
        return Version(parse_wheel_filename(self.path.name)[1].public)

    def fits(self, python: str, platform: str) -> bool:
        """Tell whether an interpreter takes the wheel, by its file's name; `python` is an ABI (`cp311`)."""
        machine = platform.partition("_")[2]
        return any(
            (python == tag.abi or tag.interpreter == ANY_PYTHON) and tag.platform.endswith(machine)
            for tag in parse_wheel_filename(self.path.name)[3]
        )


def damages(house: Wheelhouse, gpu: str | None = None) -> tuple[Damage, ...]:
    """Return what is damaged, of what is filed for a GPU type, or of all; hashes are not computed.

    What looks damaged is looked at again while nobody writes: it may just have been replaced.
    """
    seen = _seen(house, gpu)
    if not seen or not house.exists():
        # A folder that is no wheelhouse gets no lock either.
        return seen
    with house.unchanging():
        return _seen(house, gpu)


def _seen(house: Wheelhouse, gpu: str | None) -> tuple[Damage, ...]:
    paths, look = (house.wheels(), house.entry) if gpu is None else (house.links(gpu), house.linked)
    return tuple(filter(None, (_damage(path, look) for path in paths)))


def _damage(path: Path, look: Callable[[Path], Entry]) -> Damage | None:
    try:
        look(path)
    except WheelhouseDamaged as error:
        wheel = path.parent / (target_of(path) or path)
        return Damage(path=path, problem=error.message, record=_record(wheel))
    return None


def _record(wheel: Path) -> Record | None:
    try:
        return Record.read(record_path(wheel))
    except WheelhouseDamaged:
        return None
