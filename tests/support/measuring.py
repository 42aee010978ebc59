"""Measurements with two sides from one run, and the report of a session: `archpatch.bench/1`.

A figure compares what is measured with what it is held against: `ratio` divides, `difference` subtracts. Seconds and
bytes are kept as they were measured, and rounded only where a person reads them.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from commandline import CUDA_HOME, PROJECT

from archpatch import __version__
from archpatch.builder.gpus import visible_gpus
from archpatch.builder.host import available_cores
from archpatch.builder.interpreter import probe
from archpatch.builder.toolkit import nvcc_version

SCHEMA = "archpatch.bench/1"

Unit = Literal["s", "bytes"]
Figure = Literal["ratio", "difference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: what was done, and the seconds or bytes that it took."""

    name: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was measured against what. The figure may be at most `most` and has to be at least `least`, where given."""

    name: str
    measured: Side
    against: Side
    unit: Unit = "s"
    figure: Figure = "ratio"
    most: float | None = None
    least: float | None = None
    note: str = ""

    @property
    def value(self) -> float:
        """The figure: a number for a ratio, the unit's for a difference."""
        measured, against = self.measured.value, self.against.value
        return measured / against if self.figure == "ratio" else measured - against

    @property
    def holds(self) -> bool:
        """Whether the figure is within its limits."""
        least = -math.inf if self.least is None else self.least
        return least <= self.value <= (math.inf if self.most is None else self.most)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Comparison:
        """Read what `to_json` wrote."""
        given = {name: value for name, value in content.items() if name != "value"}
        return cls(**{**given, "measured": Side(**given["measured"]), "against": Side(**given["against"])})

    def to_json(self) -> dict[str, Any]:
        """Return all fields, and the figure as `value`."""
        return {**asdict(self), "value": self.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """The seconds that the imports of one command take, by the library that they belong to, the longest first."""

    command: str
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of a session, with the machine and the versions that it was measured with."""

    date: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    results: tuple[Comparison, ...] = ()
    imports: tuple[Imports, ...] = ()

    @classmethod
    def here(cls) -> Report:
        """Return an empty report of this machine, today."""
        return cls(date=datetime.now(timezone.utc).date().isoformat(), machine=machine(), versions=versions())

    def plus(self, made: Comparison | Imports) -> Report:
        """Return the report with one more measurement."""
        if isinstance(made, Comparison):
            return replace(self, results=(*self.results, made))
        return replace(self, imports=(*self.imports, made))

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read what `write` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content.pop("schema") == SCHEMA, path
        results = tuple(map(Comparison.from_json, content.pop("results")))
        return cls(**{**content, "results": results, "imports": tuple(Imports(**each) for each in content["imports"])})

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        results = [result.to_json() for result in self.results]
        text = json.dumps({"schema": SCHEMA, **asdict(self), "results": results}, indent=2)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The seconds of one run: on the clock, and of all cores that it and its children used."""

    wall: float
    cores: float


def fastest(
    sides: Mapping[str, Callable[[], object]], *, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Side]:
    """Return the fastest of several rounds for each side, by `clock`, the rounds of all interleaved."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            started = clock()
            run()
            taken[name].append(clock() - started)
    return {name: Side(name=name, value=min(times)) for name, times in taken.items()}


def command(arguments: Sequence[object], **process: Any) -> Callable[[], object]:  # noqa: ANN401 - as subprocess has it
    """Return what runs a process that has to succeed; `process` goes to `subprocess.run`."""
    words = list(map(str, arguments))
    return lambda: subprocess.run(words, check=True, capture_output=True, **process)


def spend(run: Callable[[], object]) -> Spent:
    """Run something that starts processes, and return what it and they took."""
    before, started = _core_seconds(), time.perf_counter()
    run()
    return Spent(wall=time.perf_counter() - started, cores=_core_seconds() - before)


def _core_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def imports_of(name: str, arguments: Sequence[str], **process: Any) -> Imports:  # noqa: ANN401 - as subprocess has it
    """Return what a command of `python ARGUMENTS` imports, with Python's own start left out; tracing adds to it."""
    bare, traced = (_self_times(words, **process) for words in (["-c", "pass"], arguments))
    libraries: Counter[str] = Counter()
    for module in traced.keys() - bare.keys():
        library = module.partition(".")[0]
        libraries["standard library" if library in sys.stdlib_module_names else library] += traced[module]
    return Imports(command=name, seconds={library: used / 1e6 for library, used in libraries.most_common()})


def _self_times(arguments: Sequence[str], **process: Any) -> dict[str, int]:  # noqa: ANN401 - as subprocess has it
    """Return the microseconds that each module takes itself."""
    traced = [sys.executable, "-X", "importtime", *arguments]
    said = subprocess.run(traced, check=True, capture_output=True, text=True, **process).stderr
    lines = re.findall(r"^import time: +(\d+) \| +\d+ \| +(\S+)$", said, re.MULTILINE)
    return {module: int(own) for own, module in lines}


def machine() -> dict[str, Any]:
    """Return the processor, the cores that may be used, the memory in bytes and the GPUs."""
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return {
        "cpu": model[1] if model else platform.machine(),
        "cores": available_cores(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [gpu.name for gpu in visible_gpus(os.environ)],
    }


def versions() -> dict[str, str]:
    """Return the versions of what was measured, and of what it was measured with; what is not there is left out."""
    torch, nvcc = probe().torch, nvcc_version(CUDA_HOME / "bin/nvcc")
    told = {
        "archpatch": f"{__version__} {_commit()}".strip(),
        "python": platform.python_version(),
        "torch": torch.version if torch else "",
        "nvcc": str(nvcc) if nvcc else "",
    }
    return {name: version for name, version in told.items() if version}


def _commit() -> str:
    """Return the commit of the checkout, with `-dirty` where it was changed; empty in a copy without git."""
    if shutil.which("git") is None:
        return ""
    describe = ["git", "-C", str(PROJECT), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
