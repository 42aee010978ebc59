from __future__ import annotations

from collections.abc import Mapping

import pytest

from archpatch.arch.arch import Arch
from archpatch.builder.asked import Asked, Wish, ask_for, gpu_of
from archpatch.builder.gpus import DetectedGpu
from archpatch.errors import InvalidArchList, UnknownGpu, UsageError

NOTHING = Wish(where="the command line")
NO_CONFIG = Wish(where="[tool.archpatch]")
H200 = DetectedGpu(name="NVIDIA H200", arch=Arch(9, 0), driver="580", uuid="GPU-1")


def ask(
    *,
    arch: str | None = None,
    gpu: tuple[str, ...] = (),
    env: str | None = None,
    config: Wish = NO_CONFIG,
    cards: tuple[DetectedGpu, ...] = (),
    use_driver: bool = False,
) -> Asked:
    def detect(_: Mapping[str, str]) -> tuple[DetectedGpu, ...]:
        return cards

    environ = {} if env is None else {"TORCH_CUDA_ARCH_LIST": env}
    options = Wish(arch=arch, gpu=gpu, where="the command line")
    return ask_for([options], config, environ, use_driver=use_driver, detect=detect)


@pytest.mark.parametrize(
    ("asked", "request_", "source"),
    [
        (ask(arch="9.0"), "9.0", "--arch"),
        (ask(gpu=("h200", "l4")), "h200,l4", "--gpu"),
        (ask(gpu=("h200,l4",)), "h200,l4", "--gpu"),
        (ask(env="8.0;9.0+PTX"), "8.0;9.0+PTX", "env"),
        (ask(config=Wish(gpu=("l4",), where="[tool.archpatch]")), "l4", "config"),
        (ask(arch="9.0", env="8.0"), "9.0", "--arch"),
        (ask(gpu=("l4",), env="8.0"), "l4", "--gpu"),
        (ask(env="8.0", config=Wish(arch="9.0", where="[tool.archpatch]")), "8.0", "env"),
        (ask(env="", config=Wish(arch="9.0", where="[tool.archpatch]")), "9.0", "config"),
        (ask(env=" ", cards=(H200,), use_driver=True), "h200", "driver"),
        (ask(arch="native", cards=(H200,)), "h200", "--arch"),
        (ask(gpu=("native",), cards=(H200, H200)), "h200", "--gpu"),
        (ask(env="native", cards=(H200,)), "h200", "env"),
    ],
)
def test_who_is_heard(asked: Asked, request_: str, source: str) -> None:
    assert (str(asked.request), asked.source) == (request_, source)


def test_nothing_asked_is_no_request() -> None:
    assert ask() == Asked(request=None, source="none")
    assert ask(env="") == Asked(request=None, source="none")


def test_what_was_beaten_is_said() -> None:
    assert ask(arch="9.0", env="8.0 8.6").notes == ("the command line is used; TORCH_CUDA_ARCH_LIST (8.0 8.6) is not.",)
    assert ask(arch="9.0").notes == ()


def test_a_name_that_is_not_the_types_own_is_told() -> None:
    assert ask(gpu=("h20,H200", "rtx 4090")).notes == (
        "h20 is taken as h100 (9.0)",
        "rtx 4090 is taken as rtx-40 (8.9)",
    )
    assert ask(gpu=("NVIDIA H200", "native"), cards=(H200,)).notes == ()


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"arch": "9.0", "gpu": ("l4",)}, UsageError, "use one of the two"),
        ({"use_driver": True}, UsageError, "nothing was asked for, and no GPU is visible"),
        ({"env": "native"}, UsageError, "TORCH_CUDA_ARCH_LIST says native"),
        ({"env": "9"}, InvalidArchList, "TORCH_CUDA_ARCH_LIST '9'"),
        ({"arch": "9.0.a"}, InvalidArchList, "the command line '9.0.a'"),
        ({"gpu": ("h300",)}, UnknownGpu, "h300"),
    ],
)
def test_what_cannot_be_read_is_refused(given: dict[str, object], error: type[UsageError], says: str) -> None:
    with pytest.raises(error, match=says):
        ask(**given)  # type: ignore[arg-type]


def test_a_request_prints_its_parts() -> None:
    assert ask(env="8.0;9.0+PTX").to_json() == {"archs": ["8.0", "9.0+PTX"], "gpus": [], "source": "env"}
    assert ask(gpu=("h200",)).to_json() == {"archs": [], "gpus": ["h200"], "source": "--gpu"}
    assert ask().to_json() == {"archs": [], "gpus": [], "source": "none"}


def test_a_product_that_is_not_known_is_a_type_of_its_own() -> None:
    gpu = gpu_of(DetectedGpu(name="NVIDIA CMP 170HX", arch=Arch(8, 0), driver="580", uuid="GPU-2"))
    assert (gpu.name, gpu.arch) == ("cmp-170hx", Arch(8, 0))
    # A known name with another arch is another product.
    for name in ("NVIDIA H200", "NVIDIA H200 MIG 1g.18gb"):
        assert gpu_of(DetectedGpu(name=name, arch=Arch(9, 0), driver="", uuid="")).name == "h200"
    assert gpu_of(DetectedGpu(name="NVIDIA T4", arch=Arch(8, 9), driver="", uuid="")).arch == Arch(8, 9)
