"""docs/schemas.md read as what it promises: the fields of each schema with their types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pages import DOCS, sections

#: The sections with a table of fields, by title.
SCHEMAS = {section.title: section for section in sections(DOCS / "schemas.md") if section.tables}


def documented(title: str) -> dict[str, set[str]]:
    """Return the types of each field of a schema by its path; a row may stand for the rows of another schema."""
    fields: dict[str, set[str]] = {}
    for row in SCHEMAS[title].tables[0]:
        (path,), text = row["field"].code, row[""].text
        fields[path] = set(row["type"].text.split(" or "))
        same = re.search(r"\bas (\S+) of (archpatch\.\S+/1)", text)
        if same is not None:
            other = fields if same[2] == title else documented(same[2])
            below = [name for name in other if _is_in(name, same[1])]
            fields |= {path + name.removeprefix(same[1]): other[name] for name in below}
    return fields


def _is_in(path: str, above: str) -> bool:
    return path.startswith((f"{above}.", f"{above}[]"))


def kind(value: object) -> set[str]:
    """Return the types that a value of JSON may be documented with."""
    if isinstance(value, list):
        return {"strings", "objects"} if not value else {f"{each}s" for item in value for each in kind(item)}
    names = {str: {"string"}, bool: {"boolean"}, int: {"integer", "number"}, float: {"number"}, dict: {"object"}}
    return {"null"} if value is None else names[type(value)]


def fields_of(value: object, known: Mapping[str, set[str]], path: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield the path and the type of each field in a value; where any name is allowed, it is called NAME."""
    if isinstance(value, list):
        for item in value:
            yield from fields_of(item, known, f"{path}[]")
    elif isinstance(value, dict):
        for name, below in value.items():
            free, own = (f"{path}.{last}".removeprefix(".") for last in ("NAME", name))
            field = free if free in known else own
            yield field, kind(below)
            yield from fields_of(below, known, field)


def misfits(value: dict[str, Any], known: Mapping[str, set[str]]) -> list[str]:
    """Return what of a value is documented with another type, or not at all."""
    seen = fields_of({name: below for name, below in value.items() if name != "schema"}, known)
    return [f"{path}: {' or '.join(sorted(kinds))}" for path, kinds in seen if not kinds & known.get(path, set())]
