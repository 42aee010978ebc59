"""From a wheel that holds code for many archs, the wheel that holds what was asked for, without a compiler."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zipfile import ZipInfo

from archpatch.arch.arch import DeviceCode, in_order
from archpatch.errors import DeviceCodeMismatch, NoMatchingArch, SlimRefused, UnreadableBinary, UsageError
from archpatch.wheels.elf import ELF_MAGIC, read_elf
from archpatch.wheels.inspection import Inspection, inspect_path, is_elf_member
from archpatch.wheels.members import OpenWheel, opened_wheel
from archpatch.wheels.metadata import read_metadata
from archpatch.wheels.repacking import target_name, with_local, write_wheel
from archpatch.wheels.scratch import full_disk, mapped, staged
from archpatch.wheels.slim_choice import Wanted
from archpatch.wheels.slimming import Slimming, plan_slimming
from archpatch.wheels.zip_writing import workers

__all__ = ["Slimmed", "slim_library", "slim_wheel"]

#: The device code at the end of a local version: `.sm80.sm90` of `cu130.sm80.sm90`, `sm90` of `cu130torch2.14.1sm90`.
_TAGS: Final = re.compile(r"(?:^|(?<=\d)|(?P<dot>\.))(?:sm|ptx)\d+[af]?(?:\.(?:sm|ptx)\d+[af]?)*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slimmed:
    """A slimmed wheel or library at `path`: what became of each file with device code, and what was read back."""

    path: Path
    files: tuple[Slimming, ...]
    inspection: Inspection
    warnings: tuple[str, ...]

    @property
    def device_code(self) -> tuple[DeviceCode, ...]:
        """All that it holds, cubins first."""
        return in_order({*self.inspection.cubins, *self.inspection.ptx})


def slim_wheel(wheel: Path, wanted: Wanted, into: Path, *, scratch: Path) -> Slimmed:
    """Write the wheel into the folder `into` with nothing but the device code that is wanted.

    The local version says what is inside; METADATA, RECORD and the file name agree; files without device code keep
    their bytes, all files their permissions. The same wheel gives the same bytes, and slimmed again the same once more.
    Libraries are unpacked into the folder `scratch`, and stay there. Raises `NoMatchingArch` and `SlimRefused` as
    `plan_slimming` does, also for a signed wheel, `UnreadableBinary` for one that is not whole, `DiskFull`, and
    `DeviceCodeMismatch` where the result does not read back as planned. Nothing is written to `into` then.
    """
    named = read_metadata(wheel)
    with full_disk(scratch), opened_wheel(wheel) as source:
        if source.signatures:
            raise SlimRefused(
                f"{wheel}: it is signed ({', '.join(source.signatures)}), and the signature would no longer hold",
                remedy="Leave it as it is.",
            )
        parts = _slim_all(_Work(wheel=source, wanted=wanted, scratch=scratch))
        codes = frozenset[DeviceCode]().union(*(part.codes for part in parts))
        version = with_local(named.version, _label(named.version.local, codes))
        target = into / target_name(wheel, version)
        _require_other(wheel, target)
        with staged(target) as path:
            changed = {part.name: part.file for part in parts if part.file is not None}
            write_wheel(source, path, version, changed=changed, keep_modes=True)
            inspection = inspect_path(path)
            _check(inspection, {source.renamed(part.name, version): part.plan for part in parts if part.plan})
    return Slimmed(
        path=target,
        files=tuple(part.plan for part in parts if part.plan),
        inspection=inspection,
        warnings=tuple(warning for part in parts for warning in part.warnings),
    )


def slim_library(library: Path, wanted: Wanted, into: Path) -> Slimmed:
    """Write one library into the folder `into` with nothing but the device code that is wanted; raises as `slim_wheel`.

    It keeps its name and its permissions.
    """
    with library.open("rb") as file:
        if file.read(len(ELF_MAGIC)) != ELF_MAGIC:
            raise UnreadableBinary(f"{library} is no wheel and no ELF file", remedy="Name a wheel or a shared library.")
    target = into / library.name
    _require_other(library, target)
    with staged(target) as path:
        shutil.copy(library, path)
        plan = _slim_file(path, library.name, wanted)
        if plan is None:
            raise NoMatchingArch(f"{library} holds no device code", remedy="There is nothing to take out of it.")
        inspection = inspect_path(path)
        _check(inspection, {path.name: plan})
    return Slimmed(path=target, files=(plan,), inspection=inspection, warnings=plan.warnings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One ELF file of a wheel; `file` is where it lies if it was cut, `codes` is the device code in the new wheel."""

    name: str
    plan: Slimming | None = None
    file: Path | None = None
    codes: frozenset[DeviceCode] = frozenset()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    wheel: OpenWheel
    wanted: Wanted
    scratch: Path

    def slim(self, place: int, member: ZipInfo) -> _Part:
        """Check a file against RECORD; unpack an ELF file and cut it there. Only one that was cut stays unpacked."""
        name = member.filename
        if not is_elf_member(self.wheel.archive, member):
            self.wheel.copy(name)
            return _Part(name=name)
        file = self.scratch / f"{place}.so"
        with file.open("wb") as unpacked:
            self.wheel.copy(name, unpacked)
        plan = _slim_file(file, name, self.wanted)
        if plan is None:
            part = _bare_cubin(file, name)
        else:
            changed = file if plan.cuts else None
            part = _Part(name=name, plan=plan, file=changed, codes=frozenset(plan.kept), warnings=plan.warnings)
        if part.file is None:
            file.unlink()
        return part


