"""docs/configuration.md against what reads it: every key and choice is there, none that is not, and examples load."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest
from commandline import PROJECT
from commands import commands, options_of
from pages import DOCS, Block, sections

from archpatch import nox
from archpatch.config import load_config
from archpatch.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = {section.title: section for section in sections(DOCS / "configuration.md")}
RECIPE = "[recipes.x]\n"
PLAN = '[plan]\npackages = ["x"]\n'

#: The title of a section -> what stands before a key of its table, by the prefix that the page gives the key.
TABLES = {
    "The file": {"": ""},
    "The plan": {"": PLAN},
    "Pruning": {"": f'{PLAN}gpu = "l4"\n[plan.prune]\n'},
    "Recipes": {
        "": RECIPE,
        "arch-variable.": "[recipes.x.arch-variable]\n",
        "git.": "[recipes.x.git]\n",
        "known-bad.": "[[recipes.x.known-bad]]\n",
    },
}
CHOICES = {
    ("The file", "on-missing"): 'on-missing = "?"',
    ("Recipes", "arch-variable.form"): 'recipes.x.arch-variable = { name = "A", form = "?", separator = ";" }',
}


def refused(folder: Path, text: str) -> ConfigError:
    """Return the error that a file with this text is refused with."""
    file = folder / "settings.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(folder, config=file)
    return caught.value


def read_keys(folder: Path, before: str) -> set[str]:
    """Return the keys of the table that `before` opens: a wrong one is answered with those that are allowed."""
    match = re.search(r"Allowed are: (.+)\.$", str(refused(folder, f"{before}no-such-key = 1\n")))
    assert match is not None
    return set(match[1].split(", "))


def tables_of(title: str) -> set[str]:
    """Return the keys in the table of a section."""
    return {code for table in PAGE[title].tables if table.head[0] == "key" for row in table for code in row["key"].code}


@pytest.mark.parametrize("title", TABLES)
def test_every_key_is_documented_and_no_other(title: str, tmp_path: Path) -> None:
    below = {prefix.rstrip(".") for prefix in TABLES[title] if prefix}
    read = {prefix + key for prefix, before in TABLES[title].items() for key in read_keys(tmp_path, before)}
    assert tables_of(title) == read - below


@pytest.mark.parametrize(("title", "key"), CHOICES)
def test_every_choice_is_documented(title: str, key: str, tmp_path: Path) -> None:
    match = re.search(r"'\?' is not one of (.+)", refused(tmp_path, CHOICES[title, key]).message)
    assert match is not None
    (row,) = (row for table in PAGE[title].tables for row in table if row.get("key") and row["key"].text == key)
    told = {code.strip('"') for cell in row.values() for code in cell.code}
    assert set(match[1].split(", ")) <= told


def test_the_option_of_each_key_is_there() -> None:
    options = {name for _, command in commands() for name in options_of(command)}
    for row in PAGE["The file"].tables[0]:
        assert set(row["option"].code) <= options
        assert not row["option"].code or f"--{row['key'].text}" in row["option"].code


def examples() -> list[Block]:
    """Return the blocks of TOML on any page that have settings of archpatch."""
    pages = [PROJECT / "README.md", *sorted(DOCS.glob("*.md"))]
    blocks = (block for page in pages for section in sections(page) for block in section.blocks)
    return [block for block in blocks if block.info.startswith("toml") and "tool.archpatch" in block.text]


@pytest.mark.parametrize("block", examples(), ids=lambda block: f"line-{block.line}")
def test_each_example_is_read(block: Block, tmp_path: Path) -> None:
    for name in re.findall(r'"\./([\w-]+)"', block.text):
        (tmp_path / name).mkdir()
    file = tmp_path / "pyproject.toml"
    file.write_text(block.text)
    config = load_config(tmp_path, config=file)
    assert config.values or config.recipes or config.plan
    assert tomllib.loads(block.text)["tool"]["archpatch"]


@pytest.mark.parametrize("name", ["patch", "build"])
def test_the_functions_for_a_noxfile_are_documented_with_their_arguments(name: str) -> None:
    (how_to,) = (section for section in sections(DOCS / "how-to.md") if "nox" in section.title)
    (told,) = (row["function"].code[0] for row in how_to.tables[0] if row["function"].text.startswith(f"{name}("))
    parameters = inspect.signature(getattr(nox, name)).parameters
    assert re.findall(r"\w+", told)[1:] == list(parameters)
