"""The interpreter that holds torch, and builds: what it is and what is installed in it. torch is never imported."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from archpatch.builder import interpreter_probe
from archpatch.builder.questions import Ask, ask
from archpatch.errors import MissingFile, ToolchainError, UsageError

__all__ = ["Interpreter", "TorchFacts", "find_python", "missing_requirements", "named_torch", "probe"]


_NAMED_TORCH: Final = re.compile(r"(?P<major>\d+)\.(?P<minor>\d+)[^+\s]*\+cu(?P<cuda>\d{2,3})")
_NEW_ABI: Final = (2, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """An installed torch, read from its files.

    `version` is the full one (`2.14.1+cu130`), `cuda` the release that it was built with (`13.0`; None for a CPU or
    ROCm build). `cxx11_abi` is None where libc10.so is missing, `cxx_standard` (17, 20) where the headers ask for none.
    """

    folder: Path
    version: str
    cuda: str | None
    cxx11_abi: bool | None
    cxx_standard: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python interpreter and what its `sys.path` reaches.

    `version` is `3.11.4`, `abi_tag` `cp311`, `platform_tag` `linux_x86_64` (a local build is no manylinux wheel),
    `machine` what `platform.machine()` says. `packages` are (normalised name, version), `scripts` the folders of its
    tools, `library_headers` the include folders of NVIDIA's library wheels.
    """

    executable: Path
    version: str
    abi_tag: str
    platform_tag: str
    machine: str
    torch: TorchFacts | None
    packages: tuple[tuple[str, str], ...]
    scripts: tuple[Path, ...] = ()
    library_headers: tuple[Path, ...] = ()

    def version_of(self, name: str) -> str | None:
        """Return the version of an installed distribution, or None; spelling as in PEP 503."""
        return dict(self.packages).get(canonicalize_name(name))


def find_python(text: str | None) -> Path | None:
    """Return the interpreter that `text` names: a path, or a program on PATH; None stays None.

    Raises `MissingFile`.
    """
    if text is None:
        return None
    found = shutil.which(text)
    if found is None:
        name = f"{text.rstrip('/')}/bin/python" if Path(text).is_dir() else ".venv/bin/python"
        raise MissingFile(f"--python {text}: there is no such program", remedy=f"Name an interpreter: {name}.")
    # Not resolved: a virtual environment's python is a link, and what it is called decides what it sees.
    return Path(found).absolute()


def named_torch(text: str) -> TorchFacts:
    """Return what is known of a torch that is not installed: `2.14.1+cu130`, as its own wheels are called.

    They have had the new C++ ABI since 2.7 (PyTorch 2.6 release blog). Raises `UsageError` where none is told.
    """
    match = _NAMED_TORCH.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--torch {text!r} does not tell the version and the CUDA release",
            remedy="Write it as torch.__version__ has it: 2.14.1+cu130.",
        )
    return TorchFacts(
        folder=Path("torch"),
        version=text,
        cuda=f"{match['cuda'][:-1]}.{match['cuda'][-1]}",
        cxx11_abi=(int(match["major"]), int(match["minor"])) >= _NEW_ABI,
        cxx_standard=None,
    )


def probe(python: Path | None = None, *, ask: Ask = ask) -> Interpreter:
    """Look at the interpreter `python`, or at this one; takes some 20 ms, and 40 ms more for another.

    Raises `ToolchainError` where `python` is no interpreter that works.
    """
    if python is None:
        return _interpreter(interpreter_probe.facts())
    # Neither -I nor -S: PYTHONPATH and site decide which torch the build will see.
    answer = ask([str(python), interpreter_probe.__file__])
    if answer.status != 0:
        reason = answer.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        raise ToolchainError(
            f"{python} does not work as a Python interpreter: {reason[0]}",
            remedy="Name with --python the interpreter of the environment that holds torch, e.g. .venv/bin/python.",
        )
    try:
        # The last line: a sitecustomize may print before.
        return _interpreter(json.loads(answer.stdout.splitlines()[-1]))
    except (ValueError, IndexError, TypeError):
        raise ToolchainError(f"{python} is no Python interpreter", remedy="Name one: .venv/bin/python.") from None


def missing_requirements(requirements: Iterable[str], interpreter: Interpreter) -> tuple[str, ...]:
    """Return those of `requirements` (PEP 508) that `interpreter` does not meet, as they were written.

    Markers are evaluated for `interpreter`. Extras are not followed, and of a direct reference (`name @ url`) only the
    name is looked at. What is no requirement at all counts as missing.
    """
    return tuple(text for text in requirements if not _is_met(text, interpreter))


def _is_met(text: str, interpreter: Interpreter) -> bool:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return False
    environment = {
        "python_version": ".".join(interpreter.version.split(".")[:2]),
        "python_full_version": interpreter.version,
        "platform_machine": interpreter.machine,
    }
    if requirement.marker is not None and not requirement.marker.evaluate(environment):
        return True
    version = interpreter.version_of(requirement.name)
    if version is None or not requirement.specifier:
        return version is not None
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _interpreter(facts: dict[str, Any]) -> Interpreter:
    torch = facts["torch"]
    return Interpreter(
        executable=Path(facts["executable"]),
        version=facts["version"],
        abi_tag=facts["abi_tag"],
        platform_tag=facts["platform_tag"],
        machine=facts["machine"],
        torch=torch and TorchFacts(**{**torch, "folder": Path(torch["folder"])}),
        packages=tuple(sorted(facts["packages"].items())),
        scripts=tuple(map(Path, facts["scripts"])),
        library_headers=tuple(map(Path, facts["library_headers"])),
    )
