"""What is known of each package: one TOML file each beside this module, and what a user adds or overrides.

The keys of a recipe, all optional:

- `environment`: variables forced onto the build, exact values;
- `local-version`: the variable that sets the wheel's local version;
- `arch-variable`: `name`, `form` (`number`: 90a, `dotted`: 9.0a, `capability`: 9.0 for 9.0a too, `cmake`: 90a-real, and
  90-virtual for PTX) and `separator` of the package's own arch list;
- `git`: `url`, and `tag` with `{version}` in it, for releases whose sdist holds no CUDA source;
- `build-requires`: what the build needs and not every release declares;
- `compile-seconds`: CPU seconds of nvcc by the path of a file, for one arch, so that a first build is divided well;
- `compile-gib`: GiB of memory that nvcc takes for the largest file and one arch, where that is more than 4;
- `known-bad`: an array of `arch`, `toolkit` (a specifier for nvcc's release), `report` (an address) and `reason`;
- `smoke-test`: Python source that runs the compiled op on a GPU against plain torch and raises where they differ.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from archpatch.arch.arch import Arch, DeviceCode
from archpatch.arch.selection import KnownBad
from archpatch.errors import InvalidArchList
from archpatch.recipes.table import Table, read_toml

__all__ = [
    "ArchForm",
    "ArchVariable",
    "BadArch",
    "GitLocation",
    "Recipe",
    "RecipeOverride",
    "digest",
    "find_recipe",
    "find_recipe_by_repository",
    "known_bad_for",
    "load_recipes",
    "read_overrides",
    "spell_archs",
]

ArchForm = Literal["number", "dotted", "capability", "cmake"]

_KEYS: Final = (
    "environment",
    "local-version",
    "arch-variable",
    "git",
    "build-requires",
    "compile-gib",
    "compile-seconds",
    "known-bad",
    "smoke-test",
)
_FORMS: Final[tuple[ArchForm, ...]] = ("number", "dotted", "capability", "cmake")
_SPELLINGS: Final[Mapping[ArchForm, Callable[[Arch], str]]] = {
    "number": lambda arch: arch.number,
    "dotted": str,
    "capability": lambda arch: str(arch.base),
}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION_FIELD: Final = "{version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchVariable:
    """The environment variable that a package reads its own arch list from, and how it spells one."""

    name: str
    form: ArchForm
    separator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GitLocation:
    """The repository of a package; `tag` holds `{version}`."""

    url: str
    tag: str

    def __str__(self) -> str:
        return f"{self.url}@{self.tag}"

    def tag_for(self, version: str) -> str:
        """Return the tag of the release `version`."""
        return self.tag.replace(_VERSION_FIELD, version)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadArch:
    """An arch that some nvcc releases miscompile; `report` is the address of the evidence."""

    arch: Arch
    toolkit: SpecifierSet
    report: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is known of one package; `name` is spelled as the package spells it."""

    name: str
    environment: tuple[tuple[str, str], ...] = ()
    local_version: str | None = None
    arch_variable: ArchVariable | None = None
    git: GitLocation | None = None
    build_requires: tuple[str, ...] = ()
    compile_gib: int | None = None
    compile_seconds: tuple[tuple[str, int], ...] = ()
    known_bad: tuple[BadArch, ...] = ()
    smoke_test: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeOverride:
    """A user's table for the package `name`: merged over the built-in recipe, or a recipe of its own."""

    name: str
    table: Table


def load_recipes(overrides: Iterable[RecipeOverride] = ()) -> Mapping[NormalizedName, Recipe]:
    """Return every recipe by normalised name (PEP 503), the built-in ones with `overrides` merged over them.

    A table within a recipe is merged per key (a forced variable more keeps the others); anything else replaces what
    was there. Raises `ConfigError`.
    """
    recipes = dict(_built_in())
    for override in overrides:
        key = canonicalize_name(override.name)
        base = _built_in_tables().get(key)
        name = override.name if base is None else base.file.stem
        data = override.table.data if base is None else _merge(base.data, override.table.data)
        # Built-in recipes are valid, so whatever is wrong with the merged table is wrong in the user's file.
        recipes[key] = _parse(name, Table(file=override.table.file, setting=override.table.setting, data=data))
    return recipes


