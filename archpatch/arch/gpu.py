"""GPU types (`h200`, `rtx-4090`), their arch and the host CPUs that they come with."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from archpatch.arch.arch import Arch
from archpatch.errors import UnknownGpu

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Gpu", "GpuRequest", "find_gpu", "gpu_types"]

#: What a discrete card is sold for; types that come soldered to an Arm CPU name their own.
_ANY_HOST = ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU type: `name` is the folder's name in a wheelhouse, `arch` its compute capability (no suffix).

    `hosts` are the machine names (`platform.machine()`) of the CPUs that it comes with.
    """

    name: str
    arch: Arch
    hosts: tuple[str, ...] = _ANY_HOST
    aliases: tuple[str, ...] = ()
    products: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def taken_for(self, text: str) -> str | None:
        """Return what to tell where `text`, by which the type was found, is another name; None for its own."""
        own = _normalize(text) == _normalize(self.name)
        return None if own else f"{text} is taken as {self.name} ({self.arch})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """What must run: one or more GPU types, sorted by name."""

    gpus: tuple[Gpu, ...]

    @classmethod
    def of(cls, *names: str) -> GpuRequest:
        """Return the request for the GPU types `names`; raises `UnknownGpu`."""
        found = {gpu.name: gpu for gpu in map(find_gpu, names)}
        return cls(gpus=tuple(found[name] for name in sorted(found)))

    @property
    def archs(self) -> tuple[Arch, ...]:
        """The archs of the GPUs, each once."""
        return tuple(sorted({gpu.arch for gpu in self.gpus}))

    def __str__(self) -> str:
        return ",".join(gpu.name for gpu in self.gpus)


@lru_cache(maxsize=1)
def gpu_types() -> tuple[Gpu, ...]:
    """Return every GPU type known, in the order of `gpus.toml`."""
    data = tomllib.loads(Path(__file__).with_name("gpus.toml").read_text(encoding="utf-8"))
    return tuple(
        Gpu(
            name=name,
            arch=Arch.parse(entry["arch"]),
            hosts=tuple(entry.get("hosts", _ANY_HOST)),
            aliases=tuple(entry.get("aliases", ())),
            products=tuple(entry.get("products", ())),
        )
        for name, entry in data.items()
    )


def find_gpu(text: str) -> Gpu:
    """Return the GPU type for a type, an alias or a driver's product name.

    Case, spaces, hyphens and underscores do not matter: `H200`, `rtx 4090`, `NVIDIA H100 80GB HBM3`. Raises
    `UnknownGpu`, which lists the near misses.
    """
    wanted = _normalize(text)
    for gpu in gpu_types():
        if wanted in (_normalize(gpu.name), *map(_normalize, gpu.aliases)):
            return gpu
    product = _find_product(text)
    if product is not None:
        return product
    types = {name: gpu.name for gpu in gpu_types() for name in (gpu.name, *gpu.aliases)}
    close = dict.fromkeys(types[name] for name in get_close_matches(wanted, types, n=3, cutoff=0.5))
    hint = f"Did you mean {' or '.join(close)}? " if close else ""
    raise UnknownGpu(
        f"{text!r} is no known GPU type",
        remedy=f"{hint}Known are: {', '.join(gpu.name for gpu in gpu_types())}.",
    )


def _find_product(text: str) -> Gpu | None:
    """Return the type whose product name starts `text`, the longest one first, so that L40S is no L4.

    What follows (`80GB HBM3`, `Laptop GPU`) must not name another type: `h200 l4` is two, and two is no name.
    """
    words = _product_words(text)
    matches = [
        (len(product), gpu, words[len(product) :])
        for gpu in gpu_types()
        for product in map(_product_words, gpu.products)
        if _starts_with(words, product)
    ]
    if not matches:
        return None
    _, gpu, rest = max(matches, key=lambda match: match[0])
    names = {"rtx", *(_normalize(name) for each in gpu_types() for name in (each.name, *each.aliases))}
    return None if names & set(re.split(r"[^a-z0-9]+", rest)) or re.search(r"[,;]", rest) else gpu


def _product_words(text: str) -> str:
    """Return a product's name as it is compared: shops leave out the maker and the brand."""
    return re.sub(r"^(?:nvidia\s+)?(?:geforce\s+)?", "", text.strip().lower())


def _starts_with(text: str, product: str) -> bool:
    """Whether `text` starts with `product` as whole words; a series (`geforce rtx 40`) takes two digits more."""
    series = r"\d\d" if re.search(r"rtx \d0$", product) else ""
    return re.match(re.escape(product) + series + r"(?![0-9a-z])", text) is not None


def _normalize(text: str) -> str:
    return re.sub(r"^nvidia|[\s_-]+", "", text.strip().lower())
