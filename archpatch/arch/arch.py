"""GPU compute architectures, the device code compiled for them, and the arch lists that ask for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from archpatch.errors import InvalidArchList

__all__ = ["Arch", "ArchRequest", "DeviceCode", "Pair", "in_order"]

#: Every arch that nvcc compiles or has compiled for, from CUDA 8's release notes to CUDA 13.0's `--list-gpu-code`,
#: and torch 2.14's 10.7. A name outside this table is a typo more often than a GPU.
KNOWN: Final = frozenset(
    {(3, 5), (3, 7), (5, 0), (5, 2), (5, 3), (6, 0), (6, 1), (6, 2), (7, 0), (7, 2), (7, 5)}
    | {(8, 0), (8, 6), (8, 7), (8, 8), (8, 9), (9, 0), (10, 0), (10, 1), (10, 3), (10, 7), (11, 0), (12, 0), (12, 1)}
)

#: The integrated GPUs of the Tegra line: their cubins run on no other GPU, and no other's cubins on them.
TEGRA: Final = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)})

#: torch's names (`torch.utils.cpp_extension._get_cuda_arch_flags`, torch 2.14), lower case.
NAMED: Final = {
    "kepler+tesla": "3.7",
    "kepler": "3.5+PTX",
    "maxwell+tegra": "5.3",
    "maxwell": "5.0;5.2+PTX",
    "pascal": "6.0;6.1+PTX",
    "volta+tegra": "7.2",
    "volta": "7.0+PTX",
    "turing": "7.5+PTX",
    "ampere+tegra": "8.7",
    "ampere": "8.0;8.6+PTX",
    "ada": "8.9+PTX",
    "hopper": "9.0+PTX",
    "blackwell+tegra": "11.0",
    "blackwell": "10.0;10.3;12.0;12.1+PTX",
    "rubin": "10.7+PTX",
}

_ARCH = re.compile(
    r"(?:(?:sm|compute)_)?(?:(?P<major>\d+)\.(?P<minor>\d)|(?P<number>\d{2,3}))(?P<suffix>[af]?)", re.ASCII
)
_FIRST_WITH_SUFFIX: Final = (9, 0)


@dataclass(frozen=True, slots=True, order=True)
class Arch:
    """A compute architecture: `9.0`, `9.0a` (this arch only) and `10.0f` (its family) are three different ones."""

    major: int
    minor: int
    suffix: str = ""

    @classmethod
    def parse(cls, text: str) -> Arch:
        """Read `9.0a`, `90a`, `sm_90a` or `compute_90a`; raise `InvalidArchList` for anything else."""
        match = _ARCH.fullmatch(text.lower())
        if match is None:
            raise InvalidArchList(f"{text!r} is not a GPU arch", remedy=_remedy(text))
        digits = match["number"]
        base = (int(digits[:-1]), int(digits[-1])) if digits else (int(match["major"]), int(match["minor"]))
        suffix = match["suffix"]
        if base not in KNOWN:
            raise InvalidArchList(f"{text!r} is no known GPU arch", remedy=_remedy(text))
        if suffix and base < _FIRST_WITH_SUFFIX:
            raise InvalidArchList(f"{text!r} does not exist: suffixes begin at 9.0", remedy=f"Write {cls(*base)}.")
        return cls(*base, suffix)

    @property
    def base(self) -> Arch:
        """The same arch without its suffix: what a GPU reports as its compute capability."""
        return Arch(self.major, self.minor)

    @property
    def number(self) -> str:
        """The spelling of nvcc: `90a` for 9.0a."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def is_tegra(self) -> bool:
        """Whether this is an integrated GPU of the Tegra line (Jetson, Orin, Thor)."""
        return (self.major, self.minor) in TEGRA

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}"


@dataclass(frozen=True, slots=True, order=True)
class DeviceCode:
    """What one entry of a binary holds: a cubin (`sm_90a`) or PTX (`compute_90`) of one arch."""

    arch: Arch
    ptx: bool = False

    @classmethod
    def parse(cls, text: str) -> DeviceCode:
        """Read `sm_90a` or `compute_90`; raise `InvalidArchList` for anything else."""
        kind = text.partition("_")[0]
        if kind not in ("sm", "compute"):
            raise InvalidArchList(f"{text!r} is no device code", remedy="Write sm_90 for a cubin, compute_90 for PTX.")
        return cls(Arch.parse(text), ptx=kind == "compute")

    @property
    def tag(self) -> str:
        """The spelling in file names and local versions: `sm90a`, `ptx90`."""
        return f"{'ptx' if self.ptx else 'sm'}{self.arch.number}"

    def __str__(self) -> str:
        return f"{'compute' if self.ptx else 'sm'}_{self.arch.number}"


