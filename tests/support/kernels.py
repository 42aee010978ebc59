"""Caches of compilers as they lie on disk, written by hand: what is in the files does not matter, their form does."""

from __future__ import annotations

import errno
import json
import os
import pickle
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from archpatch.kernel_cache.compilers import COMPILERS, Compiler
from archpatch.kernel_cache.job_key import Job, job_key
from archpatch.kernel_cache.lane import Lane
from archpatch.kernel_cache.tree import Tree
from archpatch.storage.key import Key

LANE = Lane(
    gpu="h200", arch="sm90", torch="2.14.1+cu130", cuda="13.0", triton="3.8.0", python="cp311", machine="x86_64"
)
LIMIT = 1 << 26
STAGES = ("source", "ttir", "ttgir", "llir", "ptx", "cubin", "json")


def key(week: int = 48, name: str = "unit", lane: Lane = LANE) -> Key:
    """Return a job's key in a week of 2026."""
    return job_key(Job(name=name), lane, today=date.fromisocalendar(2026, week, 1))


def compiler(name: str) -> Compiler:
    """Return a compiler by its name."""
    (found,) = (each for each in COMPILERS if each.name == name)
    return found


def folder(root: Path, name: str, lane: Lane = LANE) -> Path:
    """Return a compiler's folder in a root."""
    return Tree.of(root, lane).folder(compiler(name))


def write(path: Path, content: bytes | str = b"x") -> Path:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def elf(size: int = 200) -> bytes:
    """Return an ELF header whose table of sections ends where the file does, and the bytes up to there."""
    head = b"\x7fELF\x02\x01\x01".ljust(40, b"\0") + (size - 64).to_bytes(8, "little") + bytes(10)
    return (head + b"\x40\0\x01\0\0\0").ljust(size, b"\0")


def triton_kernel(root: Path, name: str = "add", *, digest: str = "", lane: Lane = LANE, size: int = 200) -> Path:
    """Write what Triton keeps of one kernel, with the paths that it writes, and return the folder."""
    place = folder(root, "triton", lane) / (digest or f"{name.upper():A<52}")
    for stage in STAGES:
        content = json.dumps({"name": name}).encode() if stage == "json" else elf(size) if stage == "cubin" else b"ir"
        write(place / f"{name}.{stage}", content)
    paths = {f"{name}.{stage}": str(place / f"{name}.{stage}") for stage in STAGES}
    write(place / f"__grp__{name}.json", json.dumps({"child_paths": paths}))
    return place


def inductor_graph(root: Path, name: str = "fgraph") -> Path:
    """Write what Inductor keeps of one graph, with the paths that it writes, and the table of measured times."""
    place = folder(root, "inductor")
    write(place / "cache" / "system", json.dumps({"cache": {"mm": {name: 1.5}}}))
    source = write(place / "ab" / f"c{name}.py", "def call(): ...\n")
    graph = {"filename": str(source), "best": str(place / "ab" / f"{name}.best_config")}
    return write(place / "fxgraph" / "ab" / name / "content", pickle.dumps(graph))


def graphs(root: Path) -> list[Path]:
    """Return the files of Inductor's graphs in a root."""
    return [path for path in (folder(root, "inductor") / "fxgraph").rglob("*") if path.is_file()]


def named_by(graph: bytes) -> Any:  # noqa: ANN401 - what a pickle holds
    """Return what a graph holds that a test wrote."""
    return pickle.loads(graph)  # noqa: S301 - our own


def listing(root: Path) -> dict[str, bytes]:
    """Return every file below a folder with its content, but for what archpatch keeps there itself."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and ".archpatch" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def age(path: Path, seconds: float) -> None:
    """Give a file, or all files of a folder, an earlier time."""
    for each in [path, *path.rglob("*")]:
        stamp = each.stat().st_mtime - seconds
        os.utime(each, (stamp, stamp))


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make files of these names, and all else, another user's, and let nobody read them, root neither."""
    opened = os.open

    def guarded(path: Path, *arguments: Any) -> int:  # noqa: ANN401 - what os.open takes
        if Path(path).name in names:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *arguments)

    monkeypatch.setattr(os, "geteuid", lambda: -1)
    monkeypatch.setattr(os, "open", guarded)


def use(path: Path) -> None:
    """Read all files of a folder, as a hit does."""
    for each in path.rglob("*"):
        if each.is_file():
            each.read_bytes()
