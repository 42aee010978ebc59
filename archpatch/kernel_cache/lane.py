"""Lanes: what has to be the same for one job's kernels to be another's: GPU, torch, CUDA, Triton, Python, host CPU."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath

from archpatch.arch.arch import Arch
from archpatch.arch.gpu import find_gpu
from archpatch.builder.gpus import DetectedGpu, visible_gpus
from archpatch.builder.interpreter import Interpreter, probe
from archpatch.errors import UsageError

__all__ = ["NO_GPU", "Lane", "Wanted", "find_lane"]

NO_GPU = "gpu-none"
#: Where a lane keeps what is valid for every GPU of the arch.
_ANY = "any"
#: The distributions that hold Triton.
_TRITON = ("triton", "pytorch-triton", "triton-nightly")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What decides whether entries are valid, as it is written in folder names and keys.

    `gpu` is the product's name (`h200`, `h100-80gb-hbm3`) and `arch` its arch (`sm90`), both `gpu-none` without one,
    and joined by `-` where GPUs of several kinds are visible. `torch` is the full version, `cuda` the one that torch
    was built with, `python` the ABI (`cp311`), `machine` the host's CPU; `none` stands for what is not there.
    """

    gpu: str
    arch: str
    torch: str
    cuda: str
    triton: str
    python: str
    machine: str

    @property
    def stack(self) -> str:
        """Everything but the GPU: `torch2.14.1-cu130-triton3.8.0-cp311-x86_64`."""
        torch, cuda = _word("torch", self.torch.replace("+", "-")), _word("cu", self.cuda.replace(".", ""))
        words = (torch, "" if cuda in torch else cuda, _word("triton", self.triton), self.python, self.machine)
        return "-".join(filter(None, words))

    @property
    def parts(self) -> tuple[str, ...]:
        """What a key names of the lane: the GPU, its arch, the stack."""
        return (self.gpu, self.stack) if self.gpu == NO_GPU else (self.gpu, self.arch, self.stack)

    @property
    def timed(self) -> PurePosixPath:
        """The folder for what depends on the GPU's name, below the root."""
        return PurePosixPath(self.stack, self.arch, _ANY if self.gpu == NO_GPU else self.gpu)

    @property
    def shared(self) -> PurePosixPath:
        """The folder for what depends on the arch alone, below the root."""
        return PurePosixPath(self.stack, self.arch, _ANY)

    def __str__(self) -> str:
        return str(PurePosixPath(self.stack, NO_GPU) if self.gpu == NO_GPU else self.timed)

    def to_json(self) -> dict[str, str]:
        """Return the lane's fields, as manifests and keys hold them."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Lane:
        """Read what `to_json` wrote. Raises `ValueError` for anything else."""
        names = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or data.keys() != names or not all(isinstance(data[name], str) for name in names):
            raise ValueError("no lane")
        return cls(**data)

    def difference(self, other: Lane) -> str:
        """Say in what `other`, which an archive may tell, differs: `arch is sm121, not sm120`."""
        mine, theirs = self.to_json(), other.to_json()
        # A line that ends early is the beginning of another, which a CI may take for a command.
        return ", ".join(
            f"{name} is {ascii(theirs[name])[1:-1]}, not {mine[name]}" for name in mine if mine[name] != theirs[name]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a user says of the lane: a GPU type or product, full versions of torch and Triton, an interpreter.

    What is None is looked up: the GPUs that are visible, the versions installed for the interpreter, this interpreter.
    """

    gpu: str | None = None
    torch: str | None = None
    triton: str | None = None
    python: Path | None = None


def find_lane(
    wanted: Wanted | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    detect: Callable[[Mapping[str, str]], Sequence[DetectedGpu]] = visible_gpus,
) -> Lane:
    """Return the lane of this machine, or of the one that `wanted` describes; torch is never imported.

    Raises `UnknownGpu`, and `UsageError` for a version of torch that does not name its CUDA, or of Triton that is none.
    """
    wanted = wanted or Wanted()
    interpreter = probe(wanted.python)
    gpu, arch = _gpu(wanted.gpu, environ, detect)
    torch, cuda = _torch(wanted.torch, interpreter)
    return Lane(
        gpu=gpu,
        arch=arch,
        torch=torch,
        cuda=cuda,
        triton=_triton(wanted.triton, interpreter),
        python=interpreter.abi_tag,
        machine=interpreter.machine,
    )


def _gpu(
    wanted: str | None, environ: Mapping[str, str], detect: Callable[[Mapping[str, str]], Sequence[DetectedGpu]]
) -> tuple[str, str]:
    if wanted is not None:
        return _slug(wanted), _tag(find_gpu(wanted).arch)
    cards = detect(environ)
    names = "-".join(sorted({_slug(card.name) for card in cards}))
    return names or NO_GPU, "-".join(_tag(arch) for arch in sorted({card.arch for card in cards})) or NO_GPU


def _slug(name: str) -> str:
    """Return a GPU's name as folders have it: `NVIDIA H100 80GB HBM3` becomes `h100-80gb-hbm3`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia")).strip("-")


def _tag(arch: Arch) -> str:
    return f"sm{arch.number}"


def _word(name: str, version: str) -> str:
    return f"no-{name}" if version == "none" else name + version


def _torch(wanted: str | None, interpreter: Interpreter) -> tuple[str, str]:
    """Return torch's full version and its CUDA release, which a full version's local part names (`+cu130`)."""
    if wanted is None:
        found = interpreter.torch
        return (found.version, found.cuda or "none") if found is not None else ("none", "none")
    match = re.fullmatch(r"\d[\w.]*\+(?:cpu|cu(\d+)(\d))[\w.]*", wanted)
    if match is None:
        raise UsageError(f"--torch {wanted}: that names no CUDA", remedy="Write the full version: 2.14.1+cu130.")
    return wanted, f"{match[1]}.{match[2]}" if match[1] else "none"


def _triton(wanted: str | None, interpreter: Interpreter) -> str:
    """Return Triton's version, which names a folder."""
    if wanted is None:
        return next(filter(None, map(interpreter.version_of, _TRITON)), "none")
    if re.fullmatch(r"\d[\w.]*(\+[\w.]+)?", wanted) is None:
        raise UsageError(f"--triton {wanted}: that is no version", remedy="Write it as pip shows it: 3.8.0.")
    return wanted
