"""Check in seconds that a build can work, before anything compiles: one finding per thing that it needs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from packaging.version import Version

from archpatch.arch.arch import Arch, Pair
from archpatch.arch.gpu import Gpu
from archpatch.builder.host import MEMORY_PER_JOB, Host
from archpatch.builder.interpreter import Interpreter, TorchFacts, missing_requirements
from archpatch.builder.toolkit import Toolkit, ToolkitToFetch
from archpatch.errors import ToolchainError

__all__ = ["Finding", "Needs", "Status", "check", "require"]

#: The least free disk for a build: sources, objects of many archs and the wheel.
DISK: Final = 2 << 30

#: The CUDA release that brought an arch (release notes of the toolkits); those before CUDA 11.8 are of no use now.
_SINCE: Final = {
    (8, 9): "11.8",
    (9, 0): "11.8",
    (10, 0): "12.8",
    (12, 0): "12.8",
    (10, 3): "12.9",
    (12, 1): "12.9",
    (8, 8): "13.0",
    (11, 0): "13.0",
}
#: CUDA 13 dropped every arch before this one, and renamed Thor's 10.1.
_FIRST_IN_13: Final = (7, 5)
_THOR_BEFORE_13: Final = (10, 1)
_THOR: Final = (11, 0)


class Status(str, Enum):
    """What a finding means for the build."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a build needs: what it is, what was found, and, unless it is ok, what to do."""

    what: str
    status: Status
    detail: str
    remedy: str | None = None

    @property
    def ok(self) -> bool:
        """Whether a build can go on; a warning does not stop it."""
        return self.status is not Status.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one build asks for: its build requirements (PEP 508), the pairs to compile, the GPU types to serve."""

    requirements: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()
    gpus: tuple[Gpu, ...] = ()


def check(interpreter: Interpreter, toolkit: Toolkit | ToolchainError, host: Host, needs: Needs) -> tuple[Finding, ...]:
    """Return a finding for each thing that a build for `needs` takes, in the order in which a reader would fix them.

    `toolkit` may be the error that looking for one ended in.
    """
    return (
        *_check_torch(interpreter),
        *_check_toolkit(interpreter, toolkit, needs),
        *_check_compiler(toolkit, host),
        _check_ninja(interpreter, host),
        _check_requirements(interpreter, needs.requirements),
        *_check_gpus(host, needs.gpus),
        *_check_room(host),
    )


def require(findings: tuple[Finding, ...]) -> None:
    """Raise one `ToolchainError` that lists every failed finding with its remedy; return where there is none."""
    failed = [finding for finding in findings if not finding.ok]
    if failed:
        lines = [f"{finding.what}: {finding.detail}" for finding in failed]
        remedies = dict.fromkeys(finding.remedy for finding in failed if finding.remedy)
        raise ToolchainError("\n".join(["the build cannot start", *lines]), remedy="\n".join(remedies))


def install_command(interpreter: Interpreter, *requirements: str) -> str:
    """Return the shell command that installs `requirements` for `interpreter`, with uv where it has no pip."""
    words = [str(interpreter.executable), "-m", "pip", "install", *requirements]
    if interpreter.version_of("pip") is None:
        words = ["uv", "pip", "install", "--python", str(interpreter.executable), *requirements]
    return shlex.join(words)


def _check_torch(interpreter: Interpreter) -> Iterator[Finding]:
    torch = interpreter.torch
    yield Finding(what="python", status=Status.OK, detail=f"{interpreter.version} ({interpreter.executable})")
    if torch is None:
        remedy = f"Run {install_command(interpreter, 'torch')}, or name with --python the interpreter that holds torch."
        yield Finding(
            what="torch", status=Status.FAILED, detail=f"not installed for {interpreter.executable}", remedy=remedy
        )
    elif torch.cuda is None:
        yield Finding(
            what="torch",
            status=Status.FAILED,
            detail=f"{torch.version} in {torch.folder} was built without CUDA",
            remedy="Install a CUDA build of torch: pytorch.org, 'Start locally', names its index for each CUDA.",
        )
    else:
        yield Finding(what="torch", status=Status.OK, detail=f"{torch.version}, CUDA {torch.cuda} ({torch.folder})")


def _check_toolkit(interpreter: Interpreter, toolkit: Toolkit | ToolchainError, needs: Needs) -> Iterator[Finding]:
    if isinstance(toolkit, ToolchainError):
        status = Status.WARNING if isinstance(toolkit, ToolkitToFetch) else Status.FAILED
        yield Finding(what="nvcc", status=status, detail=toolkit.message, remedy=toolkit.remedy)
        return
    yield _check_release(toolkit, interpreter.torch)
    if toolkit.missing_headers() and not interpreter.library_headers:
        requirement = f"cuda-toolkit[cublas,cusolver,cusparse]=={toolkit.release}.*"
        yield Finding(
            what="CUDA headers",
            status=Status.FAILED,
            detail=f"{', '.join(toolkit.missing_headers())} (which torch's headers include) not in {toolkit.root}",
            remedy=f"Run {install_command(interpreter, requirement)}, or install the whole CUDA toolkit.",
        )
    for pair in needs.pairs:
        if not toolkit.supports(pair):
            yield Finding(
                what=str(pair),
                status=Status.FAILED,
                detail=f"nvcc {toolkit.version} cannot compile it: {_why_unknown(pair.device_code.arch, toolkit)}",
                remedy=f"It compiles {', '.join(map(str, toolkit.archs))}.",
            )


def _check_release(toolkit: Toolkit, torch: TorchFacts | None) -> Finding:
    detail = f"{toolkit.version}, found by {toolkit.found_by} ({toolkit.root})"
    if torch is None or torch.cuda is None or toolkit.release == torch.cuda:
        return Finding(what="nvcc", status=Status.OK, detail=detail)
    wanted = Version(torch.cuda)
    same_major = wanted.major == toolkit.version.major
    return Finding(
        what="nvcc",
        status=Status.WARNING if same_major else Status.FAILED,
        detail=f"{detail}; torch was built with CUDA {torch.cuda}",
        remedy=None
        if same_major
        else f"Point CUDA_HOME or --toolkit at a CUDA {wanted.major} toolkit, or leave both out.",
    )


def _why_unknown(arch: Arch, toolkit: Toolkit) -> str:
    base, is_13 = (arch.major, arch.minor), toolkit.version >= Version("13")
    if is_13 and base < _FIRST_IN_13:
        return "CUDA 13 dropped every arch below 7.5; take a torch built for CUDA 12"
    if is_13 and base == _THOR_BEFORE_13:
        return "Thor is 11.0 since CUDA 13, and was 10.1 before"
    if not is_13 and base == _THOR:
        return "Thor is 10.1 before CUDA 13, and 11.0 since"
    since = "12.9" if arch.suffix == "f" else _SINCE.get(base)
    return f"it came with CUDA {since}" if since and toolkit.version < Version(since) else "it does not know it"


def _check_compiler(toolkit: Toolkit | ToolchainError, host: Host) -> Iterator[Finding]:
    compiler = host.compiler
    if compiler is None:
        remedy = "Install one: apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora, RHEL); or set CXX."
        yield Finding(
            what="host compiler", status=Status.FAILED, detail="neither $CXX nor c++ nor g++ is on PATH", remedy=remedy
        )
        return
    newest = toolkit.newest_gcc() if isinstance(toolkit, Toolkit) else None
    if newest is not None and compiler.kind == "gcc" and int(compiler.version.partition(".")[0]) > newest:
        yield Finding(
            what="host compiler",
            status=Status.WARNING,
            detail=f"{compiler}: this nvcc takes GCC up to {newest}",
            remedy=f"Install g++-{newest}, and set CXX=g++-{newest} and CC=gcc-{newest}.",
        )
        return
    yield Finding(what="host compiler", status=Status.OK, detail=str(compiler))


def _check_ninja(interpreter: Interpreter, host: Host) -> Finding:
    if host.ninja is None:
        remedy = f"Run {install_command(interpreter, 'ninja')}"
        return Finding(what="ninja", status=Status.FAILED, detail="not found: torch compiles with it", remedy=remedy)
    return Finding(what="ninja", status=Status.OK, detail=str(host.ninja))


def _check_requirements(interpreter: Interpreter, requirements: tuple[str, ...]) -> Finding:
    missing = missing_requirements(requirements, interpreter)
    if missing:
        remedy = f"Run {install_command(interpreter, *missing)}"
        detail = f"missing for {interpreter.executable}: {', '.join(missing)}"
        return Finding(what="build requirements", status=Status.FAILED, detail=detail, remedy=remedy)
    return Finding(what="build requirements", status=Status.OK, detail=", ".join(requirements) or "none")


def _check_gpus(host: Host, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    for gpu in gpus:
        if host.machine not in gpu.hosts:
            yield Finding(
                what=gpu.name,
                status=Status.FAILED,
                detail=f"it comes with {' or '.join(gpu.hosts)} CPUs only, and this machine is {host.machine}",
                remedy=f"Build for it on a machine of that kind; --arch {gpu.arch} compiles its device code here.",
            )


def _check_room(host: Host) -> Iterator[Finding]:
    yield _check_disk(host)
    memory = host.memory >= MEMORY_PER_JOB
    yield Finding(
        what="cores and memory",
        status=Status.OK if memory else Status.WARNING,
        detail=f"{host.cores} cores, {_gib(host.memory)} free; larger kernels take {_gib(MEMORY_PER_JOB)} per nvcc",
        remedy=None if memory else "Free some, or build on a larger machine: the compiler may be killed.",
    )


def _check_disk(host: Host) -> Finding:
    if not host.folder.is_dir() or not os.access(host.folder, os.W_OK | os.X_OK):
        # Python takes another folder then and says nothing, perhaps on a disk without room.
        return Finding(
            what="disk",
            status=Status.FAILED,
            detail=f"TMPDIR is {host.folder}, where nothing can be written",
            remedy=f"Make the folder {host.folder}, point TMPDIR elsewhere, or unset it.",
        )
    disk = host.disk >= DISK
    return Finding(
        what="disk",
        status=Status.OK if disk else Status.FAILED,
        detail=f"{_gib(host.disk)} free for {host.folder}, a build takes {_gib(DISK)}",
        remedy=None if disk else "Free some, or point TMPDIR at another disk.",
    )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