def find_recipe(name: str, overrides: Iterable[RecipeOverride] = ()) -> Recipe:
    """Return the recipe of the package `name`, in any spelling; an empty one where nothing is known."""
    return load_recipes(overrides).get(canonicalize_name(name), Recipe(name=name))


def find_recipe_by_repository(url: str, overrides: Iterable[RecipeOverride] = ()) -> Recipe | None:
    """Return the recipe whose repository is at `url`: a repository is often called otherwise than its package."""
    wanted = _repository(url)
    recipes = load_recipes(overrides).values()
    return next((recipe for recipe in recipes if recipe.git and _repository(recipe.git.url) == wanted), None)


def _repository(url: str) -> str:
    """Return the address without what differs between ways to reach it: scheme, user, `.git`."""
    return re.sub(r"^(?:[a-z+]+://)?(?:[^@/]*@)?", "", url.lower()).replace(":", "/").rstrip("/").removesuffix(".git")


def read_overrides(tables: Table) -> tuple[RecipeOverride, ...]:
    """Read a user's `recipes` table: per package a table, or the path of a TOML file that holds the same keys.

    A relative path starts at the folder of the file that names it. Raises `ConfigError` and `MissingFile`.
    """
    overrides: dict[NormalizedName, RecipeOverride] = {}
    for name, value in tables.data.items():
        if not _NAME.fullmatch(name):
            raise tables.error(name, "is no package name", "Write the name as the package index does.")
        key = canonicalize_name(name)
        if key in overrides:
            raise tables.error(name, f"is the same package as {overrides[key].name}", "Keep one of them.")
        overrides[key] = RecipeOverride(name=name, table=_override_table(tables, name, value))
    return tuple(overrides.values())


def spell_archs(variable: ArchVariable, codes: Iterable[DeviceCode]) -> str:
    """Return the archs of `codes`, each once and sorted, as the package reads them: `80;90` or `9.0a 12.0f`.

    CMake's own form alone can ask for PTX, or for none: there a number without `-real` stands for both.
    """
    ordered = sorted(set(codes), key=lambda code: (code.ptx, code.arch))
    if variable.form == "cmake":
        words = [f"{code.arch.number}-{'virtual' if code.ptx else 'real'}" for code in ordered]
    else:
        words = [_SPELLINGS[variable.form](code.arch) for code in ordered if not code.ptx]
    return variable.separator.join(dict.fromkeys(words))


def known_bad_for(recipe: Recipe, nvcc_release: str | None) -> tuple[KnownBad, ...]:
    """Return the archs that nvcc `nvcc_release` (`13.0`) is known to miscompile for this package.

    None returns all of them: `patch` may run where no nvcc is, for a build elsewhere, and a miscompiled kernel is
    worse than one arch less.
    """
    release = None if nvcc_release is None else Version(nvcc_release)
    return tuple(
        KnownBad(arch=bad.arch, reason=f"{bad.reason} (nvcc {bad.toolkit}; {bad.report})")
        for bad in recipe.known_bad
        if release is None or bad.toolkit.contains(release, prereleases=True)
    )


