"""What is asked of each file: the requests, the policies and the CUDA releases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import OnMissing, Request
from corpus.toolkits import TOOLKITS, Toolkit

__all__ = ["ON_MISSING", "REQUESTS", "Matrix", "Question", "parse_request"]

REQUESTS = (
    *("7.5", "8.0", "8.6", "8.9", "9.0", "9.0a", "10.0", "10.0a", "10.3", "12.0", "12.1", "8.0;9.0+PTX", "12.0+PTX"),
    *("--gpu l4", "--gpu h200", "--gpu b300"),
)
ON_MISSING = tuple(OnMissing)


def parse_request(text: str) -> Request:
    """Read `9.0;10.0+PTX`, or `--gpu h200`."""
    if text.startswith("--gpu"):
        return GpuRequest.of(*text.removeprefix("--gpu").strip(" =").split(","))
    return ArchRequest.parse(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One cell of the matrix; `text` is the request as it is written."""

    text: str
    on_missing: OnMissing
    toolkit: Toolkit

    @property
    def request(self) -> Request:
        """The request as archpatch has it."""
        return parse_request(self.text)

    @property
    def arch_list(self) -> str:
        """The value of `TORCH_CUDA_ARCH_LIST` for it, as `archpatch build` sets it."""
        request = self.request
        return str(request) if isinstance(request, ArchRequest) else ";".join(map(str, request.archs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What is asked of each file; the default is all of it."""

    requests: tuple[str, ...] = REQUESTS
    on_missing: tuple[OnMissing, ...] = ON_MISSING
    toolkits: tuple[Toolkit, ...] = tuple(TOOLKITS.values())

    def __iter__(self) -> Iterator[Question]:
        for toolkit in self.toolkits:
            for text in self.requests:
                for on_missing in self.on_missing:
                    yield Question(text=text, on_missing=on_missing, toolkit=toolkit)
