"""The workbench: interpreter, toolkit and machine, looked at once, without importing torch."""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from archpatch.builder.environment import decisive_variables
from archpatch.builder.host import Host, inspect_host
from archpatch.builder.interpreter import Interpreter, TorchFacts, probe
from archpatch.builder.toolchain import Finding, Needs, check, require
from archpatch.builder.toolkit import Toolkit, resolve_toolkit
from archpatch.errors import ToolchainError
from archpatch.recipes.recipe import Recipe
from archpatch.storage.atomic import sha256_of

__all__ = ["Bench", "look"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a build is made with; `toolkit` may be the error that looking for one ended in."""

    interpreter: Interpreter
    toolkit_or_error: Toolkit | ToolchainError
    host: Host
    environ: Mapping[str, str]

    @property
    def toolkit(self) -> Toolkit:
        """The CUDA toolkit. Raises `ToolchainError` where there is none."""
        if isinstance(self.toolkit_or_error, ToolchainError):
            raise self.toolkit_or_error
        return self.toolkit_or_error

    @property
    def any_toolkit(self) -> Toolkit | None:
        """The CUDA toolkit, None where there is none."""
        return None if isinstance(self.toolkit_or_error, ToolchainError) else self.toolkit_or_error

    @property
    def torch(self) -> TorchFacts:
        """The installed torch. Raises `ToolchainError` where there is none, or one without CUDA."""
        torch = self.interpreter.torch
        if torch is None or torch.cuda is None:
            require(tuple(finding for finding in self.findings(Needs()) if finding.what == "torch"))
        assert torch is not None  # noqa: S101 - require has raised
        return torch

    @property
    def nvcc_release(self) -> str | None:
        """The release of nvcc, `13.0`; None without a toolkit."""
        return None if self.any_toolkit is None else self.any_toolkit.release

    def with_torch(self, torch: TorchFacts) -> Bench:
        """Return the bench as it will be once `torch` is installed."""
        return replace(self, interpreter=replace(self.interpreter, torch=torch))

    def findings(self, needs: Needs) -> tuple[Finding, ...]:
        """Return what is here and what is missing for a build."""
        return check(self.interpreter, self.toolkit_or_error, self.host, needs)

    def inputs(self, recipe: Recipe) -> dict[str, str]:
        """Return what of this bench decides the bytes of a wheel, by name; a toolkit that is not there is `none`."""
        torch, compiler = self.torch, self.host.compiler
        toolkit = self.any_toolkit
        variables = decisive_variables({**self.environ, **dict(recipe.environment)}, recipe)
        return {
            "torch": torch.version,
            "cuda": str(torch.cuda),
            "cxx11-abi": str(torch.cxx11_abi),
            "nvcc": str(toolkit.version) if toolkit else "none",
            "nvcc-profile": _digest(toolkit.root / "bin" / "nvcc.profile") if toolkit else "none",
            "host-compiler": f"{compiler.kind} {compiler.version}" if compiler else "none",
            "glibc": "".join(platform.libc_ver()),
            "python": self.interpreter.abi_tag,
            "platform": self.interpreter.platform_tag,
            **{f"environment.{name}": value for name, value in variables.items()},
            **{f"program.{name}": _digest(Path(found)) for name, found in self._programs()},
        }

    def _programs(self) -> Iterator[tuple[str, str]]:
        """Yield the programs that a user put in the place of nvcc and of its host compiler."""
        for name in ("PYTORCH_NVCC", "CC", "NVCC_CCBIN"):
            words = shlex.split(self.environ.get(name, ""))
            found = shutil.which(words[-1], path=self.environ.get("PATH", "")) if words else None
            if found is not None:
                yield name, found

    def versions(self, requirements: Iterable[str]) -> dict[str, str]:
        """Return the installed versions of build requirements, and of setuptools, which makes every wheel."""
        names = {canonicalize_name(re.split(r"[^A-Za-z0-9._-]", text.strip(), maxsplit=1)[0]) for text in requirements}
        found = {name: self.interpreter.version_of(name) for name in {*names, "setuptools"} - {"torch"}}
        return {f"build-requirement.{name}": version for name, version in found.items() if version}

    def toolchain(self) -> dict[str, str]:
        """Return the tools with their places, for a record."""
        return {
            "python": f"{self.interpreter.version} ({self.interpreter.executable})",
            "torch": f"{self.torch.version} ({self.torch.folder})",
            "nvcc": f"{self.toolkit.version} ({self.toolkit.root}, {self.toolkit.origin.value})",
            "host-compiler": str(self.host.compiler),
            "ninja": str(self.host.ninja),
            "cores": str(self.host.cores),
        }


def _digest(file: Path) -> str:
    return sha256_of(file)[:16] if file.is_file() else "none"


def look(python: Path | None, toolkit: str, environ: Mapping[str, str], *, may_fetch: bool) -> Bench:
    """Look at the interpreter `python` (None: this one), its toolkit and this machine; takes some 50 ms.

    A toolkit that has to be fetched is fetched now, if `may_fetch` lets it.
    """
    interpreter = probe(python)
    found: Toolkit | ToolchainError
    try:
        found = resolve_toolkit(toolkit, interpreter, environ, may_fetch=may_fetch)
    except ToolchainError as error:
        found = error
    host = inspect_host(interpreter, environ, folder=Path(environ.get("TMPDIR") or tempfile.gettempdir()))
    return Bench(interpreter=interpreter, toolkit_or_error=found, host=host, environ=dict(environ))
