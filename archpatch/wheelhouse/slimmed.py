"""A slimmed wheel in a wheelhouse: filed like a built one, and never taken for one.

Its fingerprint has the sha256 of the wheel that it was cut from among its inputs, which no build has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from archpatch import __version__
from archpatch.arch.gpu import Gpu
from archpatch.errors import UsageError
from archpatch.storage.atomic import sha256_of
from archpatch.storage.fingerprint import fingerprint
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.layout import ANY_PYTHON, Stack, arch_folder
from archpatch.wheelhouse.record import Record, record_path
from archpatch.wheels.metadata import read_metadata
from archpatch.wheels.slim_wheel import Slimmed

__all__ = ["SLIM_GENERATION", "Filed", "Filing", "Origin", "file_slimmed"]

#: Raised whenever the same order would give other bytes than before.
SLIM_GENERATION: Final = "1"
_MACHINES: Final = ("x86_64", "aarch64")
_OUTSIDE: Final = "Leave out --wheelhouse: -o writes the wheel into a folder."


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The wheel that was cut from: its hash, the torch that it is for, and the inputs that stay true of the result."""

    wheel: Path
    sha256: str
    stack: Stack
    inputs: Mapping[str, str]

    @classmethod
    def of(cls, wheel: Path, named: Stack | None) -> Origin:
        """Look at the wheel's record, if archpatch has filed it; what has none is for the torch that is `named`.

        Raises `UsageError` where neither says which torch it is for, where they differ, or where a wheelhouse has no
        place for a wheel with such tags; `WheelhouseDamaged` where the record is not that of this wheel.
        """
        # A GPU type's folder links to the wheel, and the record lies beside that.
        real = wheel.resolve()
        if record_path(real).exists():
            return cls._recorded(real, named)
        if named is None:
            raise UsageError(
                f"nothing says which torch {wheel.name} is for, and a wheelhouse is sorted by that",
                remedy="Name it, as in --torch 2.14.1+cu130, or leave out --wheelhouse.",
            )
        metadata = read_metadata(wheel)
        inputs = {
            "package": metadata.name,
            "version": metadata.version.public,
            "python": _python(wheel.name, metadata.tags),
            "platform": _platform(wheel.name, metadata.tags),
        }
        return cls(wheel=wheel, sha256=sha256_of(wheel), stack=named, inputs=inputs)

    @classmethod
    def _recorded(cls, wheel: Path, named: Stack | None) -> Origin:
        record = Record.read(record_path(wheel))
        Entry(wheel=wheel, record=record).check()
        stack = Stack(torch=record.inputs["torch"], cuda=record.inputs["cuda"])
        if named not in (None, stack):
            raise UsageError(f"{wheel.name} was built for torch {stack.torch}", remedy="Leave out --torch.")
        kept = ("package", "version", "python", "platform", "cxx11-abi")
        inputs = {name: record.inputs[name] for name in kept if name in record.inputs}
        return cls(wheel=wheel, sha256=record.sha256, stack=stack, inputs=inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filing:
    """What was asked for, and how to file it: `gpus` get a link each, `seconds` is what the slimming took."""

    request: Mapping[str, Any]
    gpus: tuple[Gpu, ...]
    replace: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Filed:
    """Where a slimmed wheel lies now, whether it was there before (`hit`), and what a person should know."""

    entry: Entry
    hit: bool
    links: tuple[Path, ...]
    warnings: tuple[str, ...]


def file_slimmed(slimmed: Slimmed, origin: Origin, house: Wheelhouse, *, filing: Filing) -> Filed:
    """File a slimmed wheel with its record. Raises `WheelhouseConflict` as `Wheelhouse.publish` does."""
    inputs = _inputs(slimmed, origin)
    warnings: tuple[str, ...] = ()
    with house.lock(fingerprint(inputs)):
        entry = house.find(fingerprint(inputs))
        hit = entry is not None
        if entry is None:
            target = house.root / arch_folder(slimmed.device_code, origin.stack) / slimmed.path.name
            if target.is_file():
                warnings = (f"{target.name} is replaced: {house.difference(target, inputs)}",)
            record = _record(slimmed, origin, inputs, filing=filing)
            entry = house.publish(slimmed.path, record, origin.stack, replace=filing.replace)
    links = tuple(house.offer(entry, gpu.name, origin.stack) for gpu in filing.gpus)
    return Filed(entry=entry, hit=hit, links=links, warnings=warnings)


def _inputs(slimmed: Slimmed, origin: Origin) -> dict[str, str]:
    kept = (f"{file.path}: {' '.join(map(str, file.kept))}" for file in slimmed.files)
    return {
        **origin.inputs,
        "torch": origin.stack.torch,
        "cuda": origin.stack.cuda,
        "slimmed-from": origin.sha256,
        "kept": "; ".join(kept),
        "slimming": SLIM_GENERATION,
        "local-version": "yes",
    }


def _record(slimmed: Slimmed, origin: Origin, inputs: Mapping[str, str], *, filing: Filing) -> Record:
    holding = (file for file in slimmed.inspection.files if file.device_code)
    return Record(
        name=inputs["package"],
        version=inputs["version"],
        wheel=slimmed.path.name,
        sha256=sha256_of(slimmed.path),
        size=slimmed.path.stat().st_size,
        fingerprint=fingerprint(inputs),
        inputs=dict(inputs),
        request=filing.request,
        pairs=(),
        flag_sources=(),
        device_code=tuple(map(str, slimmed.device_code)),
        extensions={file.path: tuple(map(str, file.device_code)) for file in holding},
        needs=slimmed.inspection.needs.to_json(),
        source={"origin": f"slimmed from {origin.wheel.name}", "digest": origin.sha256},
        toolchain={},
        times={"slim": round(filing.seconds, 3)},
        files={},
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        archpatch=__version__,
    )


def _python(wheel: str, tags: tuple[str, ...]) -> str:
    """Return the ABI that a wheel is for (`cp311`), or `py3` where any Python 3 takes it."""
    pairs = {tuple(tag.split("-")[:2]) for tag in tags}
    names = {interpreter if abi == "none" else abi for interpreter, abi in pairs}
    if any(name.startswith("py3") for name in names):
        return ANY_PYTHON
    (name, *others) = names
    if others or not name.startswith("cp"):
        raise UsageError(
            f"{wheel} is neither for one Python nor for any: a wheelhouse has no place for it", remedy=_OUTSIDE
        )
    return name


def _platform(wheel: str, tags: tuple[str, ...]) -> str:
    """Return the platform as a build on such a machine has it; which glibc the wheel needs is in the record."""
    platforms = [tag.split("-")[2] for tag in tags]
    for machine in _MACHINES:
        if all(re.fullmatch(rf"(?:manylinux\w*|linux)_{machine}", platform) for platform in platforms):
            return f"linux_{machine}"
    raise UsageError(f"{wheel} is not for Linux on x86_64 or aarch64", remedy=_OUTSIDE)
