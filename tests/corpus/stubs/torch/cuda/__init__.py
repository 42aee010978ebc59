"""torch.cuda without a GPU, or with the one that `corpus.harness` shows."""

# ruff: noqa: ANN401, ARG001 - the signatures are those of torch

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from corpus.anything import answer

capability: tuple[int, int] | None = None
arch_list: tuple[str, ...] = ()
arch_list_without_gpu = True


def is_available() -> bool:
    """Tell whether there is a GPU."""
    return capability is not None


def device_count() -> int:
    """Count the GPUs."""
    return int(capability is not None)


def _require() -> tuple[int, int]:
    if capability is None:
        raise RuntimeError(
            "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver "
            "from http://www.nvidia.com/Download/index.aspx"
        )
    return capability


def init() -> None:
    """Raise where there is no GPU."""
    _require()


def current_device() -> int:
    """Return the GPU's number."""
    _require()
    return 0


def get_device_capability(device: object = None) -> tuple[int, int]:
    """Return (major, minor) of the visible GPU."""
    return _require()


def get_device_name(device: object = None) -> str:
    """Return a product name."""
    _require()
    return "NVIDIA stub"


def get_device_properties(device: object = None) -> SimpleNamespace:
    """Return what a device says of itself."""
    major, minor = _require()
    return SimpleNamespace(name="NVIDIA stub", major=major, minor=minor, multi_processor_count=132, total_memory=2**36)


def get_arch_list() -> list[str]:
    """Return what torch's own libraries hold."""
    return list(arch_list) if capability is not None or arch_list_without_gpu else []


def get_gencode_flags() -> str:
    """Return these as flags, with torch's own slip: it writes `compute=`."""
    pairs = [arch.split("_") for arch in get_arch_list()]
    return " ".join(f"-gencode compute=compute_{number},code={kind}_{number}" for kind, number in pairs)


def __getattr__(name: str) -> Any:
    return answer(name)
