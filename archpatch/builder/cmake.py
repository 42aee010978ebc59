"""What CMake is told about archs: by its arguments, by its environment, and by the project's own CMake files."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from archpatch.arch.arch import Arch, DeviceCode
from archpatch.errors import InvalidArchList
from archpatch.recipes.recipe import ArchVariable

__all__ = ["CUDAARCHS", "TORCH_LIST", "ByVariable", "CMakeCommand", "CMakeFiles", "Told", "read_cmake_files"]

#: What CMake itself reads where a project names no archs (3.20 and later; `CMAKE_CUDA_ARCHITECTURES` in its manual).
CUDAARCHS: Final = ArchVariable(name="CUDAARCHS", form="cmake", separator=";")

#: What torch reads, and torch's CMake files too.
TORCH_LIST: Final = "TORCH_CUDA_ARCH_LIST"
_ARCHITECTURES: Final = "CMAKE_CUDA_ARCHITECTURES"
#: Values of it that name no arch, but what the machine or the toolkit has.
_UNCERTAIN: Final = frozenset({"all", "all-major", "native"})
_DEFINITION = re.compile(r"(\w*ARCH\w*)(?::\w+)?=(.*)", re.DOTALL)
_ITEM = re.compile(r"(?P<arch>[^-+]+)(?P<kind>-real|-virtual|\+PTX|)")
_JOBS = re.compile(r"(?:-j|--parallel)=?\d*|\d+")
_JOB_POOL = re.compile(r"(?:-D)?CMAKE_JOB_POOL.*", re.DOTALL)

_CUDA = re.compile(r"\bCUDA|\.cu\b")
_READS = re.compile(r"\$ENV\{(\w+)\}")
#: torch's CMake files read its arch list, make flags of it, and switch CMake's own archs off (`public/cuda.cmake`).
_TORCH = re.compile(r"find_package\s*\(\s*Torch\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The archs that one definition names: `spelled` as it stands there, `codes` what it comes to.

    `is_exact` is false for a variable of the project's own with plain numbers, which may or may not stand for PTX too;
    then `codes` are the cubins alone. Nothing is in `codes` where it hangs on the machine (`native`).
    """

    spelled: str
    codes: frozenset[DeviceCode]
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CMakeCommand:
    """A command of CMake, ninja or make that was not run: its words, where it would start, and its arch variables.

    `line` is that of `setup.py`, None where it was started from elsewhere.
    """

    words: tuple[str, ...]
    folder: Path
    variables: tuple[tuple[str, str], ...] = ()
    line: int | None = None

    @property
    def told(self) -> Told | None:
        """What the arguments say about archs: CMake's own definition, else one that is named for archs."""
        definitions = {match[1]: match[2] for word in self.words if (match := _definition(word))}
        own = definitions.pop(_ARCHITECTURES, None)
        if own is not None:
            return _read(_ARCHITECTURES, own)
        found = (_read(name, value) for name, value in definitions.items())
        return next((told for told in found if told is not None), None)

    @property
    def decisive(self) -> tuple[str, ...]:
        """The words that decide what is built: all of them, less the number of jobs."""
        words = tuple(word for word in self.words if not _JOB_POOL.fullmatch(word))
        if self.words[0].startswith("cmake") and "--build" not in self.words:
            return words
        return tuple(word for word in words if not _JOBS.fullmatch(word))

    @property
    def projects(self) -> tuple[Path, ...]:
        """The folders that this command configures: those it names, or starts in, that hold a CMakeLists.txt."""
        named = (word.removeprefix("-S") for word in self.words[1:] if not word.startswith("-") or word[1:2] == "S")
        return tuple(filter(_is_project, dict.fromkeys(self.folder / name for name in (*named, "."))))


@dataclass(frozen=True, slots=True, kw_only=True)
class CMakeFiles:
    """What the text of CMake files shows: whether they build CUDA code, and the environment variables they read."""

    has_cuda: bool
    variables: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByVariable:
    """What one extension, or the whole project, must hold of CMake's making.

    `setting` is the variable that the archs came through, with its value; `line` is where CMake is started.
    """

    name: str
    codes: frozenset[DeviceCode]
    setting: str
    line: int | None

    def to_json(self) -> dict[str, Any]:
        """Return `{line, shape, action, reason}`, as a wheel's record has its flag sources."""
        reason = f"CMake gets the archs through {self.setting}"
        return {"line": self.line, "shape": "cmake", "action": "variable", "reason": reason}


def read_cmake_files(folders: Iterable[Path]) -> CMakeFiles:
    """Look through `CMakeLists.txt` and `*.cmake` in and below the folders."""
    texts = [text for folder in folders for text in _texts(folder)]
    variables = {name for text in texts for name in _READS.findall(text)}
    if any(_TORCH.search(text) for text in texts):
        variables.add(TORCH_LIST)
    return CMakeFiles(has_cuda=any(_CUDA.search(text) for text in texts), variables=frozenset(variables))


def _is_project(folder: Path) -> bool:
    # Not every word is a path: some are too long for one.
    with contextlib.suppress(OSError):
        return (folder / "CMakeLists.txt").is_file()
    return False


def _texts(folder: Path) -> Iterator[str]:
    for path in sorted((*folder.rglob("CMakeLists.txt"), *folder.rglob("*.cmake"))):
        with contextlib.suppress(OSError):
            yield path.read_text(encoding="utf-8", errors="replace")


def _definition(word: str) -> re.Match[str] | None:
    """Return the name and the value of a definition; `-D` may stand in a word of its own."""
    return _DEFINITION.fullmatch(word.removeprefix("-D").strip())


def _read(name: str, value: str) -> Told | None:
    """Read the value of a definition as a list of archs; None where it is something else, as `OFF` is."""
    is_cmakes = name == _ARCHITECTURES
    if is_cmakes and value.lower() in _UNCERTAIN:
        return Told(spelled=f"{name}={value}", codes=frozenset(), is_exact=True)
    items = [_ITEM.fullmatch(item) for item in re.split(r"[;,\s]+", value.strip("\"'")) if item]
    try:
        archs = [(Arch.parse(item["arch"]), item["kind"]) for item in items if item]
    except InvalidArchList:
        return None
    if not archs or None in items:
        return None
    is_exact = is_cmakes or name == TORCH_LIST or all(kind for _, kind in archs)
    cubins = {DeviceCode(arch) for arch, kind in archs if kind != "-virtual"}
    with_ptx = ("-virtual", "+PTX", "") if is_cmakes else ("-virtual", "+PTX")
    ptx = {DeviceCode(arch, ptx=True) for arch, kind in archs if kind in with_ptx}
    return Told(spelled=f"{name}={value}", codes=frozenset(cubins | ptx if is_exact else cubins), is_exact=is_exact)
