"""Learn what nvcc would be told, without compiling: run `setup.py` up to torch's ninja file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archpatch.arch.arch import DeviceCode, Pair
from archpatch.arch.gencode import parse_flags
from archpatch.builder.cmake import CMakeCommand, read_cmake_files
from archpatch.builder.processes import run_logged
from archpatch.builder.working_folder import working_folder
from archpatch.builder.workplace import Workplace
from archpatch.errors import (
    ArchpatchError,
    CaptureFailed,
    NoMatchingArch,
    NoSources,
    SetupRefused,
    ToolchainError,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Capture", "CapturedExtension", "build_requirements", "capture"]

#: What a guard in `setup.py` raises (`archpatch.rewrite.guard_runtime`).
_GUARDS = {"ArchpatchNoMatchingArch": NoMatchingArch, "ArchpatchRefusedFlags": SetupRefused}
#: What a `setup.py` starts that brings CMake in, and the package that has it.
_PROGRAMS = {"cmake": "cmake", "cmake3": "cmake", "ninja": "ninja"}
#: The folder for temporary files, as `Capture.roots` has it.
_TEMPORARY = "<temporary>"
_LEGACY = "setuptools.build_meta:__legacy__"
_DRIVER = Path(__file__).with_name("driver.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedExtension:
    """One extension: its name, its sources, the final flags of nvcc (None where it has no CUDA source), C++ and linker.

    `by_ninja` tells whether torch has ninja compile it. `torch_added` are the arch flags among them that torch added by
    itself, which it does for an extension that brings none of its own; `torch_refused` is what it said where it knows
    no flags for an arch of its list. `cmake` are the commands of CMake that would run for it, and `cmake_has_cuda`
    tells whether its CMake files build CUDA code.
    """

    name: str
    sources: tuple[Path, ...]
    nvcc: tuple[str, ...] | None
    by_ninja: bool = False
    torch_added: tuple[str, ...] = ()
    cxx: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    torch_refused: str | None = None
    cmake: tuple[CMakeCommand, ...] = ()
    cmake_has_cuda: bool = False

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The pairs that nvcc would compile for. Raises `CaptureFailed` for flags that nvcc would refuse."""
        flags = parse_flags(self.nvcc or ())
        if flags.problems:
            raise CaptureFailed(
                f"extension {self.name}: nvcc would get {'; '.join(flags.problems)}",
                remedy="The arch flags of setup.py do not fit together: report the package.",
            )
        return flags.pairs

    @property
    def device_code(self) -> frozenset[DeviceCode]:
        """What the linked extension must hold, no more and no less."""
        return frozenset(pair.device_code for pair in self.pairs)

    @property
    def has_own_pairs(self) -> bool:
        """Whether the package itself, and not torch, decides what this extension is compiled for."""
        return bool(self.pairs) and not self.torch_added


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What `setup()` was called with, in the order in which it would be built.

    `environment` are the variables that the project's own files read; `roots` are folders that differ between machines
    and say nothing about what is compiled, by their placeholders. `cmake` names CMake's version where it would run.
    `wraps_compilers` tells whether this torch puts ccache or sccache before compilers.
    """

    name: str | None
    version: str | None
    extensions: tuple[CapturedExtension, ...]
    environment: tuple[str, ...] = ()
    roots: Mapping[str, str] = field(default_factory=dict)
    cmake: str | None = None
    wraps_compilers: bool = False

    @property
    def flags(self) -> str:
        """All flags and sources as one text, the same for the same build on another machine."""
        all_of_them: list[Any] = [
            [each.name, [*map(str, each.sources)], each.nvcc, each.cxx, each.link] for each in self.extensions
        ]
        commands = [[each.decisive, str(each.folder), each.variables] for each in self.cmake_commands]
        text = json.dumps([*all_of_them, commands] if commands else all_of_them)
        for placeholder, folder in sorted(self.roots.items(), key=lambda root: -len(root[1])):
            text = text.replace(folder, placeholder)
        # What is made below it for a time has another name each time.
        return re.sub(rf"{_TEMPORARY}/[\w.-]+", _TEMPORARY, text)

    @property
    def cuda_extensions(self) -> tuple[CapturedExtension, ...]:
        """The extensions that hold device code."""
        return tuple(extension for extension in self.extensions if extension.nvcc is not None)

    @property
    def device_code(self) -> frozenset[DeviceCode]:
        """What nvcc would be told through setuptools, all extensions together."""
        return frozenset(code for extension in self.cuda_extensions for code in extension.device_code)

    @property
    def refused_by_torch(self) -> tuple[CapturedExtension, ...]:
        """The extensions without arch flags of their own that torch has none for."""
        return tuple(extension for extension in self.cuda_extensions if extension.torch_refused is not None)

    @property
    def cmake_extensions(self) -> tuple[CapturedExtension, ...]:
        """The extensions whose device code CMake makes, or a part of it."""
        return tuple(extension for extension in self.extensions if extension.cmake and extension.cmake_has_cuda)

    @property
    def cmake_commands(self) -> tuple[CMakeCommand, ...]:
        """All commands of CMake that would run."""
        return tuple(command for extension in self.extensions for command in extension.cmake)

    @property
    def sources(self) -> int:
        """The number of files to compile."""
        return sum(len(extension.sources) for extension in self.extensions)


def capture(workplace: Workplace) -> Capture:
    """Run the `setup.py` of the workplace and return what would be compiled; takes seconds.

    Raises `ToolchainError` for a missing build requirement, `NoSources` where files that `setup.py` names are not
    there, and `CaptureFailed` for whatever else `setup.py` does wrong.
    """
    with working_folder() as folder:
        result = folder / "capture.json"
        status = run_logged(
            [str(workplace.python), str(_DRIVER), str(result), _backend_style(workplace.tree)],
            cwd=workplace.tree,
            environment=workplace.environment,
            log=workplace.log,
        )
        if status or not result.is_file():
            raise CaptureFailed(f"setup.py ended the interpreter (status {status})", remedy=f"See {workplace.log}.")
        seen = json.loads(result.read_text(encoding="utf-8"))
    if seen["error"]:
        raise _failure(seen["error"], workplace)
    captured = _read(seen, workplace)
    _check_sources(captured, workplace.tree)
    return captured


def build_requirements(tree: Path) -> tuple[str, ...]:
    """Return what the project says that its build needs (PEP 518), as it is written."""
    requires = _build_system(tree).get("requires", [])
    return tuple(map(str, requires)) if isinstance(requires, list) else ()


def _build_system(tree: Path) -> Mapping[str, Any]:
    project = tree / "pyproject.toml"
    if not project.is_file():
        return {}
    try:
        table = tomllib.loads(project.read_text(encoding="utf-8")).get("build-system", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CaptureFailed(f"{project.name} cannot be read: {error}", remedy="Report the package.") from None
    return table if isinstance(table, dict) else {}


def _backend_style(tree: Path) -> str:
    """Tell the driver whether the tree goes onto the import path: it does for setuptools' legacy backend.

    That one is also taken where no backend is named (PEP 517).
    """
    backend = _build_system(tree).get("build-backend", _LEGACY)
    return "legacy" if backend == _LEGACY else "plain"


def _read(seen: Mapping[str, Any], workplace: Workplace) -> Capture:
    ours = {"tree": str(workplace.tree), "cuda": workplace.environment.get("CUDA_HOME", "")}
    ours["temporary"] = workplace.environment.get("TMPDIR", "")
    read = [_read_extension(extension, seen["name"], workplace.tree) for extension in seen["extensions"]]
    by_cmake = (name for _, names in read for name in names)
    return Capture(
        environment=tuple(dict.fromkeys((*seen["environment"], *sorted(by_cmake)))),
        roots={f"<{name}>": folder for name, folder in {**seen["roots"], **ours}.items() if folder},
        name=seen["name"],
        version=seen["version"],
        extensions=tuple(extension for extension, _ in read),
        cmake=seen["cmake"],
        wraps_compilers=seen["wraps_compilers"],
    )


def _read_extension(
    seen: Mapping[str, Any], project: str | None, tree: Path
) -> tuple[CapturedExtension, frozenset[str]]:
    """Return an extension, and the variables that its CMake files read."""
    commands = tuple(
        CMakeCommand(
            words=tuple(command["words"]),
            folder=Path(command["folder"]),
            variables=tuple(sorted(command["variables"].items())),
            line=command["line"],
        )
        for command in seen["cmake"]
    )
    folders = {folder for command in commands for folder in command.projects}
    files = read_cmake_files(folders or {tree} if commands else ())
    extension = CapturedExtension(
        # CMake can be run for no extension in particular.
        name=seen["name"] or project or "CMake",
        sources=tuple(map(Path, seen["sources"])),
        nvcc=None if seen["nvcc"] is None else tuple(seen["nvcc"]),
        by_ninja=seen["by_ninja"],
        torch_added=tuple(seen["torch_added"]),
        cxx=tuple(seen["cxx"]),
        link=tuple(seen["link"]),
        torch_refused=seen["torch_refused"],
        cmake=commands,
        cmake_has_cuda=files.has_cuda,
    )
    return extension, files.variables


def _failure(error: Mapping[str, Any], workplace: Workplace) -> ArchpatchError:
    where, see = error["where"] or "setup.py", f"See {workplace.log}."
    if error["module"]:
        python = workplace.python
        return ToolchainError(
            f"{where} needs the module {error['module']!r}, which {python} does not have",
            remedy=f"Install it there: {python} -m pip install {error['module'].partition('.')[0]}",
        )
    if error["program"] in _PROGRAMS:
        python = workplace.python
        return ToolchainError(
            f"{where} starts {error['program']}, which is neither on PATH nor among the programs of {python}",
            remedy=f"Install it there: {python} -m pip install {_PROGRAMS[error['program']]}",
        )
    if error["kind"] in _GUARDS:
        return _GUARDS[error["kind"]](error["message"].removeprefix("archpatch: "))
    if error["kind"] == "SystemExit":
        return CaptureFailed(f"{where} called sys.exit({error['message']!r})", remedy=see)
    raised = f"{where} raised {error['kind']}: {error['message']}"
    if error["unreached"]:
        return CaptureFailed(
            f"{raised}; that is after CMake, which only the build runs, and before {', '.join(error['unreached'])}",
            remedy=f"If it needs what CMake makes, a capture cannot look further. {see}",
        )
    return CaptureFailed(raised, remedy=see)


def _check_sources(captured: Capture, tree: Path) -> None:
    missing = [source for extension in captured.extensions for source in extension.sources if not source.is_file()]
    if missing:
        named = sorted({str(path.relative_to(tree)) if path.is_relative_to(tree) else str(path) for path in missing})
        more = f" and {len(named) - 3} more" if len(named) > 3 else ""  # noqa: PLR2004 - enough to recognise them
        raise NoSources(
            f"the source holds none of the files that its setup.py names: {', '.join(named[:3])}{more}"
            if len(named) == captured.sources
            else f"the source lacks files that its setup.py names: {', '.join(named[:3])}{more}",
            remedy="Build it from its repository: git+https://...@TAG.",
        )
