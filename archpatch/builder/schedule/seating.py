"""Give a build its seat at the desk: the stand-in of nvcc among its variables, and the costs that came of it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from archpatch.builder.bench import Bench
from archpatch.builder.capture import Capture
from archpatch.builder.compiler_cache import CompilerCache, find_compiler_cache
from archpatch.builder.environment import NVCC_FLAGS
from archpatch.builder.schedule.desk import Desk, Split
from archpatch.builder.schedule.nvcc_stand_in import NO_LINEINFO
from archpatch.builder.schedule.rota import UNKNOWN, Cost

__all__ = ["STAND_IN", "Compilation", "Seated", "seated"]

#: What torch starts in the place of nvcc.
STAND_IN: Final = Path(__file__).with_name("nvcc_stand_in.py")
#: Each that waits is a Python of 8 MB. Of more files than that, the longest among the first ones starts first.
_MOST_WAITING: Final = 128
#: What torch takes for CUDA sources (`torch.utils.cpp_extension._is_cuda_file`).
_CUDA: Final = (".cu", ".cuh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """What is to be compiled in `tree`, and with what; `known` is what files cost before, by their path in the tree.

    Without `lineinfo`, nvcc does not get the flags by which it keeps source lines, or has ptxas talk.
    """

    captured: Capture
    bench: Bench
    tree: Path
    known: Mapping[str, Cost] = field(default_factory=dict)
    lineinfo: bool = True

    @property
    def sources(self) -> frozenset[Path]:
        """All files, of all extensions."""
        return frozenset(source for extension in self.captured.extensions for source in extension.sources)

    @property
    def cuda_sources(self) -> frozenset[Path]:
        """The files that nvcc compiles."""
        return frozenset(source for source in self.sources if source.suffix in _CUDA)

    @property
    def files(self) -> dict[str, Cost]:
        """What the files cost that nvcc compiles, by their path."""
        return {str(path): self.known.get(self.name(path), UNKNOWN) for path in self.cuda_sources}

    @property
    def archs(self) -> int:
        """For how many archs they are compiled, at most."""
        return max(len(extension.pairs) for extension in self.captured.cuda_extensions)

    def name(self, path: Path) -> str:
        """Return a source's path in the project, wherever that lies."""
        return path.relative_to(self.tree).as_posix() if path.is_relative_to(self.tree) else str(path)

    def can_ask(self, cache: CompilerCache | None) -> bool:
        """Whether each nvcc is one that torch has ninja start, and little else would run unasked.

        A user's own `PYTORCH_NVCC` stays. sccache starts the parts of nvcc by itself, from its server.
        """
        captured, bench = self.captured, self.bench
        if bench.environ.get("PYTORCH_NVCC") or (cache is not None and cache.name == "sccache"):
            return False
        if captured.cmake_commands or not captured.cuda_extensions:
            return False
        unasked = len(self.sources) - len(self.cuda_sources)
        return all(each.by_ninja for each in captured.cuda_extensions) and unasked <= max(2, bench.host.cores // 4)

    @property
    def split(self) -> Split:
        """Which threads nvcc can be given, and may: a user who has set some keeps them."""
        own = bool(self.bench.environ.get("NVCC_THREADS"))
        flags = " ".join(self.bench.environ.get(name, "") for name in NVCC_FLAGS)
        options = self.bench.toolkit.options
        return Split(
            archs=not own and "--threads" in options,
            optimisers=not own and "--split-compile" in options and "split-compile" not in flags,
        )


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
    made to ask gets the machine for itself.
    """
    cache = find_compiler_cache(compilation.bench.environ)
    seat = Seated()
    take = _at_the_desk if compilation.can_ask(cache) else _alone
    if cache is None:
        with take(desk, compilation, seat):
            yield seat
        return
    folder = compilation.tree.parent
    with cache.counted(folder) as counts, take(desk, compilation, seat):
        seat.variables |= cache.variables(compilation.bench.environ, folder)
        if "PYTORCH_NVCC" in seat.variables:
            seat.variables["PYTORCH_NVCC"] = f"{shlex.quote(str(cache.program))} {seat.variables['PYTORCH_NVCC']}"
        yield seat
    seat.cached = f"{cache.name}: {counts}"


@contextmanager
def _alone(desk: Desk, _: Compilation, __: Seated) -> Iterator[None]:
    with desk.alone():
        yield


@contextmanager
def _at_the_desk(desk: Desk, compilation: Compilation, seat: Seated) -> Iterator[None]:
    bench = compilation.bench
    with desk.seat(compilation.files, archs=compilation.archs, split=compilation.split) as place:
        seat.variables |= {
            "PYTORCH_NVCC": shlex.quote(str(put_stand_in(compilation))),
            "ARCHPATCH_NVCC": str(bench.toolkit.nvcc),
            "ARCHPATCH_DESK": place.address,
            "MAX_JOBS": bench.environ.get("MAX_JOBS") or str(min(len(compilation.sources), _MOST_WAITING)),
        }
        yield
        seat.costs |= {compilation.name(Path(path)): cost for path, cost in place.costs.items()}


def put_stand_in(compilation: Compilation) -> Path:
    """Write the program that torch calls in the place of nvcc, beside the tree.

    ccache knows a compiler by its size and time, or by its content: so both say which nvcc it is and what becomes of
    its flags, and nothing else of this build.
    """
    bench = compilation.bench
    nvcc = bench.toolkit.nvcc
    program = compilation.tree.with_name("stand-in") / "nvcc"
    program.parent.mkdir(exist_ok=True)
    options = () if compilation.lineinfo else (NO_LINEINFO,)
    command = shlex.join([str(bench.interpreter.executable), "-I", "-S", str(STAND_IN), *options])
    program.write_text(f'#!/bin/sh\n# nvcc {bench.toolkit.version}, {nvcc.stat().st_size}\nexec {command} "$@"\n')
    program.chmod(0o755)
    os.utime(program, ns=(nvcc.stat().st_mtime_ns,) * 2)
    return program
