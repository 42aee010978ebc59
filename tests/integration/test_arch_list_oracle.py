"""torch's own parser decides what an arch list means."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from archpatch.arch.arch import ArchRequest, DeviceCode
from archpatch.errors import InvalidArchList

pytestmark = pytest.mark.integration

NAMES = [
    *("Kepler+Tesla", "Kepler", "Maxwell+Tegra", "Maxwell", "Pascal", "Volta+Tegra", "Volta", "Turing"),
    *("Ampere+Tegra", "Ampere", "Ada", "Hopper", "Blackwell+Tegra", "Blackwell", "Rubin"),
]
ARCHS = [
    *("3.5", "3.7", "5.0", "5.2", "5.3", "6.0", "6.1", "6.2", "7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.9"),
    *(
        "9.0",
        "9.0a",
        "10.0",
        "10.0a",
        "11.0",
        "11.0a",
        "10.3",
        "10.3a",
        "10.7",
        "10.7a",
        "12.0",
        "12.0a",
        "12.1",
        "12.1a",
    ),
]
WORDS = [*NAMES, *ARCHS, *(f"{word}+PTX" for word in (*NAMES, *ARCHS)), *(f"{name}a" for name in NAMES)]


@pytest.fixture(scope="module")
def torch_codes():
    """Return torch's reading of a list: the device code it asks nvcc for, or None where it refuses."""
    cpp_extension = pytest.importorskip("torch.utils.cpp_extension")
    patch = pytest.MonkeyPatch()

    def read(text: str) -> frozenset[DeviceCode] | None:
        patch.setenv("TORCH_CUDA_ARCH_LIST", text)
        try:
            flags = cpp_extension._get_cuda_arch_flags()
        except ValueError:
            return None
        return frozenset(DeviceCode.parse(re.fullmatch(r".*code=(\w+)", flag)[1]) for flag in flags)

    yield read
    patch.undo()


def lists() -> list[str]:
    chance = random.Random(625)  # noqa: S311 - a fixed sample
    pairs = [f"{one}{chance.choice('; ')}{other}" for one, other in itertools.product(WORDS, repeat=2)]
    longer = [chance.choice("; ").join(chance.choices(WORDS, k=chance.randint(3, 7))) for _ in range(2000)]
    return [*WORDS, *pairs, *longer]


def test_every_list_that_torch_accepts_means_the_same(torch_codes) -> None:  # noqa: ANN001
    accepted = 0
    for text in lists():
        expected = torch_codes(text)
        if expected is not None:
            accepted += 1
            assert frozenset(ArchRequest.parse(text).device_code) == expected, text
    assert accepted > 2000


@pytest.mark.parametrize("text", ["9.0.a", ";", "8.0+SASS", "9", "Ampere8.0", "9.1"])
def test_these_are_refused_by_both(text: str, torch_codes) -> None:  # noqa: ANN001
    assert torch_codes(text) is None
    with pytest.raises(InvalidArchList):
        ArchRequest.parse(text)
