"""Give a build its seat at the desk: the stand-in of nvcc among its variables, and the costs that came of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from archpatch.builder.bench import Bench
from archpatch.builder.capture import Capture
from archpatch.builder.compiler_cache import CompilerCache, find_compiler_cache
from archpatch.builder.environment import NVCC_FLAGS
from archpatch.builder.schedule import STAND_IN
from archpatch.builder.schedule.desk import Desk, Split
from archpatch.builder.schedule.nvcc_stand_in import NO_LINEINFO
from archpatch.builder.schedule.rota import UNKNOWN, Cost
from archpatch.errors import ToolchainError

__all__ = ["Compilation", "Seated", "seated"]

#: Each that waits is a Python of 8 MB. Of more files than that, the longest among the first ones starts first.
_MOST_WAITING: Final = 128
#: What torch takes for CUDA sources (`torch.utils.cpp_extension._is_cuda_file`).
_CUDA: Final = (".cu", ".cuh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """What is to be compiled in `tree`, with what, and in which environment.

    `known` is what files cost before, by their path in the tree, `usual` what others are taken to cost. Without
    `lineinfo`, nvcc does not get the flags by which it keeps source lines, or has ptxas talk.
    """

    captured: Capture
    bench: Bench
    tree: Path
    environment: Mapping[str, str]
    known: Mapping[str, Cost] = field(default_factory=dict)
    usual: Cost = UNKNOWN
    lineinfo: bool = True

    @property
    def sources(self) -> frozenset[Path]:
        """All files, of all extensions."""
        return frozenset(source for extension in self.captured.extensions for source in extension.sources)

    @property
    def unasked(self) -> int:
        """How many files are compiled by other than nvcc, which nobody makes wait."""
        return sum(source.suffix not in _CUDA for source in self.sources)

    @property
    def costs(self) -> list[dict[str, Cost]]:
        """What the files cost that nvcc compiles, by their path, of each extension."""
        return [
            {str(path): self.known.get(self.name(path), self.usual) for path in each.sources if path.suffix in _CUDA}
            for each in self.captured.cuda_extensions
        ]

    @property
    def archs(self) -> int:
        """For how many archs they are compiled, at most."""
        return max(len(extension.pairs) for extension in self.captured.cuda_extensions)

    def name(self, path: Path) -> str:
        """Return a source's path in the project, wherever that lies."""
        return path.relative_to(self.tree).as_posix() if path.is_relative_to(self.tree) else str(path)

    @property
    def can_stand_in(self) -> bool:
        """Whether each nvcc is one that torch has ninja start; a user's own `PYTORCH_NVCC` stays."""
        extensions = self.captured.cuda_extensions
        by_ninja = bool(extensions) and all(extension.by_ninja for extension in extensions)
        return by_ninja and not self.captured.cmake_commands and not self.bench.environ.get("PYTORCH_NVCC")

    def can_ask(self, cache: CompilerCache | None) -> bool:
        """Whether each nvcc can be made to wait, and little else would run unasked.

        sccache starts the parts of nvcc by itself, from its server.
        """
        few = self.unasked <= max(2, self.bench.host.cores // 4)
        return self.can_stand_in and few and not (cache is not None and cache.name == "sccache")

    def find_cache(self) -> CompilerCache | None:
        """Return the compiler cache that torch would use."""
        if not self.captured.wraps_compilers:
            return None
        flags = [f"{name}={self.environment.get(name, '')}" for name in NVCC_FLAGS]
        # It sees neither nvcc's variables, nor what the stand-in makes of nvcc's words.
        compiler = [f"nvcc {self.bench.toolkit.version}", *flags, f"lineinfo {self.lineinfo}"]
        return find_compiler_cache(self.bench.environ, folder=self.tree.parent, compiler="\n".join(compiler))

    @property
    def split(self) -> Split:
        """Which threads nvcc can be given, and may: a user who has set some keeps them."""
        own = bool(self.bench.environ.get("NVCC_THREADS"))
        options = self.bench.toolkit.options
        words = [word for name in NVCC_FLAGS for word in shlex.split(self.environment.get(name, ""))]
        split = Split(archs=not own and "--threads" in options, optimisers=not own and "--split-compile" in options)
        return split.without(words)

    def max_jobs(self, cache: CompilerCache | None) -> str:
        """Return how many files ninja may start, of which all but a few then wait; a user's own number stays."""
        # ccache runs the preprocessor before it knows whether the compiler has to run: nobody makes that one wait.
        most = _MOST_WAITING if cache is None else 2 * self.bench.host.cores
        return self.bench.environ.get("MAX_JOBS") or str(min(len(self.sources), most))


@dataclass(slots=True, kw_only=True)
class Seated:
    """The variables that a build gets for its seat; once it is done, what its files cost and what came from a cache.

    `costs` are by the file's path in the project; `cached` is a line for a person, empty without a compiler cache.
    """

    variables: dict[str, str] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    cached: str = ""


@contextmanager
def seated(desk: Desk, compilation: Compilation) -> Iterator[Seated]:
    """Let a build share the machine with all others.

    ninja starts every file at once, and each nvcc waits at the desk for its turn. A build whose compilers cannot be
    made to ask gets the machine for itself. Raises `ToolchainError` where flags are to be left out and cannot be.
    """
    if not compilation.lineinfo and not compilation.can_stand_in:
        raise ToolchainError(
            "--no-lineinfo: nvcc is not started by torch here, but by CMake, PYTORCH_NVCC or setup.py itself",
            remedy="Leave the option out.",
        )
    seat, cache = Seated(), compilation.find_cache()
    with ExitStack() as stack:
        if cache is not None:
            counts = stack.enter_context(cache.counted())
            seat.variables |= cache.variables()
        _take_place(stack, desk, compilation, seat, cache)
        yield seat
    if cache is not None:
        seat.cached = f"{cache.name}: {counts}"


def _take_place(
    stack: ExitStack, desk: Desk, compilation: Compilation, seat: Seated, cache: CompilerCache | None
) -> None:
    if compilation.can_ask(cache):
        try:
            stack.enter_context(_at_the_desk(desk, compilation, seat))
            seat.variables["MAX_JOBS"] = compilation.max_jobs(cache)
        except OSError:
            # No socket can be had here.
            stack.enter_context(desk.alone())
        else:
            seat.variables |= _stand_in(compilation, cache)
            return
    else:
        stack.enter_context(desk.alone())
    if not compilation.lineinfo:
        seat.variables |= _stand_in(compilation, None)


@contextmanager
def _at_the_desk(desk: Desk, compilation: Compilation, seat: Seated) -> Iterator[None]:
    with desk.seat(compilation.costs, archs=compilation.archs, split=compilation.split) as place:
        seat.variables["ARCHPATCH_DESK"] = place.address
        yield
    seat.costs |= {compilation.name(Path(path)): cost for path, cost in dict(place.costs).items()}


def _stand_in(compilation: Compilation, cache: CompilerCache | None) -> dict[str, str]:
    """Return the variables that put the stand-in in the place of nvcc, behind a compiler cache where there is one."""
    bench = compilation.bench
    words = [str(bench.interpreter.executable), "-I", "-S", str(STAND_IN)]
    if not compilation.lineinfo:
        words.append(NO_LINEINFO)
    script = None if cache is None else _script(compilation, words)
    if cache is not None and script is not None:
        words = [str(cache.program), str(script)]
    # ninja has a meaning of its own for a dollar.
    command = shlex.join(words).replace("$", "$$")
    return {"PYTORCH_NVCC": command, "ARCHPATCH_NVCC": str(bench.toolkit.nvcc)}


def _script(compilation: Compilation, words: list[str]) -> Path | None:
    """Write a program that runs `words`, None where programs cannot run: ccache takes a compiler of one word only.

    It knows a compiler by its size and time: so it has nvcc's time, and is the same for each build.
    """
    program = compilation.tree.with_name("stand-in") / "nvcc"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    os.utime(program, ns=(compilation.bench.toolkit.nvcc.stat().st_mtime_ns,) * 2)
    return program if os.access(program, os.X_OK) else None
