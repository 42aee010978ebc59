"""The machine that compiles: host compiler, ninja, and the cores, memory and disk that this process may really use."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from archpatch.builder.interpreter import Interpreter
from archpatch.builder.questions import Ask, ask
from archpatch.errors import UsageError

__all__ = ["Compiler", "Host", "available_cores", "available_memory", "inspect_host", "jobs", "most_jobs"]

#: One nvcc process on the larger kernels was seen to take 3 to 5 GB.
MEMORY_PER_JOB: Final = 4 << 30

_LAUNCHERS: Final = ("ccache", "distcc", "sccache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """The host C++ compiler: `kind` is `gcc`, `clang` or `other`, `version` its own (`12.2.0`; empty if untold)."""

    path: Path
    kind: str
    version: str

    def __str__(self) -> str:
        return f"{self.kind} {self.version} ({self.path})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What compiles: `memory` and `disk` are the bytes that are free, `folder` is where the disk was looked at.

    `cmake` is needed only by packages that start it.
    """

    machine: str
    compiler: Compiler | None
    ninja: Path | None
    cmake: Path | None
    cores: int
    memory: int
    disk: int
    folder: Path


def inspect_host(interpreter: Interpreter, environ: Mapping[str, str], *, folder: Path, ask: Ask = ask) -> Host:
    """Look at this machine; `folder`, which need not exist yet, is where the build will write."""
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return Host(
        machine=os.uname().machine,
        compiler=find_compiler(environ, ask),
        ninja=find_tool("ninja", interpreter, environ),
        cmake=find_tool("cmake", interpreter, environ),
        cores=available_cores(),
        memory=available_memory(),
        disk=shutil.disk_usage(existing).free,
        folder=folder,
    )


def find_compiler(environ: Mapping[str, str], ask: Ask = ask) -> Compiler | None:
    """Return the compiler that torch would take: `CXX` (a launcher before it is skipped), else c++, else g++."""
    words = [word for word in environ.get("CXX", "").split() if Path(word).name not in _LAUNCHERS]
    for name in words[:1] or ("c++", "g++"):
        path = shutil.which(name, path=environ.get("PATH", ""))
        if path is not None:
            return Compiler(path=Path(path), **parse_compiler_version(ask([path, "--version"]).stdout))
    return None


def parse_compiler_version(text: str) -> dict[str, str]:
    """Return `kind` and `version` from what `--version` prints.

    GCC names itself by how it was called and puts the packager into parentheses: `c++ (Debian 12.2.0-14) 12.2.0`.
    """
    first = text.partition("\n")[0]
    clang = re.search(r"\bclang version (\d+[\d.]*\d)", first)
    if clang:
        return {"kind": "clang", "version": clang[1]}
    gcc = re.search(r"\) (\d+\.\d+\.\d+)\b", first)
    is_gcc = gcc is not None and "Free Software Foundation" in text
    return {"kind": "gcc" if is_gcc else "other", "version": gcc[1] if gcc else ""}


def find_tool(name: str, interpreter: Interpreter, environ: Mapping[str, str]) -> Path | None:
    """Return a program from PATH, or from where the interpreter's packages put theirs."""
    places = [environ.get("PATH", ""), *map(str, interpreter.scripts)]
    found = shutil.which(name, path=os.pathsep.join(places))
    return Path(found) if found else None


def jobs(*, cores: int, memory: int, sources: int, environ: Mapping[str, str]) -> int:
    """Return how many compilers to run side by side: at most one a core and a source, 4 GiB of memory for each.

    `MAX_JOBS` decides where it is set; raises `UsageError` where it is no number.
    """
    return most_jobs(environ) or max(1, min(cores, sources, memory // MEMORY_PER_JOB))


def most_jobs(environ: Mapping[str, str]) -> int | None:
    """Return `MAX_JOBS`, None where it is not set; raises `UsageError` where it is no whole number, as torch would."""
    wanted = environ.get("MAX_JOBS", "")
    if not wanted:
        return None
    if not (wanted.isascii() and wanted.isdigit() and int(wanted)):
        raise UsageError(f"MAX_JOBS={wanted!r} is no number of jobs", remedy="Write a whole number, or unset it.")
    return int(wanted)


def available_cores(root: Path = Path("/")) -> int:
    """Return the cores that this process may use: its affinity, and its control groups' CPU quotas (v1 and v2)."""
    affinity = len(os.sched_getaffinity(0))
    quotas = [quota for group in control_groups(root) if (quota := cpu_quota(group)) is not None]
    return max(1, min([affinity, *map(int, quotas)]))


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes that can still be used: `MemAvailable`, and what each control group's limit leaves."""
    free = [memory_left(group) for group in control_groups(root)]
    return min([parse_meminfo(_read(root / "proc/meminfo")), *(left for left in free if left is not None)])


def control_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups and of all above them, v1 and v2.

    In a container `/proc/self/cgroup` can name a path of the host's that is not mounted there: those are left out,
    the mount's own folder then holds the container's limits.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        tops = [mount / name for name in controllers.split(",") if name in ("cpu", "memory")]
        for top in tops if controllers else [mount]:
            group = top / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top) and folder.is_dir())


def cpu_quota(group: Path) -> float | None:
    """Return the cores that the control group `group` grants, or None where it sets no quota."""
    quota, _, period = _read(group / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def memory_left(group: Path) -> int | None:
    """Return limit minus use of the control group `group` in bytes, or None where it sets no limit.

    File pages that nobody touched lately count as free, as they do in `MemAvailable`.
    """
    names = ("memory.max", "memory.current", "inactive_file")
    if not (group / names[0]).exists():
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limit, used = (_read(group / name).strip() for name in names[:2])
    if not limit.isdigit() or not used.isdigit():
        return None
    idle = re.search(rf"^{names[2]} (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
    return max(0, int(limit) - int(used) + (int(idle[1]) if idle else 0))


def parse_meminfo(text: str) -> int:
    """Return `MemAvailable` of `/proc/meminfo` in bytes."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) << 10 if match else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
