"""The nets for what CMake makes: the archs come through a variable, so what it is told is checked, and what it made."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from archpatch.arch.arch import ArchRequest, DeviceCode
from archpatch.arch.selection import Policy
from archpatch.builder.capture import Capture, CapturedExtension
from archpatch.builder.cmake import CUDAARCHS, TORCH_LIST, ByVariable, Told
from archpatch.builder.nets import check_known_bad, listed
from archpatch.errors import SetupRefused
from archpatch.recipes.recipe import ArchForm, ArchVariable
from archpatch.rewrite.signs import own_variables

__all__ = ["Wanted", "check_cmake"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The device code that CMake shall compile: for GPU types (`is_for_gpus`) any suffix of their archs will do.

    `package` and `variable` are those of the recipe; `environ` are the variables that the build runs with; `in_text`
    are the arch variables that the text of `setup.py` reads somewhere.
    """

    codes: frozenset[DeviceCode]
    is_for_gpus: bool
    package: str
    variable: ArchVariable | None
    environ: Mapping[str, str]
    in_text: tuple[str, ...] = ()

    def fits(self, told: Told) -> bool:
        """Whether what CMake would be told is what is wanted, as far as the definition shows it."""
        return self._comparable(told.codes) == self._comparable(
            code for code in self.codes if told.is_exact or not code.ptx
        )

    def _comparable(self, codes: Iterable[DeviceCode]) -> frozenset[DeviceCode]:
        return frozenset(DeviceCode(code.arch.base, ptx=code.ptx) if self.is_for_gpus else code for code in codes)


def check_cmake(seen: Capture, wanted: Wanted, policy: Policy) -> tuple[ByVariable, ...]:
    """Check what CMake would be told about archs, and return what it must make.

    Raises `SetupRefused`, with the table to write, where the project reads a variable that nothing sets, and where
    archs are told that nobody asked for; `KnownBadArch` for one that is known bad.
    """
    variables = _Variables(seen, wanted)
    if variables.unset and not seen.cuda_extensions and not seen.cmake_extensions:
        raise SetupRefused(
            f"setup.py builds no CUDA extension here; it reads {', '.join(variables.unset)}, which nothing sets",
            remedy=variables.table(variables.unset[0], "number"),
        )
    made = tuple(_check(extension, wanted, variables) for extension in seen.cmake_extensions)
    for each in made:
        check_known_bad(each.name, each.codes, policy)
    return made


def _check(extension: CapturedExtension, wanted: Wanted, variables: _Variables) -> ByVariable:
    known = [told for command in extension.cmake if (told := command.told) is not None]
    wrong = next((told for told in known if not wanted.fits(told)), None)
    if variables.unset and (wrong or not known):
        instead = f" (CMake would be told {wrong.spelled})" if wrong else ""
        raise SetupRefused(
            f"extension {extension.name}: the project reads its archs from {', '.join(variables.unset)}, which "
            f"nothing sets{instead}",
            remedy=variables.table(variables.unset[0], "cmake"),
        )
    if wrong:
        codes = f", which is {listed(wrong.codes)}," if wrong.codes else ""
        raise SetupRefused(
            f"extension {extension.name}: CMake would be told {wrong.spelled}{codes} instead of {listed(wanted.codes)}",
            remedy=variables.remedy(wrong),
        )
    exact = [told.codes for told in known if told.is_exact]
    return ByVariable(
        name=extension.name,
        codes=frozenset[DeviceCode]().union(*exact) if exact else wanted.codes,
        setting=variables.setting,
        line=extension.cmake[0].line,
    )


@dataclass(frozen=True, slots=True)
class _Variables:
    """The variables that a project reads for archs, other than CMake's own."""

    seen: Capture
    wanted: Wanted

    @property
    def own(self) -> tuple[str, ...]:
        # What counts as an arch variable's name is settled where setup.py is read.
        names = (name for name in self.seen.environment if own_variables(ast.parse(f"os.environ[{name!r}]")))
        return tuple(name for name in names if name != CUDAARCHS.name)

    @property
    def of_recipe(self) -> str | None:
        """The recipe's variable, where the project reads it, or CMake does."""
        variable = self.wanted.variable
        is_read = variable is not None and variable.name in (*self.seen.environment, CUDAARCHS.name)
        return variable.name if variable is not None and is_read else None

    @property
    def in_use(self) -> tuple[str, ...]:
        """The project's own ones that are set."""
        own = self.own if self.of_recipe is None else (self.of_recipe,)
        return tuple(name for name in own if self.wanted.environ.get(name))

    @property
    def unset(self) -> Sequence[str]:
        """The project's own ones, where none of them is set."""
        return () if self.in_use or self.of_recipe else self.own

    @property
    def setting(self) -> str:
        """The variable that decides, with its value; without one of the project's, torch's goes before CMake's."""
        torchs = (TORCH_LIST,) if TORCH_LIST in self.seen.environment else ()
        name = (*self.in_use, *torchs, CUDAARCHS.name)[0]
        return f"{name}={self.wanted.environ.get(name, '')}"

    def table(self, name: str, form: ArchForm) -> str:
        """Return the recipe to write for the variable `name`."""
        package = f'"{self.wanted.package}"' if "." in self.wanted.package else self.wanted.package
        return (
            "Tell archpatch in pyproject.toml. form is how setup.py wants an arch: number (90a), dotted (9.0a), "
            "capability (9.0 for 9.0a too), or cmake (90a-real) where it hands the list to CMake as it is.\n"
            f"[tool.archpatch.recipes.{package}]\n"
            f'arch-variable = {{ name = "{name}", form = "{form}", separator = ";" }}'
        )

    def remedy(self, wrong: Told) -> str:
        """Return what to do about archs that nobody asked for."""
        if self.of_recipe:
            asked = _as_request(wrong.codes)
            return (
                f"That is what the package makes of {self.setting}. Where it hands the list to CMake as it is, "
                f'form = "cmake" in the recipe is exact{f"; else ask for {asked}" if asked else ""}.'
            )
        names = (*self.in_use, *self.wanted.in_text, "MY_ARCHS")
        why = "setup.py names them itself: have it read a variable instead."
        if self.in_use:
            why = f"{self.setting} decides about them: correct it, or leave it to archpatch."
        return f"{why}\n{self.table(names[0], 'cmake')}"


def _as_request(codes: Iterable[DeviceCode]) -> str | None:
    """Return the option that asks for exactly this device code, where there is one."""
    cubins, ptx = ({code.arch for code in codes if code.ptx is wanted} for wanted in (False, True))
    if not cubins or ptx - cubins:
        return None
    return f"--arch '{ArchRequest(archs=tuple(sorted(cubins)), ptx=tuple(sorted(ptx)))}'"
