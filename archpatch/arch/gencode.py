"""nvcc's arch flags in every spelling, and the pairs that they mean.

Source: `nvcc --help` and `nvcc --dryrun` of CUDA 13.0. What was seen there: `-gencode` and `-arch` add up; of several
`-arch` the last counts; `-arch=sm_90` alone stores `sm_90` and `compute_90`, `-arch=sm_90a` also the PTX of 9.0; with
`-code` the value of `-arch` has to be virtual; several codes of one `-gencode` need brackets or quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from archpatch.arch.arch import Arch, DeviceCode, Pair
from archpatch.errors import InvalidArchList

__all__ = [
    "ARCH_OPTIONS",
    "CODE_OPTIONS",
    "GENCODE_OPTIONS",
    "ArchFlags",
    "format_pair",
    "parse_flags",
    "parse_gencode",
]

GENCODE_OPTIONS = ("-gencode", "--generate-code")
ARCH_OPTIONS = ("-arch", "--gpu-architecture")
CODE_OPTIONS = ("-code", "--gpu-code")
_OPTIONS = (*GENCODE_OPTIONS, *ARCH_OPTIONS, *CODE_OPTIONS)

_VALUE = re.compile(
    r"""(?:arch=(?P<compute>compute_\w+),code=(?P<codes>\[[^\[\]"']+\]|\\?["'][^\[\]"'\\]+\\?["']|[^\[\]"',]+))
      | (?:code=(?P<codes2>[^\[\]"',]+),arch=(?P<compute2>compute_\w+))""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class ArchFlags:
    """What the arch flags of one nvcc command mean: distinct pairs in order, and what is wrong with the flags."""

    pairs: tuple[Pair, ...]
    problems: tuple[str, ...] = ()


def parse_gencode(value: str) -> tuple[Pair, ...] | None:
    """Read the value of a `-gencode`: `arch=compute_80,code=[sm_80,compute_80]`; None where it is not one."""
    match = _VALUE.fullmatch(value.strip())
    if match is None:
        return None
    codes = re.split(r"\s*,\s*", (match["codes"] or match["codes2"]).strip("[]\"'\\ "))
    try:
        compute = Arch.parse(match["compute"] or match["compute2"])
        return tuple(Pair(compute, DeviceCode.parse(code)) for code in codes)
    except InvalidArchList:
        return None


def format_pair(pair: Pair) -> str:
    """Return the value of a `-gencode` for `pair`: `arch=compute_90,code=sm_90`."""
    compute, code = pair.spelled
    return f"arch={compute},code={code}"


def parse_flags(flags: Sequence[str]) -> ArchFlags:
    """Read all arch flags among the arguments of an nvcc command.

    `problems` names what nvcc would refuse (an option without its value, a value without its option, an unknown arch)
    and what depends on the machine (`-arch=native`, `-arch=all`).
    """
    reading = _Reading()
    arguments = iter(flags)
    for flag in arguments:
        option, equals, value = flag.partition("=")
        if option in _OPTIONS:
            reading.option(option, value if equals else next(arguments, ""))
        else:
            reading.other(flag)
    reading.arch_and_code()
    return ArchFlags(tuple(dict.fromkeys(reading.pairs)), tuple(reading.problems))


@dataclass(slots=True)
class _Reading:
    pairs: list[Pair] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    arch: str = ""
    codes: list[str] = field(default_factory=list)

    def option(self, option: str, value: str) -> None:
        if not value or value.startswith("-"):
            self.problems.append(f"{option} without a value")
        elif option in ARCH_OPTIONS:
            self.arch = value
        elif option in CODE_OPTIONS:
            self.codes = value.strip("[]\"'").split(",")
        elif (pairs := parse_gencode(value)) is None:
            self.problems.append(f"{option} with the value {value!r}")
        else:
            self.pairs.extend(pairs)

    def other(self, flag: str) -> None:
        if parse_gencode(flag) is not None:
            self.problems.append(f"the value {flag!r} without -gencode")
        elif flag.startswith(tuple(f"{option} " for option in _OPTIONS)):
            self.problems.append(f"{flag!r} as one argument")

    def arch_and_code(self) -> None:
        """Add what `-arch` and `-code` mean together; they may stand in either order."""
        if not self.arch and not self.codes:
            return
        try:
            self.pairs.extend(_arch_pairs(self.arch, self.codes))
        except InvalidArchList:
            self.problems.append(f"-arch={self.arch}" + (f" -code={','.join(self.codes)}" if self.codes else ""))


def _arch_pairs(arch: str, codes: list[str]) -> Iterator[Pair]:
    code = DeviceCode.parse(arch)
    if codes:
        if not code.ptx:
            raise InvalidArchList(f"-arch={arch} beside -code is not virtual")
        yield from (Pair(code.arch, DeviceCode.parse(text)) for text in codes)
    else:
        if not code.ptx:
            yield Pair.of(code)
        yield Pair.of(DeviceCode(code.arch, ptx=True))
        if not code.ptx and code.arch.suffix:
            yield Pair.of(DeviceCode(code.arch.base, ptx=True))
