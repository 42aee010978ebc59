"""The variables that a build runs with: everything set that makes it compile what was asked, nothing that undoes it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from archpatch.arch.arch import DeviceCode
from archpatch.arch.gencode import ARCH_OPTIONS, CODE_OPTIONS, GENCODE_OPTIONS
from archpatch.builder.cmake import CUDAARCHS
from archpatch.builder.interpreter import Interpreter
from archpatch.builder.toolkit import Toolkit
from archpatch.builder.toolkit import environment as toolkit_environment
from archpatch.errors import UsageError
from archpatch.recipes.recipe import Recipe, spell_archs

__all__ = ["NVCC_FLAGS", "BuildVariables", "decisive_variables", "without_arch_flags"]

#: What a user can set that changes the bytes that compilers make; it goes into the fingerprint.
_DECISIVE = (
    *("CC", "CXX", "CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "LDSHARED", "CPATH", "C_INCLUDE_PATH"),
    *("CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LD_RUN_PATH", "COMPILER_PATH"),
    # The times in a wheel, and in what gcc is asked for by __DATE__.
    "SOURCE_DATE_EPOCH",
    *("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "NVCC_CCBIN", "PYTORCH_NVCC", "TORCH_DONT_CHECK_COMPILER_ABI"),
    *("CUDAFLAGS", "CUDAHOSTCXX", "CMAKE_BUILD_TYPE", "CMAKE_GENERATOR", "CMAKE_PREFIX_PATH", "CMAKE_TOOLCHAIN_FILE"),
)
#: What nvcc adds to each command, and CMake to each that it has for nvcc.
NVCC_FLAGS = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "CUDAFLAGS")
_ARCH_OPTIONS = (*GENCODE_OPTIONS, *ARCH_OPTIONS, *CODE_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildVariables:
    """What decides the variables of one build.

    `codes` is the device code that is kept, for the package's own arch variable; `arch_list` is the request in torch's
    grammar, for extensions that bring no pairs of their own, and `cmake_archs` in CMake's, for projects that name no
    archs; `local_version` goes into the package's variable; `nvcc_flags` come before all others.
    """

    toolkit: Toolkit
    interpreter: Interpreter
    recipe: Recipe
    jobs: int
    nvcc_flags: tuple[str, ...] = ()
    tools: tuple[Path, ...] = ()
    codes: tuple[DeviceCode, ...] = ()
    arch_list: str = ""
    cmake_archs: str = ""
    local_version: str | None = None

    def apply(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return `environ` as the build gets it."""
        variables = toolkit_environment(self.toolkit, environ, interpreter=self.interpreter, tools=self.tools)
        variables, _ = without_arch_flags(variables)
        if self.nvcc_flags:
            own = variables.get("NVCC_PREPEND_FLAGS", "")
            variables["NVCC_PREPEND_FLAGS"] = " ".join(filter(None, (shlex.join(self.nvcc_flags), own)))
        variables.pop(CUDAARCHS.name, None)
        if self.cmake_archs:
            variables[CUDAARCHS.name] = self.cmake_archs
        variables |= dict(self.recipe.environment)
        variables["MAX_JOBS"] = str(self.jobs)
        variables.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(self.jobs))
        # The default is what progress is read from, so a user's own must not get in the way.
        variables["NINJA_STATUS"] = "[%f/%t] "
        variables["PYTHONUNBUFFERED"] = "1"
        variables.pop("TORCH_CUDA_ARCH_LIST", None)
        if self.arch_list:
            variables["TORCH_CUDA_ARCH_LIST"] = self.arch_list
        if self.recipe.arch_variable is not None and self.codes:
            variables[self.recipe.arch_variable.name] = spell_archs(self.recipe.arch_variable, self.codes)
        if self.recipe.local_version is not None:
            variables.pop(self.recipe.local_version, None)
            if self.local_version:
                variables[self.recipe.local_version] = self.local_version
        return variables


def without_arch_flags(environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return `environ` with the arch flags taken out of nvcc's own variables, and which variables had any.

    nvcc adds `NVCC_APPEND_FLAGS` and `NVCC_PREPEND_FLAGS` to every command, and CMake adds `CUDAFLAGS`: an arch in them
    would be compiled beside those that were asked for. Raises `UsageError` for quotes that do not match.
    """
    cleaned, had = dict(environ), []
    for name in NVCC_FLAGS:
        words = _split(name, environ.get(name, ""))
        kept = list(_without_options(words))
        if kept != words:
            had.append(name)
            cleaned[name] = shlex.join(kept)
    return cleaned, tuple(had)


def _split(name: str, flags: str) -> list[str]:
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise UsageError(f"{name}={flags!r} cannot be read: {error}", remedy="Correct it, or unset it.") from None


def _without_options(words: Iterable[str]) -> Iterable[str]:
    arguments = iter(words)
    for word in arguments:
        option, equals, _ = word.partition("=")
        if option not in _ARCH_OPTIONS:
            yield word
        elif not equals:
            next(arguments, None)


def decisive_variables(environ: Mapping[str, str], recipe: Recipe) -> dict[str, str]:
    """Return the variables of `environ` that decide the bytes of a wheel, by name; unset and empty are the same."""
    names = sorted({*_DECISIVE, *(name for name, _ in recipe.environment)})
    return {name: environ[name] for name in names if environ.get(name)}
