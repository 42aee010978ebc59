"""Tables of a TOML file that know where they stand, so that an error names the file and the dotted setting."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from archpatch.errors import ConfigError, MissingFile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Table", "read_toml"]

_T = TypeVar("_T")
_S = TypeVar("_S", bound=str)

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def read_toml(path: Path) -> dict[str, object]:
    """Read a TOML file; raise `MissingFile` or `ConfigError`, which names the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingFile(f"{path} does not exist", remedy="Correct the path.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8", remedy="TOML files are UTF-8: save it as such.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", remedy="Correct the file there.") from None
    except OSError as error:
        raise MissingFile(f"{path} cannot be read: {error.strerror}", remedy="Name a readable file.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of the file `file`; `setting` is its dotted name, empty for the top level.

    The readers return None for an absent key and raise `ConfigError` for a value of another type.
    """

    file: Path
    setting: str
    data: Mapping[str, object]

    def dotted(self, key: str) -> str:
        """Return the full name of `key` as TOML spells it."""
        spelled = key if _BARE_KEY.fullmatch(key) else f'"{key}"'
        return f"{self.setting}.{spelled}" if self.setting else spelled

    def error(self, key: str, problem: str, remedy: str | None = None) -> ConfigError:
        """Return the error for `key`, ready to be raised."""
        return ConfigError(f"{self.file}: {self.dotted(key)}: {problem}", remedy=remedy)

    def check_keys(self, allowed: Collection[str]) -> None:
        """Raise `ConfigError` for the first key that is not `allowed`, naming the near miss."""
        for key in self.data:
            if key not in allowed:
                close = get_close_matches(key.replace("_", "-"), allowed, n=1)
                hint = f"Did you mean {close[0]}? " if close else ""
                raise self.error(key, "no such setting", f"{hint}Allowed are: {', '.join(sorted(allowed))}.")

    def text(self, key: str) -> str | None:
        """Return a string that is not empty."""
        value = self.data.get(key)
        return None if value is None else self._as_text(key, value)

    def required_text(self, key: str) -> str:
        """Return a string that must be there and is not empty."""
        return self.required(key, self.text(key))

    def required(self, key: str, value: _T | None) -> _T:
        """Return what was read under `key`, which must be there."""
        if value is None:
            raise self.error(key, "is missing", f"Set {self.dotted(key)}.")
        return value

    def strings(self) -> tuple[tuple[str, str], ...]:
        """Return all of this table as (key, string), sorted; a string may be empty here."""
        for key, value in self.data.items():
            if not isinstance(value, str):
                raise self._wrong_type(key, value, "a string")
        return tuple(sorted((key, str(value)) for key, value in self.data.items()))

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Return an array of strings."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong_type(key, value, "an array of strings")
        return tuple(self._as_text(key, item) for item in value)

    def text_or_texts(self, key: str) -> tuple[str, ...] | None:
        """Return an array of strings, at least one; a string alone counts as one."""
        value = self.data.get(key)
        found = self.texts(key) if value is None or isinstance(value, list) else (self._as_text(key, value),)
        if found == ():
            raise self.error(key, "is empty", "Name at least one, or leave the setting out.")
        return found

    def choice(self, key: str, choices: Collection[_S]) -> _S | None:
        """Return a string that is one of `choices`."""
        value = self.text(key)
        if value is None:
            return None
        for choice in choices:
            if value == choice:
                return choice
        close = get_close_matches(value, choices, n=1)
        remedy = f"Did you mean {close[0]!r}?" if close else None
        raise self.error(key, f"{value!r} is not one of {', '.join(choices)}", remedy)

    def flag(self, key: str) -> bool | None:
        """Return true or false."""
        value = self.data.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong_type(key, value, "true or false")

    def positive(self, key: str) -> int | None:
        """Return an integer from 1 on."""
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong_type(key, value, "an integer")
        if value < 1:
            raise self.error(key, f"{value} is less than 1", "Write 1 or more, or leave the setting out.")
        return value

    def table(self, key: str) -> Table | None:
        """Return the table under `key`."""
        value = self.data.get(key)
        return None if value is None else self._as_table(key, self.dotted(key), value)

    def tables(self, key: str) -> tuple[Table, ...]:
        """Return the array of tables under `key`; their names count from 0: `known-bad[0]`."""
        value = self.data.get(key, [])
        if not isinstance(value, list):
            raise self._wrong_type(key, value, f"an array of tables ([[{self.dotted(key)}]])")
        return tuple(self._as_table(key, f"{self.dotted(key)}[{number}]", item) for number, item in enumerate(value))

    def _as_table(self, key: str, setting: str, value: object) -> Table:
        if not isinstance(value, dict):
            raise self._wrong_type(key, value, "a table")
        return Table(file=self.file, setting=setting, data=value)

    def _as_text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            raise self._wrong_type(key, value, "a string")
        if not value:
            raise self.error(key, "is empty", "Give it a value, or leave the setting out.")
        return value

    def _wrong_type(self, key: str, value: object, wanted: str) -> ConfigError:
        """Return the error for a value of another type; a scalar where a string is wanted only lacks its quotes."""
        is_scalar = isinstance(value, (bool, int, float))
        remedy = f'Put it into quotes: "{_spelled(value)}".' if is_scalar and "string" in wanted else None
        return self.error(key, f"{_spelled(value)} is not {wanted}", remedy)


def _spelled(value: object) -> str:
    """Return `value` as TOML spells it, as far as that is short."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    return "an array" if isinstance(value, list) else repr(value)
