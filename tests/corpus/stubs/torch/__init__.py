"""A stub of torch: what a `setup.py` asks of it. `corpus.harness` sets the versions."""

# ruff: noqa: ANN401 - the attributes are those of torch

from __future__ import annotations

from typing import Any

from corpus.anything import answer
from packaging.version import InvalidVersion, Version

from torch import version

#: What torch does not have, and a `setup.py` asks for to learn what machine it is on.
_ABSENT = frozenset({"npu", "musa", "mlu", "hpu", "is_mlu_available", "is_npu_available", "sdaa", "gcu", "ptpu"})


class TorchVersion(str):
    """A version that compares as one, with strings and tuples too (as `torch.torch_version`)."""

    __slots__ = ()

    def _compare(self, other: Any) -> int:
        text = ".".join(map(str, other)) if isinstance(other, tuple | list) else str(other)
        try:
            mine, theirs = Version(self), Version(text)
        except InvalidVersion:
            return (str(self) > text) - (str(self) < text)
        return (mine > theirs) - (mine < theirs)

    def __lt__(self, other: Any) -> bool:
        return self._compare(other) < 0

    def __le__(self, other: Any) -> bool:
        return self._compare(other) <= 0

    def __gt__(self, other: Any) -> bool:
        return self._compare(other) > 0

    def __ge__(self, other: Any) -> bool:
        return self._compare(other) >= 0

    def __eq__(self, other: object) -> bool:
        return self._compare(other) == 0

    def __ne__(self, other: object) -> bool:
        return self._compare(other) != 0

    __hash__ = str.__hash__


__version__ = TorchVersion(version.__version__)

from torch import _C, cuda, utils  # noqa: E402, F401 - they read the version

__config__ = answer("config")


def compiled_with_cxx11_abi() -> bool:
    """Tell which string type torch was compiled with."""
    return _C._GLIBCXX_USE_CXX11_ABI


def __getattr__(name: str) -> Any:
    if name in _ABSENT:
        raise AttributeError(f"module 'torch' has no attribute {name!r}")
    return answer(name)
