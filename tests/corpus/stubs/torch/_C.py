"""What torch's binary module says of itself."""

# ruff: noqa: ANN401, N999 - the name is that of torch

from __future__ import annotations

from typing import Any

from corpus.anything import answer

_GLIBCXX_USE_CXX11_ABI = True
_PYBIND11_COMPILER_TYPE = "_gcc"
_PYBIND11_STDLIB = "_libstdcpp"
_PYBIND11_BUILD_ABI = "_cxxabi1018"


def __getattr__(name: str) -> Any:
    return answer(name)
