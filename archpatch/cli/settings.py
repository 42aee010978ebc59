"""Settings with their origin: the command line, `ARCHPATCH_*`, the project's file, the default."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from archpatch.config import Config
    from archpatch.recipes.recipe import RecipeOverride

__all__ = ["Settings", "origin"]

#: Options that only some commands have: a setting is offered to those alone.
_OPTIONS = {
    "patch": ("arch", "gpu", "on_missing", "strict", "allow_known_bad", "python", "offline"),
    "build": (
        *("arch", "gpu", "on_missing", "strict", "allow_known_bad", "python", "offline", "toolkit", "wheelhouse"),
        *("local_version", "replace", "max_jobs"),
    ),
    "inspect": (),
    "doctor": ("arch", "gpu", "on_missing", "python", "toolkit", "wheelhouse", "offline"),
}


class Settings:
    """The project's settings, read from their file when they are first needed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    @cached_property
    def config(self) -> Config:
        """The file's content; empty where there is none. Raises `ConfigError` and `MissingFile`."""
        from archpatch.config import load_config

        return load_config(Path.cwd(), config=self._path)

    @property
    def recipes(self) -> tuple[RecipeOverride, ...]:
        """The recipes that the file adds or overrides."""
        return self.config.recipes

    def defaults_for(self, command: str | None) -> dict[str, Any]:
        """Return click's `default_map` for the group: the settings under the name of the command that runs."""
        if command == "wheelhouse":
            values = {key: value for key, value in self.config.values.items() if key in ("wheelhouse", "python")}
            return {"wheelhouse": dict.fromkeys(("list", "path", "requirements", "verify"), values)}
        if command is None or not _OPTIONS.get(command):
            return {}
        return {command: {name: self.config.values[name] for name in _OPTIONS[command] if name in self.config.values}}


def origin(ctx: click.Context, option: str, settings: Settings) -> str:
    """Say where the value of an option comes from, in words."""
    source = ctx.get_parameter_source(option)
    if source is ParameterSource.COMMANDLINE:
        return "command line"
    if source is ParameterSource.ENVIRONMENT:
        return f"ARCHPATCH_{option.upper()}"
    if source is ParameterSource.DEFAULT_MAP:
        return str(settings.config.path)
    return "default"
