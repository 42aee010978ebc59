"""Ninja's build files, as far as extensions have them: the commands that ninja runs, and what each reads and writes.

The grammar is that of https://ninja-build.org/manual.html, "Ninja file reference".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["Edge", "read_edges"]

#: The rule that runs nothing and gives its inputs another name.
_PHONY = "phony"
_PIECE = re.compile(r"\$(?:\{([\w.-]+)\}|([\w-]+)|(.))|([^$]+)")
_TOKEN = re.compile(r"(?:\$.|[^ $:|])+|\|\||\|@|[|:]")
_CONTINUED = re.compile(r"(?<!\$)((?:\$\$)*)\$\n *")
#: What leads to other files, or to inputs that are known only while ninja runs.
_MORE = ("include", "subninja")
_DYNAMIC = ("dyndep", "rspfile")
#: What a value may come to (characters): Linux takes no longer word in a command (MAX_ARG_STRLEN).
_LONGEST = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A step of a build: `inputs` are all kinds of them, `command` is for a shell (None: phony).

    `tells` says that ninja keeps what the compiler lists as read.
    """

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    command: str | None
    tells: bool


def read_edges(text: str) -> tuple[Edge, ...]:
    """Read the steps of a build file. Raises `ValueError` for what is no build file, or leads to another one."""
    names: dict[str, str] = {}
    rules: dict[str, dict[str, str]] = {_PHONY: {}}
    builds: list[tuple[str, dict[str, str]]] = []
    for keyword, rest, below in _blocks(text):
        if keyword in _MORE:
            raise ValueError("it leads to another build file")
        if keyword == "rule":
            rules[rest] = below
        elif keyword == "build":
            builds.append((rest, {name: _expand(value, names.get) for name, value in below.items()}))
        elif keyword == "=":
            name, _, value = rest.partition("=")
            expanded = _expand(value.strip(), names.get)
            if names.setdefault(name.strip(), expanded) != expanded:
                raise ValueError("a variable that changes")
    return tuple(_edge(line, own, rules=rules, names=names) for line, own in builds)


def _blocks(text: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield each statement: its keyword (`=` for a variable), what follows, and the variables that belong to it."""
    found: list[tuple[str, str, dict[str, str]]] = []
    for line in _CONTINUED.sub(r"\1", text).split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if line.startswith(" "):
            if not equals or not found:
                raise ValueError("a line that belongs nowhere")
            found[-1][2][name.strip()] = value.strip()
            continue
        keyword, _, rest = line.partition(" ")
        if keyword in ("rule", "build", "default", "pool", *_MORE):
            found.append((keyword, rest.strip(), {}))
        elif equals:
            found.append(("=", line, {}))
        else:
            raise ValueError("an unknown statement")
    yield from found


def _edge(
    line: str, own: Mapping[str, str], *, rules: Mapping[str, Mapping[str, str]], names: Mapping[str, str]
) -> Edge:
    outputs, (rule, *explicit), other = _paths(line, {**names, **own})
    if rule not in rules:
        raise ValueError("an unknown rule")
    values = _Values(texts=rules[rule], given=own, names=names)
    values.known |= {"in": shlex.join(explicit), "out": shlex.join(outputs[0])}
    if any(values.get(name) for name in _DYNAMIC):
        raise ValueError("inputs that are known only while ninja runs")
    return Edge(
        outputs=(*outputs[0], *outputs[1]),
        inputs=(*explicit, *other),
        command=None if rule == _PHONY else values.get("command"),
        tells=bool(values.get("deps") and values.get("depfile")),
    )


@dataclass(slots=True, kw_only=True)
class _Values:
    """The variables of a step: its own, then the texts of its rule, then those of the file."""

    texts: Mapping[str, str]
    given: Mapping[str, str]
    names: Mapping[str, str]
    known: dict[str, str | None] = field(default_factory=dict)

    def get(self, name: str) -> str:
        """Return a value. Raises `ValueError` where a rule's texts go in circles."""
        if name not in self.known:
            self.known[name] = None
            text = self.texts.get(name)
            if text is None or name in self.given:
                self.known[name] = self.given.get(name, self.names.get(name, ""))
            else:
                self.known[name] = _expand(text, self.get)
        value = self.known[name]
        if value is None:
            raise ValueError("variables go in circles")
        return value


def _paths(line: str, scope: Mapping[str, str]) -> tuple[tuple[list[str], list[str]], list[str], list[str]]:
    """Return the explicit and the implicit outputs, the rule with the explicit inputs, and the other inputs."""
    parts: list[list[str]] = [[]]
    marks: list[str] = []
    for token in _TOKEN.findall(line):
        if token in (":", "|", "||", "|@"):
            marks.append(token)
            parts.append([])
        else:
            parts[-1].append(_expand(token, scope.get))
    if marks.count(":") != 1:
        raise ValueError("a step without a rule")
    middle = marks.index(":") + 1
    if not parts[0] or not parts[middle]:
        raise ValueError("a step without a rule")
    more = [path for part in parts[1:middle] for path in part]
    return (parts[0], more), parts[middle], [path for part in parts[middle + 1 :] for path in part]


def _expand(text: str, value_of: Callable[[str], str | None]) -> str:
    """Return the text with the variables' values. Raises `ValueError` where it becomes longer than any command."""
    pieces: list[str] = []
    left = _LONGEST
    for braced, bare, escaped, plain in _PIECE.findall(text):
        pieces.append(escaped or plain or value_of(braced or bare) or "")
        left -= len(pieces[-1])
        if left < 0:
            raise ValueError("a value without an end")
    return "".join(pieces)
