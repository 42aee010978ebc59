"""The project's own settings: `[tool.archpatch]` of `pyproject.toml`, or a TOML file that `--config` names.

Keys are spelled like the long options. What is read here ranks below the command line and the `ARCHPATCH_*`
variables, and above the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import find_gpu
from archpatch.arch.selection import OnMissing
from archpatch.builder.requirement import FolderRequirement, parse_requirement
from archpatch.builder.sizing import COMPRESS_MODES
from archpatch.errors import ArchpatchError, ConfigError
from archpatch.recipes.recipe import RecipeOverride, load_recipes, read_overrides
from archpatch.recipes.table import Table, read_toml
from archpatch.wheelhouse.plan import Cell
from archpatch.wheelhouse.prune import PruneRules

__all__ = ["Config", "PlanTable", "find_config", "load_config"]

_T = TypeVar("_T")

_SECTION: Final = "tool.archpatch"
_TOOLKIT_WORDS: Final = ("auto", "system", "pypi")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable:
    """What a wheelhouse should hold, cell by cell in the order of the file, and what may go."""

    cells: tuple[Cell, ...]
    prune: PruneRules = field(default_factory=PruneRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings by option name (`on_missing`), the user's recipes, and the plan; `path` is the file they come from.

    Absent settings are absent from `values`. `arch` is one list, `gpu` a tuple of types, `wheelhouse` and a `toolkit`
    or `python` that is a path are absolute, read from the folder of the file.
    """

    path: Path | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    recipes: tuple[RecipeOverride, ...] = ()
    plan: PlanTable | None = None


def load_config(start: Path, *, config: Path | None = None) -> Config:
    """Read the file `config`, else the nearest `pyproject.toml` with a `[tool.archpatch]` table from `start` upwards.

    A file that is named may hold the settings at its top level as well. Raises `ConfigError` for a setting or a
    recipe that is wrong and `MissingFile` for a file that is not there.
    """
    if config is None:
        return find_config(start)
    path = config.absolute()
    data = read_toml(path)
    if "tool" not in data:
        return _read(Table(file=path, setting="", data=data))
    table = _section(path, data)
    if table is None:
        raise ConfigError(f"{path} has no [{_SECTION}] table", remedy="Add it, or name another file.")
    return _read(table)


def find_config(start: Path) -> Config:
    """Read the nearest `pyproject.toml` with a `[tool.archpatch]` table, from the folder `start` upwards.

    The search ends at the folder that holds `.git`, so that a checkout's settings never come from outside of it.
    Returns an empty `Config` where there is none; raises as `load_config` does.
    """
    folder = start.absolute()
    for candidate in (folder, *folder.parents):
        path = candidate / "pyproject.toml"
        table = _section(path, read_toml(path)) if path.is_file() else None
        if table is not None:
            return _read(table)
        if (candidate / ".git").exists():
            break
    return Config()


def _section(path: Path, data: Mapping[str, object]) -> Table | None:
    tool = Table(file=path, setting="", data=data).table("tool")
    return None if tool is None else tool.table("archpatch")


def _read(table: Table) -> Config:
    table.check_keys((*_READERS, "plan", "recipes"))
    values = {key: value for key, read in _READERS.items() if (value := read(table, key)) is not None}
    if "arch" in values and "gpu" in values:
        raise table.error("gpu", f"excludes {table.dotted('arch')}", "Keep one of the two.")
    tables = table.table("recipes")
    recipes = () if tables is None else read_overrides(tables)
    load_recipes(recipes)  # A mistake in any recipe shows at once, not with the first build of that package.
    plan = table.table("plan")
    return Config(
        path=table.file,
        values={key.replace("-", "_"): value for key, value in values.items()},
        recipes=recipes,
        plan=None if plan is None else _read_plan(plan, _python(table, "python")),
    )


def _read_plan(table: Table, default_python: str | None) -> PlanTable:
    """Read a plan; `default_python` is the interpreter of single builds, which counts where the plan names none."""
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
