"""Capture what nvcc would be told, with torch and nvcc stubbed: one fork per run, a few hundredths of a second each."""

# ruff: noqa: PTH118, PLC0415 - strings are what a child process needs; what it imports is imported late

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import json
import os
import re
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from corpus.seen import Failure, Seen
from corpus.toolkits import TOOLKITS, Toolkit, make_home
from corpus.tree import Tree

__all__ = ["Harness", "Settings", "harness"]

_STUBS = str(Path(__file__).with_name("stubs"))
_LIMIT = 30.0

#: What setuptools imports while it runs: done once, before the forks.
_WARM = (
    *("setuptools", "setuptools.command.build_ext", "setuptools.command.build", "setuptools.command.egg_info"),
    *("setuptools.command.bdist_wheel", "setuptools.command.install", "setuptools.command.develop"),
    *("setuptools.command.build_py", "setuptools.command.sdist", "setuptools.config.pyprojecttoml"),
    *("setuptools.config._apply_pyprojecttoml", "setuptools.config.setupcfg", "setuptools.config._validate_pyproject"),
    *("setuptools.config._validate_pyproject.formats", "setuptools._vendor", "setuptools.logging"),
    *("distutils.core", "distutils.ccompiler", "distutils.unixccompiler", "distutils.command.build_ext"),
    *("distutils.sysconfig", "setuptools._distutils.compilers.C.unix", "packaging.requirements", "packaging.tags"),
    *(
        "wheel",
        "urllib.request",
        "multiprocessing",
        "concurrent.futures",
        "tomllib",
        "torch",
        "torch.utils.cpp_extension",
    ),
    *("platform", "logging.config", "email.parser", "zipfile", "tarfile", "cgi", "corpus.observe"),
)

#: What every run is told, so that packages build their CUDA code, and without a GPU (FORCE_CUDA: pytorch3d,
#: torch_scatter and others; DS_*: deepspeed; MMCV_WITH_OPS: older mmcv).
_ALWAYS = {
    "FORCE_CUDA": "1",
    "DS_ACCELERATOR": "cuda",
    "DS_BUILD_OPS": "1",
    "MMCV_WITH_OPS": "1",
    "LANG": "C.UTF-8",
    "MAX_JOBS": "4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run sees: the CUDA release, the variables of its own, and the visible GPU's capability, if any."""

    toolkit: Toolkit
    variables: tuple[tuple[str, str], ...] = ()
    capability: tuple[int, int] | None = None

    @classmethod
    def of(cls, toolkit: Toolkit, variables: Mapping[str, str], capability: tuple[int, int] | None = None) -> Settings:
        """Return the settings for a mapping of variables."""
        return cls(toolkit=toolkit, variables=tuple(sorted(variables.items())), capability=capability)


class Harness:
    """A warm process that captures; made by `harness`, which cleans up after it."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.homes = {toolkit: make_home(toolkit, scratch / f"cuda-{toolkit}") for toolkit in TOOLKITS.values()}
        _warm()

    def tree(self, setup: Path) -> Tree:
        """Return a copy of the project of `setup` to run in."""
        return Tree(setup, Path(tempfile.mkdtemp(dir=self.scratch)) / setup.parent.name)

    def capture(self, tree: Tree, source: bytes, settings: Settings) -> Seen:
        """Run `source` as the `setup.py` of `tree`."""
        with tree.holding(source), tempfile.TemporaryDirectory(dir=self.scratch) as scratch:
            environment = self.environment(settings, scratch)
            started = time.perf_counter()
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                _child(tree, settings, environment, scratch=scratch, writing=writing)
            os.close(writing)
            text = _read(reading, child)
            seconds = time.perf_counter() - started
        if not text:
            died = Failure(kind="Died", message="setup.py ended the process, or took too long", line=None)
            return Seen(name=None, extensions=(), commands=(), failure=died, seconds=seconds)
        return Seen.from_json(json.loads(text), seconds)

    def environment(self, settings: Settings, scratch: str) -> dict[str, str]:
        """Return all variables of a run."""
        home = str(self.homes[settings.toolkit])
        variables = {"CUDA_HOME": home, "CUDA_PATH": home, "PATH": f"{home}/bin:/usr/bin:/bin", "HOME": scratch}
        return {**_ALWAYS, **variables, "TMPDIR": scratch, **dict(settings.variables)}


@contextlib.contextmanager
def harness() -> Iterator[Harness]:
    """Give a warm harness, and remove its files in the end."""
    with tempfile.TemporaryDirectory(prefix="archpatch-corpus-") as scratch:
        yield Harness(Path(scratch))


@functools.cache
def _warm() -> None:
    """Import what a run needs, with the stub in torch's place, and read the installed entry points once."""
    if "torch" in sys.modules and not str(sys.modules["torch"].__file__).startswith(_STUBS):
        raise RuntimeError("this process has the real torch: capture in a process of its own")
    sys.path.insert(0, _STUBS)
    for name in _WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    entry_points = importlib.metadata.entry_points()
    importlib.metadata.entry_points = lambda **wanted: entry_points.select(**wanted) if wanted else entry_points
    from distutils.ccompiler import new_compiler
    from distutils.sysconfig import customize_compiler

    customize_compiler(new_compiler())


def _child(tree: Tree, settings: Settings, environment: dict[str, str], *, scratch: str, writing: int) -> None:
    """Run the capture and end the process, whatever happens."""
    status = 1
    try:
        signal.alarm(int(_LIMIT))
        log = os.open(os.path.join(scratch, "log"), os.O_WRONLY | os.O_CREAT, 0o600)
        for stream in (1, 2):
            os.dup2(log, stream)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        from corpus.observe import observe

        seen = observe(
            tree.folder,
            environment,
            toolkit=settings.toolkit,
            capability=settings.capability,
            is_bare=tree.is_bare,
            is_legacy=not _names_backend(tree.folder),
            scratch=os.path.join(scratch, "build"),
            bytecode=str(tree.bytecode),
        )
        with os.fdopen(writing, "w", encoding="utf-8", closefd=False) as pipe:
            json.dump(seen, pipe)
        status = 0
    finally:
        os._exit(status)


def _names_backend(folder: Path) -> bool:
    """Tell whether the project names its build backend; where it does not, setuptools puts it on the import path."""
    project = folder / "pyproject.toml"
    return (
        project.is_file()
        and re.search(r"^\s*build-backend\s*=(?!.*__legacy__)", project.read_text("utf-8"), re.MULTILINE) is not None
    )


def _read(reading: int, child: int) -> str:
    """Return what the child writes until it ends; it is ended where it takes too long."""
    parts: list[bytes] = []
    deadline = time.monotonic() + _LIMIT
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = pipe.read(2**16)
            if not part:
                break
            parts.append(part)
        else:
            os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return b"".join(parts).decode()