def in_order(codes: Iterable[DeviceCode]) -> tuple[DeviceCode, ...]:
    """Return cubins by arch, then PTX: the order of local versions and folders."""
    return tuple(sorted(codes, key=lambda code: (code.ptx, code.arch)))


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """One (compute, code) of a `-gencode`: compile for the virtual arch `compute`, then store `code`."""

    compute: Arch
    code: DeviceCode

    @classmethod
    def of(cls, code: DeviceCode) -> Pair:
        """Return the plain pair for `code`: `compute_90,sm_90`, or `compute_90,compute_90` for PTX."""
        return cls(code.arch, code)

    @property
    def device_code(self) -> DeviceCode:
        """What nvcc stores for this pair: the suffix of `compute` counts (`compute_100f,code=sm_100` is `sm_100f`)."""
        arch = self.code.arch
        if arch.suffix or not self.compute.suffix:
            return self.code
        return DeviceCode(Arch(arch.major, arch.minor, self.compute.suffix), ptx=self.code.ptx)

    @property
    def spelled(self) -> tuple[str, str]:
        """The two words as nvcc takes them: `("compute_90", "sm_90")`."""
        return (f"compute_{self.compute.number}", str(self.code))

    def __str__(self) -> str:
        return ",".join(self.spelled)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchRequest:
    """What to compile: the archs whose cubins are wanted, and those among them whose PTX is wanted too."""

    archs: tuple[Arch, ...]
    ptx: tuple[Arch, ...] = ()

    @classmethod
    def parse(cls, text: str, *, origin: str = "the arch list") -> ArchRequest:
        """Read an arch list as torch does, and more: `8.0;9.0+PTX`, `sm_90, 100`, `Hopper`.

        Separators are spaces, newlines, `;` and `,`, repeated or trailing. Raises `InvalidArchList` where nothing or
        something else than archs is in it; `native` is the caller's to resolve, since it takes a look at the machine.
        """
        words = [word for word in re.split(r"[\s;,]+", text) if word]
        if not words:
            raise InvalidArchList(f"{origin} names no arch: {text!r}", remedy="Write for example 9.0 or 8.0;9.0+PTX.")
        try:
            parsed = [item for word in words for item in _parse_word(word)]
        except InvalidArchList as error:
            raise InvalidArchList(f"{origin} {text!r}: {error.message}", remedy=error.remedy) from None
        return cls(
            archs=tuple(sorted({arch for arch, _ in parsed})),
            ptx=tuple(sorted({arch for arch, with_ptx in parsed if with_ptx})),
        )

    @property
    def device_code(self) -> tuple[DeviceCode, ...]:
        """All that is asked for: a cubin per arch, then PTX where it was asked for."""
        return (*(DeviceCode(arch) for arch in self.archs), *(DeviceCode(arch, ptx=True) for arch in self.ptx))

    def __str__(self) -> str:
        """Return the list in torch's grammar: `8.0;9.0+PTX`."""
        return ";".join(f"{arch}+PTX" if arch in self.ptx else str(arch) for arch in self.archs)


def _parse_word(word: str) -> list[tuple[Arch, bool]]:
    """Read one word of an arch list into (arch, with PTX); a name may stand for several."""
    lowered = word.lower()
    name = max((name for name in NAMED if lowered.startswith(name)), key=len, default=None)
    if name is None:
        return [_parse_item(word)]
    # torch replaces names as text, so what follows a name (`a`, `+PTX`) belongs to its last arch.
    *others, last = NAMED[name].split(";")
    rest = lowered[len(name) :]
    if last.endswith("+PTX") and rest in ("", "+ptx"):
        rest = ""
    return [_parse_item(item) for item in (*others, last + rest)]


def _parse_item(item: str) -> tuple[Arch, bool]:
    arch, plus, kind = item.partition("+")
    if plus and kind.lower() != "ptx":
        raise InvalidArchList(f"{item!r} is not a GPU arch", remedy=f"After + only PTX may follow: {arch}+PTX.")
    return Arch.parse(arch), bool(plus)


def _remedy(text: str) -> str:
    """Tell what was probably meant by `text`."""
    if text.isdecimal() and (int(text), 0) in KNOWN:
        return f"Write {text}.0; in YAML put it into quotes ('{text}.0'), or the .0 is lost."
    spelled = re.fullmatch(r"(\d+\.\d)\.?_?-?([af]?)", text.lower())
    if spelled and spelled[0] != spelled[1] + spelled[2]:
        return f"Write {spelled[1]}{spelled[2]}."
    return f"Write it like 9.0, 9.0a, 10.0f or sm_90. Known are: {_known()}."


def _known() -> str:
    return ", ".join(str(Arch(*base)) for base in sorted(KNOWN))
