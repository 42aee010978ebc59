"""Where a wheel lies in a wheelhouse, and what its local version says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.version import Version

from archpatch.arch.arch import DeviceCode, in_order

__all__ = [
    "ANY_PYTHON",
    "HIDDEN",
    "INDEX",
    "Stack",
    "arch_folder",
    "code_tags",
    "gpu_folder",
    "local_version",
    "relative_link",
]

#: Everything that is no wheel and no record: locks and the memo. Readers skip it.
HIDDEN = ".archpatch"
#: The pages of the static index.
INDEX = "index"
#: What a record has in the place of an ABI (`cp311`) for a wheel that any Python 3 takes.
ANY_PYTHON = "py3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The torch (full version, `2.14.1+cu130`) and the CUDA (`13.0`) that a wheel is compiled against."""

    torch: str
    cuda: str

    @property
    def cuda_tag(self) -> str:
        """CUDA as torch's own wheels spell it: `cu130`."""
        return "cu" + self.cuda.replace(".", "")

    @property
    def folder(self) -> str:
        """The folder's name: pip cannot tell wheels for different torch apart, so each has its own."""
        name = "torch" + self.torch.replace("+", "-")
        return name if self.cuda_tag in name else f"{name}-{self.cuda_tag}"


def code_tags(codes: Iterable[DeviceCode]) -> str:
    """Return device code as a folder is called for it: `sm80-sm90-ptx90`."""
    return "-".join(code.tag for code in in_order(codes))


def local_version(codes: Iterable[DeviceCode], stack: Stack) -> str:
    """Return the local version that says what is inside: `cu130torch2.14.1sm80.sm90.ptx90` (PEP 440)."""
    tags = ".".join(code.tag for code in in_order(codes))
    return f"{stack.cuda_tag}torch{Version(stack.torch).public}{tags}"


def arch_folder(codes: Iterable[DeviceCode], stack: Stack) -> PurePosixPath:
    """Return the folder of the wheels that hold exactly `codes`: `sm80-sm90-ptx90/torch2.14.1-cu130`."""
    return PurePosixPath(code_tags(codes)) / stack.folder


def gpu_folder(gpu: str, stack: Stack) -> PurePosixPath:
    """Return the folder of one GPU type: what pip's `--find-links` takes."""
    return PurePosixPath("gpu") / gpu / stack.folder


def relative_link(target: Path, link: Path) -> Path:
    """Return what a link at `link` has to say to point at `target`, so that a wheelhouse can be moved."""
    return Path(os.path.relpath(target, link.parent))
