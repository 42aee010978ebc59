"""Settings with their origin: the command line, `ARCHPATCH_*`, the project's file, the default."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from archpatch.config import Config
    from archpatch.config_readers import PlanTable
    from archpatch.recipes.recipe import RecipeOverride

__all__ = ["Settings", "origin", "plan_of"]


#: Groups whose --gpu says what is looked at: what a project is built for does not choose that.
_LOOKING = ("wheelhouse", "cache")


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

    def defaults_for(self, command: click.Command | None) -> dict[str, Any]:
        """Return click's `default_map` for the group: the settings under the name of the command that runs."""
        if command is None:
            return {}
        # A command takes what it has an option for and passes over the rest.
        values = dict(self.config.values)
        if command.name in _LOOKING:
            values = without_request(values)
        if command.name == "slim":
            # Where wheels are filed is no wish to file this one.
            values.pop("wheelhouse", None)
        below = dict.fromkeys(command.commands, values) if isinstance(command, click.Group) else values
        return {str(command.name): below}


def without_request(values: dict[str, Any]) -> dict[str, Any]:
    """Return settings without what a build is for."""
    return {name: value for name, value in values.items() if name not in ("arch", "gpu")}


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


def plan_of(ctx: click.Context) -> PlanTable:
    """Return the project's plan. Raises `ConfigError` where there is none."""
    from archpatch.errors import ConfigError

    settings: Settings = ctx.obj
    plan = settings.config.plan
    if plan is None:
        where = settings.config.path or "no pyproject.toml from here upwards"
        raise ConfigError(
            f"{where} has a [tool.archpatch.plan] table" if settings.config.path is None else f"{where}: no plan table",
            remedy='Write one: [tool.archpatch.plan] with packages = ["NAME==VERSION"] and gpu = ["h200"].',
        )
    return plan
