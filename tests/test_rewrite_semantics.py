"""Programs put together at random from all shapes, run before and after: each list is what the rules give, always.

Nothing of the rewrite's own reading is used: a program is run by Python, and its lists are read as nvcc does.
"""

from __future__ import annotations

import random
from itertools import product

import pytest

from archpatch.arch.arch import ArchRequest, DeviceCode
from archpatch.arch.gencode import parse_flags
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import OnMissing, Policy, Request, select
from archpatch.errors import NoMatchingArch
from archpatch.rewrite.outcome import Refused
from archpatch.rewrite.source import rewrite_source

ARCHS = ("75", "80", "86", "90", "90a", "100")
OTHERS = ("-O3", "-g", "-lineinfo")
CONDITIONS = ("c", "d", "e")
WORLDS = list(product((False, True), repeat=len(CONDITIONS)))
HEAD = "import itertools, shlex\nfrom itertools import chain\n"

#: What makes the list `u` of `f` whatever the places and the number of its elements.
KEEPS = (
    "u = f[:]",
    "u = list(f) + ['-g']",
    "u = [word for word in f if word != '-O3']",
    "u = []\nfor word in f:\n    if word:\n        u.append(word)",
    "u = ' '.join(f).split()",
    "def more(words):\n    return ['-g', *words]\nu = more(f)",
    "args = {'nvcc': f}\nargs['nvcc'] += ['-g']\nu = args['nvcc']",
    "u = f\nu.insert(0, '-g')",
    "u = f\nprint('-g' in u, file=None if c else None) if u is None else None",
)
#: And what goes by them.
COUNTS = (
    "u = f[1:]",
    "u = [*f, '-g', '-g']\nfirst, second, *u = u",
    "u = [word for place, word in enumerate(f) if place]",
    "u = list(itertools.islice(f, 1, None))",
    "u = f if len(f) > 2 else []",
    "def last(words):\n    return words[-2:]\nu = last(f)",
    "u = f\nf.append('-g')\nu[0] = '-g'",
    "u = []\nfor word in f:\n    u.append(word)\n    u.append('-g')",
    "f.insert(0, '-g')\nf.insert(2, '-O3')\nu = f",
    "u = list(reversed(f))",
    "args = {'nvcc': f}\nu = args['nvcc'][::2]",
    "u = f or ['-g']",
    "u = ['-g'] * len(f)",
    "f.append('-g')\nf.pop(0)\nu = f",
    "u = [*[(f, word) for word in f], ([], '')][1:][0][0] if len(f) > 1 else f",
    "u = [list(f), *[[word] for word in f]][1 if f else 0]",
)

REQUESTS: list[tuple[Request, Policy]] = [
    (ArchRequest.parse("9.0"), Policy()),
    (ArchRequest.parse("8.0;9.0+PTX"), Policy()),
    (ArchRequest.parse("9.0a"), Policy()),
    (ArchRequest.parse("8.6;10.0"), Policy(strict=True)),
    (ArchRequest.parse("8.9"), Policy(on_missing=OnMissing.NEAREST)),
    (ArchRequest.parse("8.9+PTX"), Policy(on_missing=OnMissing.ADD)),
    (GpuRequest.of("l4"), Policy()),
    (GpuRequest.of("h200", "a100"), Policy()),
    (GpuRequest.of("b300"), Policy(on_missing=OnMissing.ADD)),
]


