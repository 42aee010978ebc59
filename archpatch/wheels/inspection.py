"""What device code a wheel, a library, a folder or an installed package holds, and whether a GPU runs it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile, ZipInfo, is_zipfile

from packaging.version import Version

from archpatch.arch.arch import DeviceCode
from archpatch.arch.coverage import Verdict, best_for
from archpatch.arch.gpu import Gpu
from archpatch.errors import MissingFile, UnknownPackage, UnreadableBinary
from archpatch.wheels.elf import ELF_MAGIC, Binary, Needs, read_elf
from archpatch.wheels.scratch import mapped, mapped_member, opened_zip

__all__ = [
    "BEST_FIRST",
    "Inspection",
    "RunsOn",
    "inspect_installed",
    "inspect_path",
    "installed_files",
    "is_elf_member",
]

#: From best to worst; a wheel is as good as the worst of its files.
BEST_FIRST: Final = (Verdict.NATIVE, Verdict.COMPATIBLE, Verdict.JIT, Verdict.NO)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsOn:
    """How a GPU runs all of an inspection's files, and by which device code; `via` is empty where it does not."""

    gpu: Gpu
    verdict: Verdict
    via: tuple[DeviceCode, ...]

    def to_json(self) -> dict[str, Any]:
        """Return `{gpu, arch, verdict, via}` as the command line prints it."""
        return {
            "gpu": self.gpu.name,
            "arch": str(self.gpu.arch),
            "verdict": self.verdict.value,
            "via": [str(code) for code in self.via],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The ELF files of a wheel, folder or package, sorted by path; what is no ELF file is not among them."""

    files: tuple[Binary, ...]

    @property
    def cubins(self) -> tuple[DeviceCode, ...]:
        """The cubins of all files, sorted, each once."""
        return tuple(sorted({code for file in self.files for code in file.cubins}))

    @property
    def ptx(self) -> tuple[DeviceCode, ...]:
        """The PTX of all files, sorted, each once."""
        return tuple(sorted({code for file in self.files for code in file.ptx}))

    @property
    def needs(self) -> Needs:
        """The highest GLIBC and GLIBCXX that any of the files needs."""
        return Needs(
            glibc=_newest(file.needs.glibc for file in self.files),
            glibcxx=_newest(file.needs.glibcxx for file in self.files),
        )

    def runs_on(self, gpu: Gpu) -> RunsOn:
        """Judge whether `gpu` runs every file that holds device code, by the worst of them.

        Only what the driver can load counts. Bare cubins are judged together, since a program picks one by name; which
        one is not written in them. Nothing that holds device code: `Verdict.NO`. A driver too old for PTX of a newer
        toolkit is not seen here.
        """
        hosts = [file.loadable for file in self.files if file.device_code and not file.is_cubin]
        bare = [code for file in self.files if file.is_cubin for code in file.loadable]
        judged = [best_for(codes, gpu.arch) for codes in (*hosts, *([bare] if bare else []))]
        verdict = max((verdict for _, verdict in judged), key=BEST_FIRST.index, default=Verdict.NO)
        used = () if verdict is Verdict.NO else sorted({code for codes, _ in judged for code in codes})
        return RunsOn(gpu=gpu, verdict=verdict, via=tuple(used))

    def to_json(self, runs_on: RunsOn | None = None) -> dict[str, Any]:
        """Return `{files, cubins, ptx, runs_on}` as the command line prints it, without its schema."""
        return {
            "files": [_file_to_json(file) for file in self.files],
            "cubins": [str(code) for code in self.cubins],
            "ptx": [str(code) for code in self.ptx],
            "runs_on": None if runs_on is None else runs_on.to_json(),
        }


def inspect_path(path: Path) -> Inspection:
    """Inspect a wheel, an ELF file, or a folder with all that is below it; links in a folder are not followed.

    Paths in the result are those within the wheel or folder. A wheel inside a folder is not opened. Raises
    `MissingFile`, and `UnreadableBinary` for a damaged file or one of another kind.
    """
    if path.is_dir():
        # Not `Path.rglob`: before Python 3.13, a folder that goes away meanwhile is an error there.
        below = (Path(place, name) for place, _, names in os.walk(path) for name in names)
        below = (file for file in below if not file.is_symlink())
        return _inspect_files((file.relative_to(path).as_posix(), file) for file in below)
    # An ELF file can carry a zip at its end, so the magic at the start is asked first.
    binary = _read_there(path)
    if binary is not None:
        return Inspection(files=(binary,))
    if not is_zipfile(path):
        raise UnreadableBinary(f"{path} is no wheel and no ELF file", remedy="Name a wheel, a library or a folder.")
    return Inspection(files=_inspect_zip(path))


def _read_there(path: Path) -> Binary | None:
    """Read the file if it starts as an ELF file does; it has to be there."""
    try:
        if path.is_file():
            return _read_file(path, name=path.name)
    except FileNotFoundError:
        # Another process removed it since.
        pass
    raise MissingFile(f"{path} does not exist", remedy="Name a wheel, a shared library or a folder.")


def is_elf_member(archive: ZipFile, member: ZipInfo) -> bool:
    """Whether a file in an archive starts as an ELF file does."""
    with archive.open(member) as packed:
        return packed.read(len(ELF_MAGIC)) == ELF_MAGIC


def installed_files(name: str) -> tuple[Path, ...]:
    """Return the files that the package `name` installed into the running interpreter's environment.

    Raises `UnknownPackage` where it is not installed, or was installed without a list of its files.
    """
    return tuple(path for _, path in _installed(name))


def inspect_installed(name: str) -> Inspection:
    """Inspect what the package `name` installed, with paths from site-packages on; raises as `installed_files`."""
    return _inspect_files(_installed(name))


def _installed(name: str) -> list[tuple[str, Path]]:
    """Return each installed file's name in RECORD and its place."""
    # It imports the parsers of e-mail, which takes as long as reading a library.
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415

    try:
        files = distribution(name).files
    except PackageNotFoundError:
        raise UnknownPackage(
            f"{name} is not installed here", remedy="Run archpatch in the environment that has it."
        ) from None
    if files is None:
        raise UnknownPackage(f"{name} is installed without a list of its files", remedy="Name its folder instead.")
    return [(str(file), Path(str(file.locate()))) for file in files]


def _inspect_files(files: Iterable[tuple[str, Path]]) -> Inspection:
    found = []
    for name, path in sorted(files):
        with suppress(FileNotFoundError):
            binary = _read_file(path, name=name) if path.is_file() else None
            if binary is not None:
                found.append(binary)
    return Inspection(files=tuple(found))


def _read_file(path: Path, *, name: str) -> Binary | None:
    """Read the file if it starts as an ELF file does."""
    with path.open("rb") as file:
        if file.read(len(ELF_MAGIC)) != ELF_MAGIC:
            return None
        with mapped(file) as data:
            return read_elf(data, path=name)


def _newest(versions: Iterable[str | None]) -> str | None:
    return max((version for version in versions if version is not None), key=Version, default=None)


def _file_to_json(file: Binary) -> dict[str, Any]:
    return {
        "path": file.path,
        "cubins": [str(code) for code in file.cubins],
        "ptx": [str(code) for code in file.ptx],
        "other": list(file.other),
        "needs": file.needs.to_json(),
    }


def _inspect_zip(path: Path) -> tuple[Binary, ...]:
    with opened_zip(path) as archive:
        members = sorted(archive.infolist(), key=lambda member: member.filename)
        return tuple(_read_member(archive, member) for member in members if is_elf_member(archive, member))


def _read_member(archive: ZipFile, member: ZipInfo) -> Binary:
    with mapped_member(archive, member) as data:
        return read_elf(data, path=member.filename)
