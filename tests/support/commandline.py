"""What integration tests share: the command line as a process, NVIDIA's own reader of device code, small sdists."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archpatch.storage.listing import below

PROJECT = Path(__file__).parents[2]
FIXTURES = PROJECT / "fixtures" / "cuda"
CUDA_HOME = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))


@dataclass(frozen=True)
class Answer:
    """What the command line left."""

    status: int
    stdout: str
    stderr: str

    @property
    def wheel(self) -> Path:
        """The one wheel that was printed."""
        assert self.status == 0, self.stderr
        return Path(self.stdout.strip())

    @property
    def record(self) -> dict[str, Any]:
        """The record of that wheel."""
        record: dict[str, Any] = json.loads(Path(f"{self.wheel}.json").read_text(encoding="utf-8"))
        return record

    @property
    def json(self) -> dict[str, Any]:
        """The object that was printed."""
        printed: dict[str, Any] = json.loads(self.stdout)
        return printed


@dataclass(frozen=True)
class CommandLine:
    """The command line, with a folder, a wheelhouse and a temporary folder of its own."""

    folder: Path

    @property
    def wheelhouse(self) -> Path:
        """Where it files wheels."""
        return self.folder / "wheelhouse"

    def environment(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables that it runs with."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("ARCHPATCH_", "TORCH_CUDA"))}
        return {**ours, "TMPDIR": str(temporary), **(environ or {})}

    def command(self, *arguments: object) -> list[str]:
        """Return the command for a process of one's own."""
        return [sys.executable, "-m", "archpatch", *map(str, arguments)]

    def __call__(self, *arguments: object, environ: Mapping[str, str] | None = None) -> Answer:
        """Run it to its end."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(environ),
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    def inside(self, *arguments: str, watched: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
        """Run it where no socket can be opened; return what `--json` prints, and which `watched` were imported."""
        code = (
            "import sys, socket; socket.socket.connect = None; from archpatch.cli.main import run;"
            f"status = run({[*arguments, '--json']!r});"
            f"print([name for name in {watched!r} if name in sys.modules], file=sys.stderr); sys.exit(status)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout), ast.literal_eval(done.stderr.strip().splitlines()[-1])

    def published(self) -> list[str]:
        """Return what a reader can see in the wheelhouse."""
        seen = (path for path in below(self.wheelhouse) if ".archpatch" not in path.parts)
        return sorted(path.name for path in seen if ".whl" in path.name)

    def left_behind(self) -> list[str]:
        """Return what lies in the temporary folder."""
        return sorted(path.name for path in (self.folder / "tmp").iterdir())

    def compilers(self) -> list[str]:
        """Return the commands of running compilers that work in the temporary folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if str(self.folder / "tmp") in command and re.search(r"nvcc|cicc|ptxas|cc1plus|ninja", command):
                        found.append(command)
        return found


def output_of(command: Sequence[object], **options: object) -> str:
    """Run a tool that has to succeed and return what it printed."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def dumped(cuobjdump: Path, library: Path) -> set[str]:
    """Return the device code that cuobjdump lists in a library, spelled as ours (it knows no `f` suffix)."""
    listings = {
        kind: subprocess.run(
            [str(cuobjdump), f"--list-{kind}", str(library)], capture_output=True, text=True, check=False
        ).stdout
        for kind in ("elf", "ptx")
    }
    cubins = {f"sm_{arch}" for arch in re.findall(r"\.sm_(\w+)\.cubin", listings["elf"])}
    return cubins | {f"compute_{arch}" for arch in re.findall(r"\.sm_(\w+)\.ptx", listings["ptx"])}


def library(wheel: Path, into: Path) -> Path:
    """Unpack the one library of a wheel into a folder."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        return Path(archive.extract(name, into))


def make_sdist(project: Path, into: Path, *, name: str = "archpatch_mini", sources: bool = True) -> None:
    """Write an sdist of the miniature project under a `name`; without its `sources`, as some releases are."""
    files = [path for path in sorted(project.rglob("*")) if path.is_file() and (sources or path.parent.name != "csrc")]
    contents = {str(path.relative_to(project)): path.read_bytes() for path in files}
    contents["pyproject.toml"] = contents["pyproject.toml"].replace(b'"archpatch_mini"', f'"{name}"'.encode())
    contents["PKG-INFO"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n".encode()
    into.mkdir(exist_ok=True)
    with tarfile.open(into / f"{name}-0.1.0.tar.gz", "w:gz") as archive:
        for path, content in contents.items():
            member = tarfile.TarInfo(f"{name}-0.1.0/{path}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def only_index(folder: Path) -> dict[str, str]:
    """Return the variables that make a folder the only index."""
    return {"PIP_FIND_LINKS": str(folder), "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
