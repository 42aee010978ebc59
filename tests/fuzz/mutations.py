"""The inputs: each follows from the run's seed and its own number, so that a failure can be had again."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import libcst as cst

from archpatch.arch.arch import Arch, ArchRequest
from archpatch.arch.gpu import GpuRequest, gpu_types
from archpatch.arch.selection import KnownBad, OnMissing, Policy, Request
from archpatch.errors import InvalidArchList
from archpatch.rewrite.source import rewrite_source
from fuzz.on_bytes import DAMAGE, DRESS, BytesMutation
from fuzz.on_trees import ARCHS, TREES

__all__ = ["KINDS", "REWRITTEN_BEFORE", "Input", "make_input"]

_FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "setup_py"
_NUMBER = re.compile(rb"(?:sm|compute)_(\d{2,3}[af]?)")
_MOST_BYTES: Final = 40_000

REWRITTEN_BEFORE: Final = "rewritten before"
#: Every kind of mutation, in the order of the summary.
KINDS: Final = (*TREES, *DRESS, *DAMAGE, REWRITTEN_BEFORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of a run: `kinds` are the mutations that made `source`, the rest is what `rewrite_source` is asked."""

    number: int
    source: bytes
    kinds: tuple[str, ...]
    request: Request | None
    policy: Policy
    cxx_standard: int | None


def make_input(seed: int, number: int) -> Input:
    """Return the input `number` of the run with `seed`."""
    rng = random.Random(f"{seed}:{number}")  # noqa: S311 - inputs have to be the same again, not secret
    source = rng.choice(_seeds("rewritten" if rng.random() < 0.6 else ""))
    kinds: list[str] = []
    if rng.random() < 0.75:
        source = _mutate_tree(source, rng, kinds)
        if rng.random() < 0.4:
            source = _mutate_bytes(source, rng, kinds, DRESS)
    else:
        for _ in range(rng.randint(1, 3)):
            source = _mutate_bytes(source, rng, kinds, DAMAGE if rng.random() < 0.6 else DRESS)
    if rng.random() < 0.08:
        source = rewrite_source(source, _request(source, rng), policy=_policy(rng)).source
        kinds.append(REWRITTEN_BEFORE)
        if rng.random() < 0.5:
            source = _mutate_bytes(source, rng, kinds, DAMAGE)
    source = source[:_MOST_BYTES]
    return Input(
        number=number,
        source=source,
        kinds=tuple(dict.fromkeys(kinds)),
        request=None if rng.random() < 0.05 else _request(source, rng),
        policy=_policy(rng),
        cxx_standard=rng.choice((None, None, 17, 20)),
    )


@cache
def _seeds(folder: str) -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted((_FIXTURES / folder).rglob("*.py")))


@cache
def _texts() -> tuple[str, ...]:
    return tuple(source.decode() for source in _seeds(""))


def _mutate_tree(source: bytes, rng: random.Random, kinds: list[str]) -> bytes:
    text = source.decode()
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        name = rng.choice(list(TREES))
        try:
            module = TREES[name](cst.parse_module(text), rng, _texts())
            changed = None if module is None else module.code
        except (cst.ParserSyntaxError, cst.CSTValidationError, cst.CSTLogicError):
            continue  # what would come out is no Python, and damage has mutations of its own
        if changed is not None and changed != text:
            text = changed
            kinds.append(name)
    return text.encode()


def _mutate_bytes(source: bytes, rng: random.Random, kinds: list[str], table: dict[str, BytesMutation]) -> bytes:
    name = rng.choice(list(table))
    kinds.append(name)
    return table[name](source, rng, _seeds(""))


def _request(source: bytes, rng: random.Random) -> Request:
    """Return a request: mostly for archs that the source has."""
    if rng.random() < 0.25:
        return GpuRequest.of(*(gpu.name for gpu in rng.sample(gpu_types(), rng.choice((1, 1, 2, 3)))))
    found = sorted({match.decode() for match in _NUMBER.findall(source)})
    return _arch_request([*found, *found, *found, *rng.sample(ARCHS, 3)], rng) or ArchRequest.parse("9.0")


def _arch_request(numbers: Sequence[str], rng: random.Random) -> ArchRequest | None:
    words = (f"sm_{rng.choice(numbers)}" for _ in range(rng.choice((1, 1, 1, 2, 3))))
    known = [str(arch) for word in words if (arch := _arch(word)) is not None]
    if not known:
        return None
    return ArchRequest.parse(";".join(name + ("+PTX" if rng.random() < 0.2 else "") for name in known))


def _arch(text: str) -> Arch | None:
    try:
        return Arch.parse(text)
    except InvalidArchList:
        return None


def _policy(rng: random.Random) -> Policy:
    bad = (KnownBad(arch=Arch(9, 0), reason='wrong \N{RIGHTWARDS ARROW} "it\'s" \\ here'),)
    return Policy(
        on_missing=rng.choice((None, None, *OnMissing)),
        strict=rng.random() < 0.1,
        known_bad=bad if rng.random() < 0.1 else (),
    )
