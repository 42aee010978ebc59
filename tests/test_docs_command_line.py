"""docs/command-line.md against click: every command and option is there, and none that does not exist."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest
from commandline import PROJECT
from commands import commands, leaf_commands, options_of
from pages import DOCS, Cell, Section, sections

from archpatch import errors
from archpatch.wheelhouse.plan import State

PAGE = DOCS / "command-line.md"


@dataclass(frozen=True)
class Documented:
    """What the page says of one option of one command."""

    names: frozenset[str]
    variable: str | None
    text: str


@dataclass
class Reference:
    """The page: the commands that it has, by their words, with their options."""

    commands: set[str] = field(default_factory=set)
    options: dict[str, list[Documented]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(cls, page: Path) -> Reference:
        found = cls()
        for section in sections(page):
            command = _command(section)
            if command is not None:
                found.commands.add(command)
            for table in section.tables:
                if table.head[0] == "command":
                    found.commands |= {f"{command} {row['command'].code[0].split()[0]}" for row in table}
                elif table.head[0] == "option":
                    for row in table:
                        found._add(row, command or "")
        return found

    def _add(self, row: Mapping[str, Cell], command: str) -> None:
        variable = row.get("variable", Cell("", ())).code
        names = frozenset(code.split()[0] for code in row["option"].code)
        option = Documented(names, variable[0] if variable else None, " ".join(cell.text for cell in row.values()))
        for each in _commands_of(row["commands"]) if "commands" in row else (command,):
            self.options[each].append(option)


def _command(section: Section) -> str | None:
    """Return the words of a command that a heading names: `archpatch key wheelhouse [PACKAGE...]`."""
    match = re.fullmatch(r"archpatch ([a-z ]*[a-z])( [^a-z].*)?", section.title)
    return match[1] if match else None


def _commands_of(cell: Cell) -> Iterator[str]:
    """Yield the commands in a list; a group stands for all that is in it."""
    known = [" ".join(path) for path, _ in leaf_commands()]
    for name in cell.text.partition(";")[0].split(","):
        words = name.strip()
        yield from [each for each in known if each == words or each.startswith(f"{words} ")] or [words]


REFERENCE = Reference.read(PAGE)
LEAVES = {" ".join(path): command for path, command in leaf_commands()}
EVERY = {" ".join(path): command for path, command in commands()}


def options(command: click.Command) -> set[frozenset[str]]:
    """Return the options of a command, each by all of its names."""
    return {frozenset((*each.opts, *each.secondary_opts)) for each in options_of(command).values()}


def test_every_command_is_documented_and_no_other() -> None:
    groups = set(EVERY) - set(LEAVES)
    assert REFERENCE.commands - groups == set(LEAVES)
    assert set(REFERENCE.options) <= set(EVERY)


@pytest.mark.parametrize("command", EVERY)
def test_every_option_is_documented_and_no_other(command: str) -> None:
    documented = [each.names for each in REFERENCE.options.get(command, [])]
    # Help is every command's, and told once.
    found = set(documented) - {frozenset({"-h", "--help"})}
    assert found == options(EVERY[command])
    assert len(documented) == len(set(documented)), "an option is documented twice"


@pytest.mark.parametrize("command", LEAVES)
def test_what_is_said_of_each_option_is_so(command: str) -> None:
    has = options_of(LEAVES[command])
    for told in REFERENCE.options[command]:
        option = has[min(told.names)]
        assert told.variable == option.envvar
        assert ("repeatable" in told.text) is option.multiple
        choices = option.type.choices if isinstance(option.type, click.Choice) else ()
        assert all(str(choice) in told.text for choice in choices)
        if option.show_default:
            assert {True: "on", False: "off"}.get(option.default, str(option.default)) in told.text.split()


def test_every_variable_that_any_page_names_is_read() -> None:
    pages = [PROJECT / "README.md", *DOCS.glob("*.md")]
    named = {name for page in pages for name in re.findall(r"ARCHPATCH_[A-Z_]*[A-Z]", page.read_text())}
    sources = "".join(path.read_text() for path in (PROJECT / "archpatch").rglob("*.py"))
    read = {option.envvar for command in EVERY.values() for option in options_of(command).values()}
    assert {name for name in named - read if f'"{name}"' not in sources} == set()


def test_every_exit_status_is_documented() -> None:
    (section,) = (each for each in sections(PAGE) if each.title == "Exit status")
    told = {int(number) for row in section.tables[0] for number in row["status"].text.split(",")}
    raised = {getattr(errors, name).exit_status for name in errors.__all__}
    # Done, interrupted, SIGTERM and SIGHUP are no errors.
    assert told == raised | {0, 130, 143, 129}


def test_every_state_of_a_cell_is_documented() -> None:
    (section,) = (each for each in sections(PAGE) if each.title == "archpatch plan")
    assert [row["state"].text for row in section.tables[-1]] == [state.value for state in State]


@pytest.mark.parametrize(
    ("text", "command", "names"),
    [
        (
            "## `archpatch patch FILE`\n\n| option | |\n|---|---|\n| `-o`, `--output FOLDER` | |\n",
            "patch",
            {"-o", "--output"},
        ),
        (
            "| option | variable | commands |\n|---|---|---|\n| `--gpu A\\|B` | | wheelhouse |\n",
            "wheelhouse list",
            {"--gpu"},
        ),
        ("| option | commands |\n|---|---|\n| `--gone` | nowhere, build; repeatable |\n", "nowhere", {"--gone"}),
    ],
)
def test_the_page_is_read(tmp_path: Path, text: str, command: str, names: set[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert [set(each.names) for each in Reference.read(page).options[command]] == [names]
