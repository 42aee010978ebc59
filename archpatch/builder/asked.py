"""Where a request comes from: options, the environment, the project's settings, or the GPUs that are there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import Gpu, GpuRequest, find_gpu
from archpatch.arch.selection import Request
from archpatch.builder.gpus import DetectedGpu, visible_gpus
from archpatch.errors import UnknownGpu, UsageError

__all__ = ["Asked", "Source", "Wish", "ask_for", "gpu_of"]

Source = Literal["--arch", "--gpu", "env", "config", "driver", "none"]
VARIABLE = "TORCH_CUDA_ARCH_LIST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """An arch list or GPU types as somebody wrote them; `where` names the place for messages.

    `source` says what kind of place that is; None stands for the option itself, `--arch` or `--gpu`.
    """

    arch: str | None = None
    gpu: tuple[str, ...] = ()
    where: str
    source: Source | None = None

    def __bool__(self) -> bool:
        return bool(self.arch and self.arch.strip()) or bool(self.gpu)

    @property
    def types(self) -> tuple[str, ...]:
        """The GPU types, one by one: a text may hold several, with commas between them."""
        return tuple(name.strip() for word in self.gpu for name in word.split(",") if name.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, where it comes from, and what a person should know about that."""

    request: Request | None
    source: Source
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return `{archs, gpus, source}` as the command line prints it; archs are spelled `9.0+PTX`."""
        request = self.request
        return {
            "archs": str(request).split(";") if isinstance(request, ArchRequest) else [],
            "gpus": [gpu.name for gpu in request.gpus] if isinstance(request, GpuRequest) else [],
            "source": self.source,
        }


def ask_for(
    options: Sequence[Wish],
    config: Wish,
    environ: Mapping[str, str],
    *,
    use_driver: bool = False,
    detect: Callable[[Mapping[str, str]], Sequence[DetectedGpu]] = visible_gpus,
) -> Asked:
    """Return what is asked for: `options`, then `TORCH_CUDA_ARCH_LIST`, then `config`; empty counts as unset.

    With nothing set, `use_driver` asks for the GPUs that are there. `native` stands for these anywhere. Raises
    `UsageError` for an arch list beside GPU types, and where `native` or `use_driver` finds no GPU.
    """
    variable = Wish(arch=environ.get(VARIABLE), where=VARIABLE, source="env")
    wishes = [wish for wish in (*options, variable, config) if wish]
    if not wishes:
        if not use_driver:
            return Asked(request=None, source="none")
        return Asked(request=_native("nothing was asked for", environ, detect), source="driver")
    chosen, *beaten = wishes
    if chosen.arch and chosen.gpu:
        raise UsageError(
            f"{chosen.where}: an arch list and a GPU type are both given",
            remedy="--arch says which archs, --gpu what must run: use one of the two.",
        )
    notes = [f"{chosen.where} is used; {wish.where} ({_text(wish)}) is not." for wish in beaten]
    source = "config" if chosen is config else chosen.source or _option(chosen)
    request = _read(chosen, environ, detect)
    notes += filter(None, (_find(name).taken_for(name) for name in chosen.types if name.lower() != "native"))
    return Asked(request=request, source=source, notes=tuple(notes))


def gpu_of(card: DetectedGpu) -> Gpu:
    """Return the type of a detected GPU; a product that is not known becomes a type of its own, by its arch."""
    try:
        known = find_gpu(card.name)
    except UnknownGpu:
        known = None
    if known is not None and known.arch == card.arch:
        return known
    name = re.sub(r"[^a-z0-9]+", "-", card.name.lower().removeprefix("nvidia")).strip("-")
    return Gpu(name=name or f"sm{card.arch.number}", arch=card.arch)


def _read(wish: Wish, environ: Mapping[str, str], detect: Callable[..., Sequence[DetectedGpu]]) -> Request:
    if not wish.gpu:
        if (wish.arch or "").strip().lower() == "native":
            return _native(f"{wish.where} says native", environ, detect)
        return ArchRequest.parse(wish.arch or "", origin=wish.where)
    names = wish.types
    if not names:
        raise UsageError(f"{wish.where} names no GPU type", remedy="Write for example h200, or h200,l4.")
    here = _native(f"{wish.where} says native", environ, detect).gpus if "native" in map(str.lower, names) else ()
    found = {gpu.name: gpu for gpu in (*here, *(_find(name) for name in names if name.lower() != "native"))}
    return GpuRequest(gpus=tuple(found[name] for name in sorted(found)))


def _find(name: str) -> Gpu:
    try:
        return find_gpu(name)
    except UnknownGpu as error:
        raise UnknownGpu(error.message, remedy=f"{error.remedy} Or name archs with --arch.") from None


def _native(why: str, environ: Mapping[str, str], detect: Callable[..., Sequence[DetectedGpu]]) -> GpuRequest:
    gpus = {gpu.name: gpu for gpu in map(gpu_of, detect(environ))}
    if not gpus:
        raise UsageError(
            f"{why}, and no GPU is visible here",
            remedy="Name what to build for: --gpu h200, or --arch 9.0, or set TORCH_CUDA_ARCH_LIST.",
        )
    return GpuRequest(gpus=tuple(gpus[name] for name in sorted(gpus)))


def _option(wish: Wish) -> Source:
    return "--gpu" if wish.gpu else "--arch"


def _text(wish: Wish) -> str:
    return ",".join(wish.gpu) or (wish.arch or "").strip()
