"""The project's own settings: `[tool.archpatch]` of `pyproject.toml`, or a TOML file that `--config` names.

Keys are spelled like the long options. What is read here ranks below the command line and the `ARCHPATCH_*`
variables, and above the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from archpatch.errors import ConfigError
from archpatch.recipes.table import Table, read_toml

if TYPE_CHECKING:
    from archpatch.config_readers import PlanTable
    from archpatch.recipes.recipe import RecipeOverride

__all__ = ["Config", "find_config", "load_config"]

_SECTION: Final = "tool.archpatch"


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
    # Every command looks for settings, and most find none: what reads them takes longer to import than a look-up.
    from archpatch.config_readers import read_plan, read_recipes, read_values  # noqa: PLC0415

    return Config(
        path=table.file,
        values=read_values(table),
        recipes=read_recipes(table),
        plan=read_plan(table),
    )