def digest(recipe: Recipe) -> str:
    """Return a sha256 (hex) over what of a recipe decides the bytes of a wheel, and which archs are selected.

    Left out are the smoke test, the prose of known-bad archs, the repository, the build requirements and what files
    cost: they decide whether a build succeeds, is trusted and is fast, and the source that was built has a digest of
    its own. So is the name: two spellings of one package are the same recipe.
    """
    variable = recipe.arch_variable
    decisive = {
        "environment": sorted(recipe.environment),
        "local_version": recipe.local_version,
        "arch_variable": None if variable is None else [variable.name, variable.form, variable.separator],
        "known_bad": sorted([str(bad.arch), *sorted(map(str, bad.toolkit))] for bad in recipe.known_bad),
    }
    canonical = json.dumps(decisive, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


@lru_cache(maxsize=1)
def _built_in() -> Mapping[NormalizedName, Recipe]:
    return {name: _parse(table.file.stem, table) for name, table in _built_in_tables().items()}


@lru_cache(maxsize=1)
def _built_in_tables() -> Mapping[NormalizedName, Table]:
    """Return the tables of the files beside this module, by normalised name; the file's name is the package's."""
    paths = sorted(Path(__file__).parent.glob("*.toml"))
    return {canonicalize_name(path.stem): Table(file=path, setting="", data=read_toml(path)) for path in paths}


def _override_table(tables: Table, name: str, value: object) -> Table:
    if isinstance(value, str):
        path = tables.file.parent / Path(value).expanduser()
        return Table(file=path, setting="", data=read_toml(path))
    return tables.required(name, tables.table(name))


def _merge(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _parse(name: str, table: Table) -> Recipe:
    table.check_keys(_KEYS)
    return Recipe(
        name=name,
        environment=_parse_environment(table),
        local_version=_parse_variable(table, "local-version"),
        arch_variable=_parse_arch_variable(table),
        git=_parse_git(table),
        build_requires=_parse_build_requires(table),
        compile_gib=table.positive("compile-gib"),
        compile_seconds=_parse_compile_seconds(table),
        known_bad=tuple(map(_parse_bad_arch, table.tables("known-bad"))),
        smoke_test=_parse_smoke_test(table),
    )


def _parse_variable(table: Table, key: str) -> str | None:
    name = table.text(key)
    if name is not None and not _VARIABLE.fullmatch(name):
        raise table.error(key, f"{name!r} is no name of an environment variable", "Use letters, digits and _ alone.")
    return name


def _parse_environment(table: Table) -> tuple[tuple[str, str], ...]:
    variables = table.table("environment")
    if variables is None:
        return ()
    for name in variables.data:
        if not _VARIABLE.fullmatch(name):
            raise variables.error(name, "is no name of an environment variable", "Use letters, digits and _ alone.")
    return variables.strings()


def _parse_arch_variable(table: Table) -> ArchVariable | None:
    variable = table.table("arch-variable")
    if variable is None:
        return None
    variable.check_keys(("name", "form", "separator"))
    return ArchVariable(
        name=variable.required("name", _parse_variable(variable, "name")),
        form=variable.required("form", variable.choice("form", _FORMS)),
        separator=variable.required_text("separator"),
    )


def _parse_git(table: Table) -> GitLocation | None:
    git = table.table("git")
    if git is None:
        return None
    git.check_keys(("url", "tag"))
    tag = git.required_text("tag")
    if _VERSION_FIELD not in tag:
        raise git.error("tag", f"{tag!r} does not hold {_VERSION_FIELD}", f'Write for example "v{_VERSION_FIELD}".')
    return GitLocation(url=git.required_text("url"), tag=tag)


def _parse_build_requires(table: Table) -> tuple[str, ...]:
    requirements = table.texts("build-requires") or ()
    for requirement in requirements:
        if not _is_requirement(requirement):
            problem = f"{requirement!r} is no requirement"
            raise table.error("build-requires", problem, 'Write for example "psutil" or "ninja>=1.11".')
    return requirements


def _parse_compile_seconds(table: Table) -> tuple[tuple[str, int], ...]:
    files = table.table("compile-seconds")
    if files is None:
        return ()
    return tuple((path, files.required(path, files.positive(path))) for path in files.data)


def _is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def _parse_bad_arch(table: Table) -> BadArch:
    table.check_keys(("arch", "toolkit", "report", "reason"))
    arch, toolkit = table.required_text("arch"), table.required_text("toolkit")
    try:
        return BadArch(
            arch=Arch.parse(arch),
            toolkit=SpecifierSet(toolkit),
            report=table.required_text("report"),
            reason=table.required_text("reason"),
        )
    except InvalidArchList as error:
        raise table.error("arch", error.message, error.remedy) from None
    except InvalidSpecifier:
        raise table.error("toolkit", f"{toolkit!r} is no version specifier", 'Write for example ">=13,<14".') from None


def _parse_smoke_test(table: Table) -> str | None:
    source = table.text("smoke-test")
    if source is None:
        return None
    try:
        ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise table.error("smoke-test", f"is not valid Python: {error}", "Correct it there.") from None
    return source
