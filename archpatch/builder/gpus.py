"""The GPUs that a CUDA program started here would see, asked from the driver; torch is never imported."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from archpatch.arch.arch import Arch
from archpatch.builder.questions import Ask, ask

__all__ = ["DetectedGpu", "visible_gpus"]

_QUERY = ("nvidia-smi", "--query-gpu=uuid,name,compute_cap,driver_version,mig.mode.current", "--format=csv,noheader")


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedGpu:
    """A GPU of this machine: the driver's product name, its arch, the driver's version, its UUID.

    Of a part of a GPU (MIG) the name is its own (`NVIDIA H100 80GB HBM3 MIG 1g.10gb`), for it is another machine to
    whatever measures times; the UUID is the whole one's.
    """

    name: str
    arch: Arch
    driver: str
    uuid: str


def visible_gpus(environ: Mapping[str, str], *, ask: Ask = ask) -> tuple[DetectedGpu, ...]:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` leaves, in its order; () where there is no driver.

    Asked are NVML (the extra `gpu`), else `nvidia-smi`. An index counts as NVML counts, by PCI bus: where cards of
    several archs are mixed and `CUDA_DEVICE_ORDER` is unset, CUDA itself puts the fastest first.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return tuple(select_visible(from_nvidia_smi(ask), environ.get("CUDA_VISIBLE_DEVICES")))
    return from_nvml(nvml, environ.get("CUDA_VISIBLE_DEVICES"))


def from_nvml(nvml: Any, visible: str | None) -> tuple[DetectedGpu, ...]:  # noqa: ANN401 - the untyped module pynvml
    """Return the GPUs that `visible` leaves, asked through `nvml` (the module `pynvml`)."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
        handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        cards = [_card(nvml, handle, driver) for handle in handles]
        if visible is None:
            return tuple(cards)
        words = [_Word.read(nvml, word) for word in visible.split(",")]
        chosen = select_visible(cards, ",".join(word.card for word in words))
        return tuple(replace(card, name=word.part or card.name) for card, word in zip(chosen, words, strict=False))
    finally:
        nvml.nvmlShutdown()


def from_nvidia_smi(ask: Ask = ask) -> tuple[DetectedGpu, ...]:
    """Return all GPUs, asked from `nvidia-smi`, which does not say how large the parts of a GPU (MIG) are."""
    return tuple(parse_nvidia_smi(ask(_QUERY).stdout))


def parse_nvidia_smi(table: str) -> Iterator[DetectedGpu]:
    """Yield a GPU per line `uuid, name, 9.0, driver, Disabled`; other lines (a failure's message) are no GPUs."""
    for line in table.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == len(("uuid", "name", "arch", "driver", "mig")) and fields[2].replace(".", "", 1).isdigit():
            uuid, name, capability, driver, mig = fields
            major, _, minor = capability.partition(".")
            name = f"{name} MIG" if mig == "Enabled" else name
            yield DetectedGpu(name=name, arch=Arch(int(major), int(minor)), driver=driver, uuid=uuid)


def select_visible(cards: Iterable[DetectedGpu], visible: str | None) -> Iterator[DetectedGpu]:
    """Yield the cards that `CUDA_VISIBLE_DEVICES=visible` leaves: indices, or UUIDs, which may be cut short.

    Unset leaves all; the first word that names no card, or more than one, hides itself and all that follow, as the
    CUDA C++ Programming Guide says ("CUDA Environment Variables").
    """
    cards = list(cards)
    if visible is None:
        yield from cards
        return
    for word in map(str.strip, visible.split(",")):
        if word.isdigit():
            named = cards[int(word) : int(word) + 1]
        else:
            named = [card for card in cards if word.startswith("GPU-") and card.uuid.startswith(word)]
        if len(named) != 1:
            return
        yield named[0]


def _card(nvml: Any, handle: Any, driver: str) -> DetectedGpu:  # noqa: ANN401 - as above
    return DetectedGpu(
        name=nvml.nvmlDeviceGetName(_first_part(nvml, handle)),
        arch=Arch(*nvml.nvmlDeviceGetCudaComputeCapability(handle)),
        driver=driver,
        uuid=nvml.nvmlDeviceGetUUID(handle),
    )


def _first_part(nvml: Any, handle: Any) -> Any:  # noqa: ANN401 - as above
    """Return the part of a divided GPU that a program gets which names none, or the GPU itself where it is whole."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
        return nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0) if current else handle
    except nvml.NVMLError:
        return handle


@dataclass(frozen=True, slots=True, kw_only=True)
class _Word:
    """A word of `CUDA_VISIBLE_DEVICES`: what names the card, and the name of the MIG part, None for a whole GPU."""

    card: str
    part: str | None = None

    @classmethod
    def read(cls, nvml: Any, word: str) -> _Word:  # noqa: ANN401 - as above
        """Ask which GPU a MIG part belongs to; any other word, and an unknown part, stays as it is."""
        if not word.strip().startswith("MIG-"):
            return cls(card=word)
        try:
            part = nvml.nvmlDeviceGetHandleByUUID(word.strip())
            whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
            return cls(card=str(nvml.nvmlDeviceGetUUID(whole)), part=str(nvml.nvmlDeviceGetName(part)))
        except nvml.NVMLError:
            return cls(card=word)