def _slim_all(work: _Work) -> list[_Part]:
    """Slim the files side by side; raises the error of the first that is refused."""
    members = work.wheel.members
    with workers() as pool:
        parts = list(pool.map(work.slim, range(len(members)), members))
    if not any(part.plan for part in parts):
        raise NoMatchingArch(f"{work.wheel.path} holds no device code", remedy="There is nothing to take out of it.")
    return parts


def _bare_cubin(file: Path, name: str) -> _Part:
    """Look for a cubin that is a file of its own, which has no container to take anything out of."""
    with file.open("rb") as content, mapped(content) as data:
        binary = read_elf(data, path=name)
    if not binary.is_cubin:
        return _Part(name=name)
    warning = f"{name} is a cubin that a program loads by its name: it stays as it is."
    return _Part(name=name, codes=frozenset(binary.device_code), warnings=(warning,))


def _slim_file(file: Path, name: str, wanted: Wanted) -> Slimming | None:
    """Cut the file in place; return what was done, None where it holds no device code."""
    with file.open("r+b") as content, mapped(content, to_change=True) as data:
        plan = plan_slimming(data, path=name, wanted=wanted)
        if plan is not None:
            plan.apply(data)
    return plan


def _check(inspection: Inspection, plans: dict[str, Slimming]) -> None:
    """Raise `DeviceCodeMismatch` unless each file that was read back holds what was planned."""
    held = {file.path: in_order(file.device_code) for file in inspection.files}
    for name, plan in plans.items():
        if held.get(name) != plan.kept:
            found, meant = (", ".join(map(str, codes)) for codes in (held.get(name, ()), plan.kept))
            raise DeviceCodeMismatch(
                f"{plan.path} would hold {found or 'nothing'} instead of {meant}: nothing was written",
                remedy="This is a mistake of archpatch's: report it with the wheel's name.",
            )


def _label(local: str | None, codes: frozenset[DeviceCode]) -> str:
    """Return the local version with `codes` in the place of those that it ends in: `cu130.sm80` gives `cu130.sm90`."""
    tags = ".".join(code.tag for code in in_order(codes))
    if local is None:
        return tags
    match = _TAGS.search(local)
    if match is None:
        return f"{local}.{tags}"
    return local[: match.start()] + (match["dot"] or "") + tags


def _require_other(source: Path, target: Path) -> None:
    if target.exists() and target.samefile(source):
        raise UsageError(f"{source} would be written over", remedy="Name another folder with -o.")
