"""What decides what a command of ninja's makes: the programs, the files that it names, where it looks for the rest.

Only the commands of C++ compilers and of nvcc are understood, for of any other nothing says what it reads. A compiler
lists the headers that it read; with `-MMD` it leaves out those of the system, and what such headers include. So there
all folders count in which it looks for headers.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from pathlib import Path

from archpatch.kernel_cache.ninja_file import Edge

__all__ = ["Needs", "absolute", "needs_of"]

_COMPILER = re.compile(r"(?:[\w.]+-)*(?:gcc|g\+\+|cc|c\+\+|clang|clang\+\+|nvcc)(?:-[\d.]+)?")
_LAUNCHERS = ("ccache", "sccache")
#: What a shell would not give to a program as it is written.
_SHELL = re.compile(r"[`*?]|\$(?!ORIGIN\b)")
_OPERATORS = frozenset("();<>|&")
#: How a compiler is told to look for its own parts, or for further options, elsewhere.
_ELSEWHERE = re.compile(
    r"@.*|-B(?!symbolic).*|--?specs|--?sysroot|-isysroot.*|-iprefix.*|-iwithprefix.*|-imultilib.*|--gcc-.*|--config.*"
    r"|-optf|--options-file|-ldir|--libdevice-directory|--target-directory|--library.*|--include-.*|-isystem-after.*"
    r"|-cxx-isystem.*|-stdlib.*|-resource-dir.*|-nostdinc.*|-static|-T.*|-fplugin.*|-fprofile-.*|-fmodule.*|-Wp|-Xlinker"
    r"|-Xpreprocessor|-Xclang"
)
_ELSEWHERE_VARIABLES = ("GCC_EXEC_PREFIX", "COMPILER_PATH", "CCC_OVERRIDE_OPTIONS")
#: The variables that compilers heed, beside those.
_HEEDED = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "SOURCE_DATE_EPOCH")
_HEEDED_BY_NVCC = ("NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_LISTS_ALL = ("-MD", "--generate-dependencies-with-compile")
_LISTS_SOME = ("-MMD", "--generate-nonsystem-dependencies-with-compile")
_INCLUDES = ("-isystem", "-I", "-iquote", "-idirafter")
_HOST_COMPILER = ("-ccbin", "--compiler-bindir")
_WRITTEN = ("-o", "-MF", "-MT", "-MQ", "--dependency-output")
#: What is linked: anything else is compiled.
_LINKED = re.compile(r".*\.(?:o|a|so)(?:\.[\d.]+)?")
#: Where compilers look unasked; the others of each are below its prefix, which ends where `bin` begins.
_SYSTEM_INCLUDES = (Path("/usr/include"), Path("/usr/local/include"))
_OWN_INCLUDES = ("include", "lib/gcc/*/*/include*", "lib/clang/*/include", "*/include", "*/sysroot/usr/include")
_SYSTEM_LIBRARIES = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/lib64")
_OWN_LIBRARIES = ("lib", "lib64", "lib/gcc/*/*", "*/sysroot/usr/lib*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a build depends on beside what its compilers list, each as absolute paths without repetition.

    `files` are those that steps take or name, `programs` compilers, `folders` those whose headers are not listed, and
    `libraries` what the linker may take; `variables` are those of the environment that compilers heed.
    """

    files: tuple[Path, ...] = ()
    programs: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()
    libraries: tuple[Path, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    def __or__(self, other: Needs) -> Needs:
        """Return what two builds need together."""
        return Needs(
            files=_once((*self.files, *other.files)),
            programs=_once((*self.programs, *other.programs)),
            folders=_once((*self.folders, *other.folders)),
            libraries=_once((*self.libraries, *other.libraries)),
            variables=tuple(dict.fromkeys((*self.variables, *other.variables))),
        )


def needs_of(edges: Iterable[Edge], folder: Path) -> Needs:
    """Return what the steps need that run in `folder`. Raises `ValueError` where that cannot be told."""
    steps = tuple(edges)
    needs = reduce(Needs.__or__, (_needs_of(step, folder) for step in steps), Needs())
    made = {absolute(folder, output) for step in steps for output in step.outputs}
    taken = (absolute(folder, name) for step in steps for name in step.inputs)
    return replace(needs, files=_once(path for path in (*needs.files, *taken) if path not in made))


def _needs_of(step: Edge, folder: Path) -> Needs:
    if step.command is None:
        return Needs()
    name, words = _program(_words(step.command))
    is_nvcc = "nvcc" in name.name
    variables = _variables(_HEEDED + _HEEDED_BY_NVCC if is_nvcc else _HEEDED)
    if is_nvcc:
        told = dict(variables)
        words = [word for flags in _HEEDED_BY_NVCC[1:] for word in shlex.split(told.get(flags, ""))] + words
    if any(_ELSEWHERE.fullmatch(piece) for word in words for piece in _pieces(word)):
        raise ValueError("a compiler that looks elsewhere")
    programs = (name, *(_host_compilers(words, dict(variables)) if is_nvcc else ()))
    folders: tuple[Path, ...] = ()
    libraries: tuple[Path, ...] = ()
    if step.tells:
        folders = _unlisted(words, programs, folder)
        if folders and is_nvcc:  # which passes on options of its host compiler's
            raise ValueError("a compiler that lists not all")
    elif "-c" in words or not all(_LINKED.fullmatch(path) for path in step.inputs):
        raise ValueError("a compiler that lists nothing")
    else:
        libraries = tuple(_libraries(words, programs, folder))
    return Needs(
        files=tuple(_named(words, folder)),
        programs=programs,
        folders=folders,
        libraries=libraries,
        variables=variables,
    )


def _words(command: str) -> list[str]:
    """Return the words of a command. Raises `ValueError` for what is more to a shell than a program and its words."""
    if _SHELL.search(command):
        raise ValueError("a shell's work")
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words = list(lexer)
    if not words or any(word and _OPERATORS.issuperset(word) for word in words):
        raise ValueError("a shell's work")
    return words


def _program(words: list[str]) -> tuple[Path, list[str]]:
    """Return the compiler that the words start, and the words after it."""
    if Path(words[0]).name in _LAUNCHERS and len(words) > 1:
        words = words[1:]
    return _compiler(words[0]), words[1:]


def _compiler(name: str) -> Path:
    """Return where a compiler lies. Raises `ValueError` for what is none: a script, or one that stands for others."""
    found = shutil.which(name) if "/" not in name or name.startswith("/") else None
    path = None if found is None else Path(found).resolve()
    if path is None or not _COMPILER.fullmatch(path.name) or not _COMPILER.fullmatch(Path(name).name):
        raise ValueError("no compiler")
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            raise ValueError("no compiler")
    return path


def _host_compilers(words: list[str], variables: dict[str, str]) -> Iterator[Path]:
    """Yield the C++ compilers that nvcc may start: the one that it is told, else those that are found."""
    told = [*_values(words, _HOST_COMPILER), *filter(None, (variables.get("NVCC_CCBIN"),))]
    if told:
        yield from (_compiler(f"{name}/g++" if Path(name).is_dir() else name) for name in told)
    else:
        yield from (_compiler(name) for name in ("gcc", "g++") if shutil.which(name))


def _variables(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    if any(os.environ.get(name) for name in _ELSEWHERE_VARIABLES):
        raise ValueError("a compiler that looks elsewhere")
    return tuple((name, os.environ[name]) for name in names if os.environ.get(name))


def _unlisted(words: list[str], programs: tuple[Path, ...], folder: Path) -> tuple[Path, ...]:
    """Return the folders with headers that the compiler does not list."""
    if any(word in _LISTS_SOME for word in words):
        told = [absolute(folder, name) for name in _values(words, _INCLUDES)]
        more = [absolute(folder, name) for each in _HEEDED[:3] for name in _list_of(each)]
        return _once((*told, *more, *_SYSTEM_INCLUDES, *_below(programs, _OWN_INCLUDES)))
    if any(word in _LISTS_ALL for word in words):
        return ()
    raise ValueError("a compiler that lists nothing")


def _libraries(words: list[str], programs: tuple[Path, ...], folder: Path) -> Iterator[Path]:
    """Yield every file that may be one of the libraries that a linker is told to take, by its name."""
    places = [absolute(folder, name) for name in (*_values(words, ("-L",)), *_list_of("LIBRARY_PATH"))]
    places += [place for pattern in _SYSTEM_LIBRARIES for place in Path("/").glob(pattern[1:])]
    places += _below(programs, _OWN_LIBRARIES)
    for name in _values(words, ("-l",)):
        names = (name[1:],) if name.startswith(":") else (f"lib{name}.so", f"lib{name}.a")
        found = [place / each for place in places for each in names if (place / each).is_file()]
        if not found:
            raise ValueError("a library that is not found")
        yield from found


def _below(programs: tuple[Path, ...], patterns: tuple[str, ...]) -> list[Path]:
    """Return the folders that match below the prefixes of the programs."""
    prefixes = _once(program.parent.parent for program in programs)
    return [path for prefix in prefixes for pattern in patterns for path in sorted(prefix.glob(pattern))]


def _list_of(variable: str) -> list[str]:
    """Return the folders in a variable; an empty one is the current."""
    value = os.environ.get(variable)
    return [name or "." for name in value.split(os.pathsep)] if value else []


def _values(words: list[str], options: tuple[str, ...]) -> Iterator[str]:
    """Yield what follows the options: in the next word, after `=`, or at once."""
    for word, following in pairwise([*words, ""]):
        for option in options:
            if word == option:
                yield following
            elif word.startswith(option):
                yield word[len(option) :].removeprefix("=")


def _named(words: list[str], folder: Path) -> Iterator[Path]:
    """Yield the files elsewhere that the words name, alone or behind `=` or a comma, but for what is written."""
    for before, word in pairwise(["", *words]):
        for piece in _pieces(word) if before not in _WRITTEN else ():
            path = absolute(folder, piece)
            if not path.is_relative_to(folder) and os.path.isfile(path):  # noqa: PTH113 - whatever a word holds
                yield path


def _pieces(word: str) -> list[str]:
    return re.split("[=,]", word)


def absolute(folder: Path, name: str) -> Path:
    """Return a path as ninja takes it that runs in `folder`: by its text alone."""
    return Path(os.path.normpath(folder / name))


def _once(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(paths))
