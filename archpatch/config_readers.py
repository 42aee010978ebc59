"""How `[tool.archpatch]` is read: each setting, the recipes, and the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import find_gpu
from archpatch.arch.selection import OnMissing
from archpatch.builder.requirement import FolderRequirement, parse_requirement
from archpatch.builder.sizing import COMPRESS_MODES
from archpatch.errors import ArchpatchError
from archpatch.recipes.recipe import RecipeOverride, load_recipes, read_overrides
from archpatch.recipes.table import Table
from archpatch.wheelhouse.plan import Cell
from archpatch.wheelhouse.prune import PruneRules

__all__ = ["PlanTable", "read_plan", "read_recipes", "read_values"]

_T = TypeVar("_T")

_TOOLKIT_WORDS: Final = ("auto", "system", "pypi")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable:
    """What a wheelhouse should hold, cell by cell in the order of the file, and what may go."""

    cells: tuple[Cell, ...]
    prune: PruneRules


def read_values(table: Table) -> dict[str, object]:
    """Return the settings that are there, by option name. Raises `ConfigError`, also for a key that is none."""
    table.check_keys((*_READERS, "plan", "recipes"))
    values = {key: value for key, read in _READERS.items() if (value := read(table, key)) is not None}
    if "arch" in values and "gpu" in values:
        raise table.error("gpu", f"excludes {table.dotted('arch')}", "Keep one of the two.")
    return {key.replace("-", "_"): value for key, value in values.items()}


def read_recipes(table: Table) -> tuple[RecipeOverride, ...]:
    """Return the recipes that are added or overridden. Raises `ConfigError` and `MissingFile`."""
    tables = table.table("recipes")
    recipes = () if tables is None else read_overrides(tables)
    load_recipes(recipes)  # A mistake in any recipe shows at once, not with the first build of that package.
    return recipes


def read_plan(settings: Table) -> PlanTable | None:
    """Return the plan, where there is one. Raises `ConfigError`."""
    plan = settings.table("plan")
    # The interpreter of single builds counts where the plan names none.
    return None if plan is None else _read_plan(plan, _python(settings, "python"))


def _read_plan(table: Table, default_python: str | None) -> PlanTable:
    table.check_keys(("packages", "gpu", "arch", "python", "prune"))
    named = table.text_or_texts("python")
    pythons = [(None, default_python)] if named is None else [(text, _python_path(table, text)) for text in named]
    packages = table.required("packages", table.texts("packages"))
    targets = (*_arch_lists(table), *_gpu_types(table))
    if not packages or not targets:
        key, what = ("gpu", "GPU type or arch list") if packages else ("packages", "package")
        raise table.error(key, f"no {what} is named", "Name at least one.")
    cells = tuple(
        Cell(
            package=package,
            requirement=_requirement(table, package),
            python=python,
            interpreter=interpreter,
            **target,
        )
        for python, interpreter in pythons
        for package in packages
        for target in targets
    )
    twice = [cell.id for number, cell in enumerate(cells) if cell.id in {other.id for other in cells[:number]}]
    if twice:
        raise table.error("packages", f"two cells are called {twice[0]}", "Name everything once.")
    return PlanTable(cells=cells, prune=_read_prune(table.table("prune")))


def _arch_lists(table: Table) -> Iterator[dict[str, str]]:
    for text in table.text_or_texts("arch") or ():
        _checked(table, "arch", partial(ArchRequest.parse, text))
        yield {"arch": text}


def _gpu_types(table: Table) -> Iterator[dict[str, str]]:
    for text in table.text_or_texts("gpu") or ():
        yield {"gpu": _checked(table, "gpu", partial(find_gpu, text)).name}


def _requirement(table: Table, package: str) -> str:
    """Return what a package is built from; the path of a folder or an archive starts at the file's own folder."""
    text = str(table.file.parent / package) if package.startswith(("./", "../")) else package
    requirement = _checked(table, "packages", partial(parse_requirement, text))
    return str(requirement) if isinstance(requirement, FolderRequirement) else text


def _checked(table: Table, key: str, read: Callable[[], _T]) -> _T:
    """Return what `read` returns; what it raises names the setting."""
    try:
        return read()
    except ArchpatchError as error:
        raise table.error(key, error.message, error.remedy) from None


def _read_prune(table: Table | None) -> PruneRules:
    if table is None:
        return PruneRules()
    table.check_keys(("superseded", "max-age-days", "max-size-mb"))
    days, megabytes = table.positive("max-age-days"), table.positive("max-size-mb")
    return PruneRules(
        superseded=table.flag("superseded") or False,
        max_age=None if days is None else timedelta(days=days),
        max_size=None if megabytes is None else megabytes * 10**6,
    )


def _arch(table: Table, key: str) -> str | None:
    words = table.text_or_texts(key)
    return None if words is None else ";".join(words)


def _on_missing(table: Table, key: str) -> str | None:
    return table.choice(key, [choice.value for choice in OnMissing])


def _compress_mode(table: Table, key: str) -> str | None:
    return table.choice(key, list(COMPRESS_MODES))


def _path(table: Table, key: str) -> str | None:
    text = table.text(key)
    return None if text is None else str(table.file.parent / Path(text).expanduser())


def _python(table: Table, key: str) -> str | None:
    """Read an interpreter: a bare name (`python3.12`) is looked up on PATH later, anything else is a path."""
    text = table.text(key)
    return None if text is None else _python_path(table, text)


def _python_path(table: Table, text: str) -> str:
    return str(table.file.parent / Path(text).expanduser()) if "/" in text else text


def _toolkit(table: Table, key: str) -> str | None:
    text = table.text(key)
    return text if text in _TOOLKIT_WORDS else _path(table, key)


_READERS: Final[Mapping[str, Callable[[Table, str], object]]] = {
    "allow-known-bad": Table.flag,
    "arch": _arch,
    "compress-mode": _compress_mode,
    "gpu": Table.text_or_texts,
    "lineinfo": Table.flag,
    "local-version": Table.flag,
    "max-jobs": Table.positive,
    "offline": Table.flag,
    "on-missing": _on_missing,
    "python": _python,
    "replace": Table.flag,
    "strict": Table.flag,
    "toolkit": _toolkit,
    "wheelhouse": _path,
}
