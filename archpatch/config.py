"""The project's own settings: `[tool.archpatch]` of `pyproject.toml`, or a TOML file that `--config` names.

Keys are spelled like the long options. What is read here ranks below the command line and the `ARCHPATCH_*`
variables, and above the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from archpatch.arch.selection import OnMissing
from archpatch.errors import ConfigError
from archpatch.recipes.recipe import RecipeOverride, load_recipes, read_overrides
from archpatch.recipes.table import Table, read_toml

__all__ = ["Config", "find_config", "load_config"]

_SECTION: Final = "tool.archpatch"
_TOOLKIT_WORDS: Final = ("auto", "system", "pypi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings by option name (`on_missing`), and the user's recipes; `path` is the file that they come from.

    Absent settings are absent from `values`. `arch` is one list, `gpu` a tuple of types, `wheelhouse` and a `toolkit`
    or `python` that is a path are absolute, read from the folder of the file.
    """

    path: Path | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    recipes: tuple[RecipeOverride, ...] = ()


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
    table.check_keys((*_READERS, "recipes"))
    values = {key: value for key, read in _READERS.items() if (value := read(table, key)) is not None}
    if "arch" in values and "gpu" in values:
        raise table.error("gpu", f"excludes {table.dotted('arch')}", "Keep one of the two.")
    tables = table.table("recipes")
    recipes = () if tables is None else read_overrides(tables)
    load_recipes(recipes)  # A mistake in any recipe shows at once, not with the first build of that package.
    return Config(
        path=table.file,
        values={key.replace("-", "_"): value for key, value in values.items()},
        recipes=recipes,
    )


def _arch(table: Table, key: str) -> str | None:
    words = table.text_or_texts(key)
    return None if words is None else ";".join(words)


def _on_missing(table: Table, key: str) -> str | None:
    return table.choice(key, [choice.value for choice in OnMissing])


def _path(table: Table, key: str) -> str | None:
    text = table.text(key)
    return None if text is None else str(table.file.parent / Path(text).expanduser())


def _python(table: Table, key: str) -> str | None:
    """Read an interpreter: a bare name (`python3.12`) is looked up on PATH later, anything else is a path."""
    text = table.text(key)
    return _path(table, key) if text is not None and "/" in text else text


def _toolkit(table: Table, key: str) -> str | None:
    text = table.text(key)
    return text if text in _TOOLKIT_WORDS else _path(table, key)


_READERS: Final[Mapping[str, Callable[[Table, str], object]]] = {
    "allow-known-bad": Table.flag,
    "arch": _arch,
    "gpu": Table.text_or_texts,
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
