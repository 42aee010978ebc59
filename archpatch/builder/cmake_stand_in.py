"""Stand in for CMake while a `setup.py` is captured: take note of what it is told, and run nothing.

`driver.py` loads this file in the interpreter that holds torch, as it does itself: it imports nothing of archpatch.
Stood in for are `cmake` that configures, builds or installs, and `ninja` and `make` in a folder that was configured.
Questions (`cmake --version`, `cmake -E ...`) run, and a program that is not there fails as it does without a capture.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Command", "StandIn", "commands_in"]

_CMAKE = ("cmake", "cmake3")
_BUILDERS = ("ninja", "ninja-build", "make", "gmake")
_ACTIONS = ("--build", "--install", "--workflow")
#: Modes in which CMake configures nothing (its manual, "Synopsis"); `-E` and `-P` are tools for scripts.
_QUESTION = re.compile(r"-[EPNhH]|/[?V]|--?version|--?help.*|--system-information|--find-package")
#: What CMake itself reads, or the projects that hand it on, and that decides what nvcc is told.
_VARIABLES = ("CUDAARCHS", "CUDAFLAGS", "CMAKE_ARGS", "TORCH_CUDA_ARCH_LIST")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


class Command(NamedTuple):
    """One program that is to be started: its words, the folder that it starts in, and its variables."""

    words: Sequence[str]
    folder: str
    environ: Mapping[str, str]

    @property
    def name(self) -> str:
        """The program without its folder; what `python -m` runs is one too."""
        return os.path.basename(self.words[0]) if self._is_itself else self.words[2]

    @property
    def arguments(self) -> Sequence[str]:
        """What follows the program."""
        return self.words[1:] if self._is_itself else self.words[3:]

    @property
    def _is_itself(self) -> bool:
        return self.words[1:2] != ["-m"] or not self.words[2:]

    @property
    def acts(self) -> bool:
        """Whether CMake would build or install."""
        return self.name in _CMAKE and self.arguments[:1] != [] and self.arguments[0] in _ACTIONS

    @property
    def configures(self) -> str | None:
        """The folder that CMake would configure, None where it would do something else, or answer a question."""
        if self.name not in _CMAKE or not self.arguments or self.acts:
            return None
        if any(_QUESTION.fullmatch(word) for word in self.arguments):
            return None
        return self.path(_option("-B", self.arguments) or ".")

    @property
    def program(self) -> str | None:
        """Where the program lies, None where it cannot be started."""
        return shutil.which(self.words[0], path=self.environ.get("PATH", os.defpath))

    @property
    def variables(self) -> dict[str, str]:
        """The variables that decide about archs, as far as they are set."""
        return {name: self.environ[name] for name in _VARIABLES if name in self.environ}

    def path(self, word: str) -> str:
        """Return the folder that a word names, seen from where the program starts."""
        return os.path.normpath(os.path.join(self.folder, word))


def commands_in(command: Any, *, in_shell: bool, folder: str, environ: Mapping[str, str]) -> list[Command]:
    """Return the programs that a `subprocess` argument starts; those of a shell's text are found by their separators.

    Variables of the shell are not replaced; a text that no shell reads gives nothing.
    """
    if isinstance(command, (str, bytes, os.PathLike)):
        words = [os.fsdecode(command)]
    else:
        words = [os.fsdecode(word) for word in command]
    if not words:
        return []
    return list(_of_shell(words[0], folder, environ)) if in_shell else [Command(words, folder, environ)]


def _of_shell(text: str, folder: str, environ: Mapping[str, str]) -> Iterator[Command]:
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:
        return
    simple: list[str] = []
    for word in [*words, ";"]:
        if word.strip(";&|()"):
            simple.append(word)
            continue
        own = dict(environ)
        while simple and (match := _ASSIGNMENT.fullmatch(simple[0])):
            own[match[1]] = match[2]
            del simple[0]
        if simple[:1] == ["cd"] and simple[1:]:
            folder = os.path.normpath(os.path.join(folder, simple[1]))
        elif simple:
            yield Command(simple, folder, own)
        simple = []


class StandIn:
    """Takes the place of CMake; `note` hears of each command, `folders` are those that were configured."""

    def __init__(self, note: Callable[[Command], None]) -> None:
        self.note = note
        self.folders: set[str] = set()

    def takes(self, commands: Sequence[Command]) -> bool:
        """Take note of the commands that are stood in for; tell whether there was one."""
        taken = False
        for command in commands:
            if command.program is None or not self._is_ours(command):
                continue
            if command.configures is not None:
                # CMake makes it, and many go there next.
                os.makedirs(command.configures, exist_ok=True)
                self.folders.add(command.configures)
            sys.stderr.write(f"archpatch: not run while setup.py is captured: {shlex.join(command.words)}\n")
            self.note(command)
            taken = True
        return taken

    def takes_words(self, words: Sequence[Any]) -> bool:
        """Do the same for a command that a compiler object would start here."""
        return self.takes([Command(list(map(os.fsdecode, words)), os.getcwd(), os.environ)])

    def install(self) -> None:
        """Look at each program that is started through `subprocess` or `os.system` from now on."""
        start, system = subprocess.Popen.__init__, os.system
        signature = inspect.signature(start)
        nothing = [shutil.which("true") or "/bin/true"]

        def popen(*positional: Any, **named: Any) -> None:
            given = signature.bind(*positional, **named).arguments
            if not isinstance(given["args"], (str, bytes, os.PathLike)):
                given["args"] = list(given["args"])
            environ, folder = given.get("env"), os.fsdecode(given.get("cwd") or ".")
            commands = commands_in(
                given["args"],
                in_shell=bool(given.get("shell")),
                folder=os.path.abspath(folder),
                environ=os.environ if environ is None else _decoded(environ),
            )
            if self.takes(commands):
                given.update(args=nothing, shell=False, executable=None)
            start(**given)

        def os_system(command: Any) -> int:
            commands = commands_in(command, in_shell=True, folder=os.getcwd(), environ=os.environ)
            return 0 if self.takes(commands) else system(command)

        setattr(subprocess.Popen, "__init__", popen)  # noqa: B010 - mypy takes no other spelling
        os.system = os_system

    def _is_ours(self, command: Command) -> bool:
        if command.name in _BUILDERS:
            return command.path(_option("-C", command.arguments) or ".") in self.folders
        return command.acts or command.configures is not None


def _option(name: str, arguments: Sequence[str]) -> str | None:
    """Return the value of an option, which stands in the same word or in the next one."""
    for word, following in zip(arguments, [*arguments[1:], ""]):  # noqa: B905 - for Python 3.8 too
        if word.startswith(name):
            return word[len(name) :].lstrip("=") or following
    return None


def _decoded(environ: Mapping[Any, Any]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environ.items()}