class Author:
    """Writes a program of lists and statements about them; the same one for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - cases for a test
        self.names = self.rng.choice((("f",), ("f", "g")))

    def program(self, use: str = "") -> str:
        lines = [f"{name} = {self.list_()}" for name in self.names]
        lines += [self.statement(self.rng.choice(self.names)) for _ in range(self.rng.randint(0, 4))]
        return HEAD + "\n".join([*lines, use]) + "\n"

    def flag(self) -> list[str]:
        arch = self.rng.choice(ARCHS)
        value = f"arch=compute_{arch},code=sm_{arch}"
        return self.rng.choice(
            (
                ["-gencode", value],
                ["-gencode", value],
                [f"-gencode={value}"],
                ["--generate-code", f"arch=compute_{arch},code=[sm_{arch},compute_{arch}]"],
                ["-gencode", f"arch=compute_{arch},code=compute_{arch}"],
                [f"-arch=compute_{arch}"] if self.rng.random() < 0.2 else [f"--generate-code={value}"],
            )
        )

    def words(self, most: int = 3) -> list[str]:
        parts = (
            self.flag() if self.rng.random() < 0.75 else [self.rng.choice(OTHERS)]
            for _ in range(self.rng.randint(0, most))
        )
        return [word for part in parts for word in part]

    def literal(self, word: str) -> str:
        quote = self.rng.choice("\"'")
        if self.rng.random() < 0.8:
            return f"{quote}{word}{quote}"
        half = word.find("=") + 1
        between = self.rng.choice((" ", " + "))
        return f"({quote}{word[:half]}{quote}{between}{quote}{word[half:]}{quote})"

    def brackets(self, most: int = 3) -> str:
        return f"[{self.rng.choice((', ', ',  # c' + chr(10))).join(map(self.literal, self.words(most)))}]"

    def lists(self) -> str:
        return ", ".join(self.brackets(2) for _ in range(self.rng.randint(1, 3)))

    def list_(self, depth: int = 0) -> str:
        """Return an expression that gives a list."""
        if depth > 2 or self.rng.random() < 0.3:
            return self.brackets()
        words = self.words()
        spaced = self.rng.choice((" ", "  ")).join(words)
        one, other, condition = self.list_(depth + 1), self.list_(depth + 1), self.rng.choice(CONDITIONS)
        return self.rng.choice(
            (
                f'"{spaced}".split()',
                f'"{" ".join(words)}".split(" ")' if words else "[]",
                f"shlex.split('{spaced}')",
                f"sum([{self.lists()}], {one})",
                f"list(itertools.chain({one}, {other}))",
                f"list(chain.from_iterable([{self.lists()}]))",
                f"({one} + {other})",
                f"({one} if {condition} else {other})",
                f"({one} if {condition} else {other})",
                f"[*{one}, {self.literal(self.rng.choice(OTHERS))}]",
            )
        )

    def statement(self, name: str, indent: str = "") -> str:
        """Return one or more statements that add to the list `name`."""
        inside = f"{self.rng.choice((f'if {self.rng.choice(CONDITIONS)}', 'try'))}:\n"
        tail = "\nfinally:\n    pass" if inside.startswith("try") else ""
        words = self.words()
        choices = [
            f"{indent}{name} += {self.list_()}",
            f"{indent}{name}.extend({self.list_()})",
            "\n".join(f"{indent}{name}.append({self.literal(word)})" for word in words) or f"{indent}pass",
            "\n".join(f"{indent}{name}.insert(0, {self.literal(word)})" for word in words[::-1]) or f"{indent}pass",
            f"{indent}for pair in [{self.lists()}]:\n{indent}    {name} += pair",
        ]
        return self.rng.choice(choices if indent else [*choices, inside + self.statement(name, "    ") + tail])


def lists_of(source: str, names: tuple[str, ...], world: tuple[bool, ...]) -> dict[str, list[str]]:
    scope: dict[str, object] = dict(zip(CONDITIONS, world, strict=True))
    exec(compile(source, "setup.py", "exec"), scope)  # noqa: S102 - our own text
    return {name: list(scope[name]) for name in names}  # type: ignore[call-overload]


def wanted(words: list[str], request: Request, policy: Policy) -> set[DeviceCode]:
    """Return what the rules select, nothing where nothing matches: a build looks for that."""
    pairs = parse_flags(words).pairs
    try:
        return set(select(pairs, request, policy).device_code) if pairs else set()
    except NoMatchingArch:
        return set()


@pytest.mark.parametrize("start", range(0, 300, 50))
def test_each_list_is_what_the_rules_give_in_each_world(start: int) -> None:
    outcomes = set()
    for seed in range(start, start + 50):
        author = Author(seed)
        source = author.program()
        before = {world: lists_of(source, author.names, world) for world in WORLDS}
        request, policy = author.rng.choice(REQUESTS)
        outcome = rewrite_source(source.encode(), request, policy=policy)
        if isinstance(outcome, Refused):
            assert outcome.no_match is not None
            assert not any(wanted(words, request, policy) for lists in before.values() for words in lists.values())
        elif not outcome.guarded:
            for world in WORLDS:
                for name, words in lists_of(outcome.source.decode(), author.names, world).items():
                    flags = parse_flags(words)
                    was = before[world][name]

                    assert not flags.problems
                    assert {pair.device_code for pair in flags.pairs} == wanted(was, request, policy), source
                    assert [word for word in words if word in OTHERS] == [word for word in was if word in OTHERS]
                    assert words.count("") == was.count("")
        outcomes.add((outcome.outcome, getattr(outcome, "guarded", False)))
    assert {("rewritten", False), ("rewritten", True), ("refused", False)} <= outcomes


@pytest.mark.parametrize("start", range(1000, 1400, 50))
def test_a_list_made_of_another_is_what_the_rules_give_unless_a_guard_sees_to_it(start: int) -> None:
    guarded = {"keeps": 0, "counts": 0}
    for seed in range(start, start + 50):
        author = Author(seed)
        kind = author.rng.choice(("keeps", "counts"))
        source = author.program(author.rng.choice(KEEPS if kind == "keeps" else COUNTS))
        before = {world: lists_of(source, ("u",), world)["u"] for world in WORLDS}
        request, policy = author.rng.choice(REQUESTS)
        outcome = rewrite_source(source.encode(), request, policy=policy)
        if isinstance(outcome, Refused):
            continue
        guarded[kind] += "counted" in {found.shape for found in outcome.sources}
        if not outcome.guarded:
            for world, was in before.items():
                words = lists_of(outcome.source.decode(), ("u",), world)["u"]
                flags, problems = parse_flags(words), parse_flags(was).problems

                assert not flags.problems or problems, source
                assert problems or {pair.device_code for pair in flags.pairs} == wanted(was, request, policy), source
                assert [word for word in words if word in OTHERS] == [word for word in was if word in OTHERS], source
    assert guarded["counts"]
    assert not guarded["keeps"]
