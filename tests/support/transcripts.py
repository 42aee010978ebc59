"""What a page tells a reader to type, run as it stands, and held against what the page shows as the answer.

A block of `console` has commands behind `$ `, and what they print. A block with `title="NAME"` is a file to write. In
an answer, a line `...` stands for any lines, and `...` in a line for anything; how many spaces part two columns does
not matter.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pages import Block, sections

#: Stands between what commands print; no page has it.
_MARK = "--- end of a step of the page:"
_PROMPT = "$ "
#: Seconds for a whole page: torch is fetched, and nvcc runs a few times.
_LIMIT = 1800


@dataclass(frozen=True)
class Command:
    """A command, the line of the page that it stands in, and what the page shows of its output."""

    line: int
    text: str
    shown: tuple[str, ...]

    def shell(self) -> str:
        """Return it as a part of a script, which ends with it where it fails."""
        return f'{{ {self.text}\n}}; status=$?; echo; echo "{_MARK} $status"; [ $status = 0 ] || exit 0'


@dataclass(frozen=True)
class Written:
    """A file that the reader writes."""

    name: str
    text: str

    def shell(self) -> str:
        """Return it as a part of a script."""
        return f"cat > '{self.name}' <<'{_MARK}'\n{self.text}{_MARK}"


def steps(page: Path) -> Iterator[Command | Written]:
    """Yield what a page tells a reader to do, in order; other blocks than these two are only shown."""
    for block in (block for section in sections(page) for block in section.blocks):
        title = re.search(r'title="([^"]+)"', block.info)
        if title is not None:
            yield Written(title[1], block.text)
        elif block.info == "console":
            yield from _commands(block)


def _commands(block: Block) -> Iterator[Command]:
    lines = block.text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(_PROMPT)]
    assert starts[:1] == [0], f"line {block.line}: a block of console starts with a command"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        shown = tuple(lines[start + 1 : end])
        yield Command(block.line + 1 + start, lines[start].removeprefix(_PROMPT), shown)


def follow(page: Path, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Do what a page says in `folder`, in one shell; return each command that fails or answers otherwise."""
    done = list(steps(page))
    script = "\n".join(["exec 2>&1", *(step.shell() for step in done), ""])
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**environment, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    answers = re.findall(rf"(.*?)\n{_MARK} (\d+)\n", ran.stdout, re.DOTALL)
    commands = [step for step in done if isinstance(step, Command)]
    problems = (_problem(command, *answer) for command, answer in zip(commands, answers, strict=False))
    unrun = [f"line {command.line}: $ {command.text}: was not run" for command in commands[len(answers) :]]
    return [problem for problem in problems if problem is not None] + unrun[:1]


def _problem(command: Command, printed: str, status: str) -> str | None:
    where = f"line {command.line}: $ {command.text}"
    if status != "0":
        return f"{where}: ended with status {status}:\n{printed}"
    if not fits(command.shown, printed):
        return f"{where}: printed\n{printed}\nand the page shows\n" + "\n".join(command.shown)
    return None


def fits(shown: Sequence[str], printed: str) -> bool:
    """Tell whether a command printed what is shown."""
    pattern = "".join(_pattern(line) for line in shown)
    return re.fullmatch(pattern, "".join(f"{_plain(line)}\n" for line in printed.splitlines())) is not None


def _pattern(line: str) -> str:
    if line.strip() == "...":
        return r"(?:.*\n)*?"
    return ".*".join(map(re.escape, _plain(line).split("..."))) + r"\n"


def _plain(line: str) -> str:
    """Return a line with one space between its columns."""
    return re.sub(r"(?<=\S) +", " ", line.rstrip())


def environment(**variables: str) -> dict[str, str]:
    """Return the variables of a reader who has set nothing."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("ARCHPATCH_", "TORCH_CUDA"))}
    return {**ours, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
