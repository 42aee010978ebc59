"""Rewrite one `setup.py`: read it, decide, and write it back in one step."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from pathlib import Path

from archpatch.arch.selection import Policy
from archpatch.builder.asked import Asked
from archpatch.builder.source import project_name
from archpatch.errors import MissingFile
from archpatch.recipes.recipe import RecipeOverride, find_recipe, known_bad_for
from archpatch.rewrite.outcome import Outcome, Refused, Rewritten
from archpatch.rewrite.source import rewrite_source
from archpatch.storage.atomic import write_bytes

__all__ = ["Patch", "patch_file", "setup_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """What a rewrite of `file` comes to; nothing is written before `write`."""

    file: Path
    before: bytes
    outcome: Outcome
    asked: Asked
    policy: Policy

    @property
    def diff(self) -> str:
        """The change as a unified diff, empty where there is none."""
        before, after = (
            text.decode("utf-8", "replace").splitlines(keepends=True) for text in (self.before, self.outcome.source)
        )
        return "".join(difflib.unified_diff(before, after, f"a/{self.file.name}", f"b/{self.file.name}"))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know of the outcome."""
        if isinstance(self.outcome, Refused) or self.asked.request is None:
            return ()
        return self.outcome.selection.warnings if self.outcome.selection else ()

    def require(self) -> None:
        """Raise the error of a refusal: `NoMatchingArch` or `SetupRefused`."""
        if isinstance(self.outcome, Refused):
            raise self.outcome.error()

    def write(self) -> None:
        """Write the file in one step, where anything changed; raises as `require`."""
        self.require()
        if isinstance(self.outcome, Rewritten):
            write_bytes(self.file, self.outcome.source)


def setup_file(path: Path) -> Path:
    """Return the file to rewrite: `path` itself, or the `setup.py` at the top of a folder. Raises `MissingFile`."""
    file = path / "setup.py" if path.is_dir() else path
    if not file.is_file():
        raise MissingFile(f"{file} does not exist", remedy="Name a setup.py, or a folder with one at its top.")
    return file


def patch_file(
    file: Path,
    *,
    asked: Asked,
    policy: Policy,
    allow_known_bad: bool = False,
    cxx_standard: int | None = None,
    recipes: tuple[RecipeOverride, ...] = (),
) -> Patch:
    """Rewrite `file` for what is asked, in memory. Without a request only the C++ standard is looked at.

    `cxx_standard` is what the installed torch demands (20), None where no torch is known. Archs that a recipe marks
    as bad for any toolkit are left out, unless `allow_known_bad`.
    """
    before = file.read_bytes()
    recipe = find_recipe(project_name(file.parent), recipes)
    bad = () if allow_known_bad else known_bad_for(recipe, None)
    policy = replace(policy, known_bad=bad)
    # Nothing asked for: the file stays as it is, the standard too.
    standard = cxx_standard if asked.request is not None else None
    outcome = rewrite_source(before, asked.request, policy=policy, cxx_standard=standard)
    return Patch(file=file, before=before, outcome=outcome, asked=asked, policy=policy)
