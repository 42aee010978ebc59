"""A CUDA toolkit from PyPI: NVIDIA's own wheels of nvcc, laid out as `CUDA_HOME`."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from packaging.version import Version

from archpatch.builder.interpreter import Interpreter
from archpatch.builder.questions import Ask, ask
from archpatch.builder.working_folder import working_folder
from archpatch.errors import DiskFull, ToolchainError
from archpatch.storage.atomic import disk_errors

__all__ = ["install", "installed_folder"]

#: The first CUDA whose wheels hold nvcc (those of CUDA 12 hold ptxas and libdevice only).
_FIRST_WITH_NVCC: Final = 13
#: `nvcc` brings crt, nvvm and the runtime; `cccl` the headers of CUB, Thrust and libcu++; `profiler` the one of
#: cuda_profiler_api.h; `nvtx` those of NVTX, which CUB includes.
_EXTRAS: Final = "nvcc,cccl,profiler,nvtx"


def installed_folder(release: str, cache: Path) -> Path | None:
    """Return the folder of the toolkit of `release` in `cache` if it is there."""
    folder = cache / f"cuda-{release}"
    return folder if (folder / "bin/nvcc").is_file() else None


def install(release: str, *, cache: Path, interpreter: Interpreter, environ: Mapping[str, str], ask: Ask = ask) -> Path:
    """Fetch the toolkit of `release` (`13.0`) with pip's settings into `cache`, and return its folder; 200 MB.

    It appears in one step; of several processes one fetches and the others wait. Raises `ToolchainError` where there
    are no such wheels or they cannot be had, `DiskFull` where they do not fit.
    """
    if Version(release).major < _FIRST_WITH_NVCC:
        raise ToolchainError(
            f"NVIDIA's wheels for CUDA {release} hold no nvcc (those of CUDA {_FIRST_WITH_NVCC} and later do)",
            remedy=f"Install the CUDA toolkit {release} and set CUDA_HOME, or install a torch built for CUDA 13.",
        )
    # Almost nobody needs them: the machine has a toolkit, or the cache.
    from importlib.metadata import distributions  # noqa: PLC0415

    from filelock import FileLock  # noqa: PLC0415

    command = installer(interpreter, environ, own_pip=any(distributions(name="pip")))
    with disk_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"cuda-{release}.lock"):
            return installed_folder(release, cache) or _fetch(release, cache, command, ask)


def installer(interpreter: Interpreter, environ: Mapping[str, str], *, own_pip: bool) -> list[str]:
    """Return the command that installs wheels: the interpreter's pip, this one's (where `own_pip`), or uv.

    Any of them will do, since the wheels are for no Python in particular. Raises `ToolchainError` where none is there.
    """
    options = ["-m", "pip", "install", "--quiet", "--no-input", "--no-user", "--disable-pip-version-check"]
    if interpreter.version_of("pip") is not None:
        return [str(interpreter.executable), *options]
    if own_pip:
        return [sys.executable, *options]
    uv = shutil.which("uv", path=environ.get("PATH", ""))
    if uv is not None:
        return [uv, "pip", "install", "--quiet", "--python", str(interpreter.executable)]
    raise ToolchainError(
        f"neither pip nor uv is there to fetch nvcc with, for {interpreter.executable}",
        remedy=f"Run {interpreter.executable} -m ensurepip, or install the CUDA toolkit and set CUDA_HOME.",
    )


def _fetch(release: str, cache: Path, command: list[str], ask: Ask) -> Path:
    with working_folder(cache) as staging:
        # By its TMPDIR an installer that outlives this process is known, and ended, by the next that fetches.
        temporary, target = staging / "tmp", staging / "target"
        temporary.mkdir()
        requirement = f"cuda-toolkit[{_EXTRAS}]=={release}.*"
        install = [*command, "--only-binary", ":all:", "--target", str(target), requirement]
        answer = ask(["env", f"TMPDIR={temporary}", *install])
        if answer.status != 0:
            raise _failure(release, answer.stderr or answer.stdout, cache)
        root = target / f"nvidia/cu{Version(release).major}"
        _complete(root)
        folder = cache / f"cuda-{release}"
        shutil.rmtree(folder, ignore_errors=True)
        return root.rename(folder)


def _complete(root: Path) -> None:
    """Add what a `CUDA_HOME` has and the wheels lack: `lib64`, and a plain name beside each versioned library."""
    (root / "lib64").symlink_to("lib")
    for library in (root / "lib").glob("*.so.*"):
        plain = library.with_name(library.name.partition(".so.")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(library.name)


def _failure(release: str, output: str, cache: Path) -> ToolchainError | DiskFull:
    if os.strerror(errno.ENOSPC) in output:
        return DiskFull(
            f"no space is left in {cache} for nvcc {release}", remedy="Free 1 GB, or point ARCHPATCH_CACHE elsewhere."
        )
    errors = [line for line in output.splitlines() if line.lower().startswith("error")] or output.splitlines()
    reason = errors[-1] if errors else "no reason was given"
    return ToolchainError(
        f"nvcc {release} could not be fetched from the package index: {reason}",
        remedy=f"Check pip's index settings and the network, or install the CUDA toolkit {release} and set CUDA_HOME.",
    )
