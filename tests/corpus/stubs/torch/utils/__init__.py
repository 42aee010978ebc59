"""torch.utils, of which a `setup.py` uses `cpp_extension`."""

# ruff: noqa: ANN401 - the attributes are those of torch

from __future__ import annotations

from typing import Any

from corpus.anything import answer

cmake_prefix_path = "/absent/torch/share/cmake"


def __getattr__(name: str) -> Any:
    if name == "cpp_extension":
        raise AttributeError(name)
    return answer(name)
