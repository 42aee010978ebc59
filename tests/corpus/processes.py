"""Stand-ins for the programs that a `setup.py` starts: nvcc answers for its release, the others are missing or mute."""

# ruff: noqa: ANN401, ARG002, FBT001, PLR0911, PTH119 - it stands in for untyped functions of the standard library

from __future__ import annotations

import io
import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from corpus.toolkits import Toolkit

__all__ = ["Answer", "install", "reply"]

#: (exit status, stdout, stderr)
Answer = tuple[int, str, str]

_MISSING = frozenset(
    {"hipcc", "hipconfig", "rocminfo", "rocm-smi", "rocm_agent_enumerator", "icpx", "dpcpp", "npu-smi"}
)
_GIT_WORKS = frozenset({"submodule", "clone", "fetch", "checkout", "init", "apply"})
_COMPILERS = ("gcc", "g++", "cc", "c++", "x86_64-linux-gnu-gcc", "x86_64-linux-gnu-g++")


def reply(arguments: Sequence[str], toolkit: Toolkit, capability: tuple[int, int] | None) -> Answer:
    """Answer one command. Raises `FileNotFoundError` for a program that is not there."""
    program = os.path.basename(arguments[0]) if arguments else ""
    rest = list(arguments[1:])
    if program in _MISSING or (program == "nvidia-smi" and capability is None):
        raise FileNotFoundError(2, "No such file or directory", program)
    if program == "nvcc":
        return 0, _nvcc(rest, toolkit), ""
    if program == "nvidia-smi" and capability is not None:
        return 0, _nvidia_smi(rest, capability), ""
    if program == "git":
        return (0, "", "") if _GIT_WORKS & set(rest) else (128, "", "fatal: not a git repository\n")
    if program in ("which", "type", "command"):
        return _which(rest)
    if program in _COMPILERS:
        return 0, _compiler(program, rest), ""
    if "--version" in rest:
        return 0, {"cmake": "cmake version 3.31.6\n", "ninja": "1.11.1\n"}.get(program, f"{program} 1.0\n"), ""
    return 0, "", ""


def _nvcc(rest: list[str], toolkit: Toolkit) -> str:
    if {"-V", "--version"} & set(rest):
        return toolkit.banner
    codes = "\n".join(toolkit.codes) + "\n"
    if {"--list-gpu-code", "-code-ls"} & set(rest):
        return codes
    return codes.replace("sm_", "compute_") if {"--list-gpu-arch", "-arch-ls"} & set(rest) else ""


def _nvidia_smi(rest: list[str], capability: tuple[int, int]) -> str:
    if any("compute_cap" in word for word in rest):
        return f"{capability[0]}.{capability[1]}\n"
    return "GPU 0: NVIDIA stub (UUID: GPU-0)\n"


def _compiler(program: str, rest: list[str]) -> str:
    if {"-dumpversion", "-dumpfullversion"} & set(rest):
        return "13.3.0\n"
    return f"{program} (Ubuntu 13.3.0-6ubuntu2) 13.3.0\n" if "--version" in rest else ""


def _which(rest: list[str]) -> Answer:
    home = os.environ.get("CUDA_HOME", "")
    known = {"nvcc": f"{home}/bin/nvcc", "ninja": f"{home}/bin/ninja", "g++": "/usr/bin/g++", "gcc": "/usr/bin/gcc"}
    path = next((known[word] for word in rest if word in known), None)
    return (0, path + "\n", "") if path else (1, "", "")


class FakeProcess:
    """A process that has ended before it began."""

    def __init__(self, answer: Answer, *, arguments: Any, text: bool, streams: tuple[Any, Any]) -> None:
        self.args = arguments
        self.pid = os.getpid()
        self.returncode, stdout, stderr = answer
        out, err = streams
        self._out = _content(stdout, text) if out == subprocess.PIPE else None
        self._err = _content(stderr, text) if err == subprocess.PIPE else None
        for sink, content in ((out, stdout), (err, stderr)):
            if hasattr(sink, "write"):
                sink.write(content if isinstance(sink, io.TextIOBase) else content.encode())
        self.stdout = _stream(self._out)
        self.stderr = _stream(self._err)
        self.stdin = io.StringIO() if text else io.BytesIO()

    def communicate(self, *_: object, **__: object) -> tuple[Any, Any]:
        """Return all output."""
        return self._out, self._err

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status."""
        return self.returncode

    poll = wait

    def kill(self) -> None:
        """Do nothing: it has ended."""

    terminate = kill

    def __enter__(self) -> FakeProcess:  # noqa: PYI034 - typing.Self begins with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: it has ended."""


def _content(text: str, is_text: bool) -> str | bytes:
    return text if is_text else text.encode()


def _stream(content: str | bytes | None) -> Any:
    if content is None:
        return None
    return io.StringIO(content) if isinstance(content, str) else io.BytesIO(content)


def install(toolkit: Toolkit, capability: tuple[int, int] | None) -> None:
    """Put the stand-ins in place, for this process and for good."""

    def answer(command: Any) -> Answer:
        words = command if isinstance(command, list | tuple) else shlex.split(_text(command))
        words = [_text(word) for word in words]
        if words[:1] in (["bash"], ["sh"], ["/bin/sh"], ["/bin/bash"]) and words[1:2] == ["-c"]:
            words = shlex.split(words[2])
        return reply(words, toolkit, capability)

    class Popen(FakeProcess):
        """What `run`, `check_output` and their kin are made of."""

        def __init__(self, args: Any, bufsize: int = -1, *_: object, **kwargs: Any) -> None:
            text = any(kwargs.get(name) for name in ("text", "universal_newlines", "encoding", "errors"))
            try:
                answered = answer(args)
            except FileNotFoundError:
                if not kwargs.get("shell"):
                    raise
                answered = (127, "", "command not found\n")
            streams = (kwargs.get("stdout"), kwargs.get("stderr"))
            super().__init__(answered, arguments=args, text=text, streams=streams)

        def __class_getitem__(cls, _: object) -> type:
            return cls

    def system(command: Any) -> int:
        try:
            return answer(command)[0] << 8
        except FileNotFoundError:
            return 127 << 8

    subprocess.Popen = Popen  # type: ignore[assignment, misc]
    os.system = system
    for name in ("execv", "execve", "execvp", "execvpe", "posix_spawn", "posix_spawnp"):
        setattr(os, name, _refuse(name))


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else os.fspath(word) if hasattr(word, "__fspath__") else str(word)


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(1, f"os.{name} is not for a capture")

    return refuse
