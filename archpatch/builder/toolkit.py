"""The CUDA toolkit that compiles: the machine's, a named folder, or NVIDIA's wheels; and the environment it needs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from packaging.version import Version

from archpatch.arch.arch import Arch, DeviceCode, Pair
from archpatch.builder.interpreter import Interpreter
from archpatch.builder.questions import Ask, ask
from archpatch.builder.toolkit_wheels import install, installed_folder
from archpatch.builder.working_folder import working_folder
from archpatch.errors import InvalidArchList, MissingFile, ToolchainError
from archpatch.storage.cache_folder import cache_folder

__all__ = [
    "Candidate",
    "Origin",
    "Toolkit",
    "ToolkitToFetch",
    "Toolkits",
    "candidates",
    "environment",
    "resolve_toolkit",
]

#: Variables by which a build could find another toolkit than the one that was chosen (CMake, nvcc's own profile).
_RIVALS: Final = ("CUDACXX", "CUDAToolkit_ROOT", "CUDA_BIN_PATH", "CUDA_ROOT", "CUDA_TOOLKIT_ROOT_DIR")

#: What torch's CUDA headers (`ATen/cuda/CUDAContextLight.h`) include of NVIDIA's libraries.
LIBRARY_HEADERS: Final = ("cublas_v2.h", "cublasLt.h", "cusparse.h", "cusolverDn.h")


class ToolkitToFetch(ToolchainError):
    """No toolkit is on the machine, and a build would fetch NVIDIA's wheels: nothing is wrong yet."""


class Origin(str, Enum):
    """Where a toolkit comes from."""

    SYSTEM = "system"
    PYPI = "pypi"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkits:
    """Where toolkits may lie: `local` holds `cuda` and `cuda-*`, `cache` those that were fetched as wheels."""

    cache: Path = field(default_factory=lambda: cache_folder() / "toolkits")
    local: Path = Path("/usr/local")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A folder that may be a toolkit, what named it, and nvcc's version (None: there is no nvcc that runs)."""

    root: Path
    found_by: str
    version: Version | None

    def __str__(self) -> str:
        state = "no nvcc that runs" if self.version is None else f"CUDA {self.version}"
        return f"{self.found_by} ({self.root}): {state}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """A CUDA toolkit: `root` is its `CUDA_HOME`, `version` nvcc's (`13.0.88`), `codes` all that nvcc can make.

    `options` are nvcc's long options, `--split-compile` among them where it has that.
    """

    root: Path
    version: Version
    origin: Origin
    found_by: str
    codes: frozenset[DeviceCode]
    options: frozenset[str] = frozenset()

    @property
    def nvcc(self) -> Path:
        """The compiler itself."""
        return self.root / "bin/nvcc"

    @property
    def release(self) -> str:
        """The CUDA release, as torch names it: `13.0`."""
        return f"{self.version.major}.{self.version.minor}"

    @property
    def archs(self) -> tuple[Arch, ...]:
        """The archs that nvcc compiles for, those with a suffix too."""
        return tuple(sorted(code.arch for code in self.codes if not code.ptx))

    def supports(self, pair: Pair) -> bool:
        """Whether nvcc knows both halves of `pair`."""
        return {pair.code, DeviceCode(pair.compute, ptx=True)} <= self.codes

    def missing_headers(self) -> tuple[str, ...]:
        """Return the headers that torch's own include and that this toolkit came without."""
        return tuple(name for name in LIBRARY_HEADERS if not (self.root / "include" / name).is_file())

    def newest_gcc(self) -> int | None:
        """Return the last major version of GCC that nvcc accepts, from its `host_config.h`; None if it says none."""
        try:
            text = (self.root / "include/crt/host_config.h").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        match = re.search(r"^#if __GNUC__ > (\d+)", text, re.MULTILINE)
        return int(match[1]) if match else None


def resolve_toolkit(
    choice: str,
    interpreter: Interpreter,
    environ: Mapping[str, str],
    *,
    toolkits: Toolkits | None = None,
    may_fetch: bool = True,
    ask: Ask = ask,
) -> Toolkit:
    """Return the toolkit for `choice` (`auto`, `system`, `pypi` or a folder) and the torch of `interpreter`.

    `auto` takes the machine's where nvcc's CUDA major is torch's, else NVIDIA's wheels, fetched on first use. A named
    folder is taken as it is. Without a CUDA torch the machine's first toolkit is returned. Raises `MissingFile` for a
    folder without nvcc, `ToolchainError` where nothing fits or `may_fetch` is false and a fetch would be needed.
    """
    toolkits = toolkits or Toolkits()
    cuda = interpreter.torch.cuda if interpreter.torch else None
    if choice not in ("auto", "system", "pypi"):
        return _from_folder(Path(choice), ask)
    seen = () if choice == "pypi" else tuple(candidates(environ, local=toolkits.local, ask=ask))
    best = choose(seen, cuda)
    if best is not None:
        return _toolkit(best, Origin.SYSTEM, ask)
    if choice == "system":
        raise ToolchainError(f"no CUDA toolkit fits: {_looked_at(seen, cuda)}", remedy=_remedy(cuda))
    if cuda is None:
        raise ToolchainError(
            f"no CUDA toolkit is here, and {interpreter.executable} has no CUDA build of torch that would tell which",
            remedy=f"Install one: {interpreter.executable} -m pip install torch",
        )
    folder = installed_folder(cuda, toolkits.cache)
    if folder is None and not may_fetch:
        raise ToolkitToFetch(
            f"no CUDA toolkit fits: {_looked_at(seen, cuda)}",
            remedy=f"A build fetches nvcc {cuda} from PyPI into {toolkits.cache} (CUDA 13 and later). {_remedy(cuda)}",
        )
    root = folder or install(cuda, cache=toolkits.cache, interpreter=interpreter, environ=environ, ask=ask)
    found = Candidate(root=root, found_by="NVIDIA's wheels", version=nvcc_version(root / "bin/nvcc", ask))
    return _toolkit(found, Origin.PYPI, ask)


def candidates(environ: Mapping[str, str], *, local: Path, ask: Ask = ask) -> Iterator[Candidate]:
    """Yield the folders that could be the machine's toolkit, as torch would look for them, then newer ones first."""
    seen = set()
    for found_by, root in _places(environ, local, ask):
        if root.resolve() not in seen:
            seen.add(root.resolve())
            yield Candidate(root=root, found_by=found_by, version=nvcc_version(root / "bin/nvcc", ask))


def choose(seen: Iterable[Candidate], cuda: str | None) -> Candidate | None:
    """Return the candidate to compile with for a torch of release `cuda`: the major versions must be equal.

    What a variable names comes first, then torch's exact release, then the order of `seen`.
    """
    fitting = [found for found in seen if found.version is not None and _fits(found.version, cuda)]
    return min(fitting, key=lambda found: (not found.found_by.startswith("$"), not _exact(found, cuda)), default=None)


def environment(
    toolkit: Toolkit, environ: Mapping[str, str], *, interpreter: Interpreter, tools: Iterable[Path] = ()
) -> dict[str, str]:
    """Return `environ` with everything set that makes a build use `toolkit` and find the programs `tools`.

    `PYTORCH_NVCC` is left as the user set it. Where the toolkit lacks the headers of NVIDIA's libraries, those of
    the interpreter's wheels are searched last.
    """
    result = {name: value for name, value in environ.items() if name not in _RIVALS}
    # A tool's folder goes last: what lies beside it must not hide anything that PATH already finds.
    path = [
        str(toolkit.root / "bin"),
        *environ.get("PATH", os.defpath).split(os.pathsep),
        *(str(t.parent) for t in tools),
    ]
    result |= {"CUDA_HOME": str(toolkit.root), "CUDA_PATH": str(toolkit.root), "PATH": _joined(path)}
    if toolkit.missing_headers() and interpreter.library_headers:
        # Unlike CPATH this is searched after every -I and -isystem: the toolkit's own headers win.
        known = environ.get("CPLUS_INCLUDE_PATH", "").split(os.pathsep)
        result["CPLUS_INCLUDE_PATH"] = _joined([*known, *map(str, interpreter.library_headers)])
    return result


def nvcc_version(nvcc: Path, ask: Ask = ask) -> Version | None:
    """Return the version that `nvcc --version` tells (`13.0.88`), or None where it does not run; takes 3 ms."""
    if not os.access(nvcc, os.X_OK):
        return None
    match = re.search(r"release \d+\.\d+, V(\d+\.\d+\.\d+)", ask([str(nvcc), "--version"]).stdout)
    return Version(match[1]) if match else None


def parse_codes(help_text: str) -> frozenset[DeviceCode]:
    """Return what `nvcc --help` allows for `--gpu-code`; archs that archpatch does not know are left out.

    `--list-gpu-code` will not do: it "lists the non-accelerated gpu architectures", without the `a` and `f` ones.
    """
    section = re.search(r"^--gpu-code .*?Allowed values for this option:(.*?)\.\n", help_text, re.DOTALL | re.MULTILINE)
    names = re.findall(r"'((?:sm|compute)_\w+)'", section[1]) if section else []
    return frozenset(code for code in map(_known_code, names) if code is not None)


def parse_options(help_text: str) -> frozenset[str]:
    """Return the long options that `nvcc --help` lists."""
    return frozenset(re.findall(r"^--[\w-]+", help_text, re.MULTILINE))


def parse_root(dry_run: str) -> Path | None:
    """Return the toolkit's folder from the lines `#$ TOP=...` or `#$ _HERE_=...` of `nvcc --dryrun`.

    nvcc on PATH can be a wrapper or a link far from the toolkit; this is where the real one looks for its parts.
    """
    said = dict(re.findall(r"^#\$ (TOP|_HERE_)=(.*)$", dry_run, re.MULTILINE))
    places = [said.get("TOP"), said.get("_HERE_") and f"{said['_HERE_']}/.."]
    roots = [Path(os.path.normpath(place)) for place in places if place]
    return next((root for root in roots if (root / "bin/nvcc").is_file()), None)


def _places(environ: Mapping[str, str], local: Path, ask: Ask) -> Iterator[tuple[str, Path]]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(variable):
            yield f"${variable}", Path(environ[variable])
    nvcc = shutil.which("nvcc", path=environ.get("PATH", ""))
    root = nvcc and (_profiled_root(Path(nvcc).resolve()) or _told_root(nvcc, ask))
    if root:
        yield "nvcc on PATH", root
    newest_first = sorted(local.glob("cuda-*"), key=_release_in_name, reverse=True)
    for folder in (local / "cuda", *newest_first):
        if folder.is_dir():
            yield str(folder), folder


def _profiled_root(nvcc: Path) -> Path | None:
    """Return the folder of a toolkit whose own nvcc this is: it has a profile beside it, which says so."""
    try:
        profile = nvcc.with_name("nvcc.profile").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return nvcc.parents[1] if re.search(r"^TOP\s*=\s*\$\(_HERE_\)/\.\.\s*$", profile, re.MULTILINE) else None


def _told_root(nvcc: str, ask: Ask) -> Path | None:
    """Return the folder of the toolkit that a wrapper on PATH leads to; takes 15 ms."""
    # Even a dry run makes temporary files, and one that is killed leaves them: they go with this folder.
    with working_folder() as passing:
        command = [nvcc, "--dryrun", "-x", "cu", os.devnull, "-c", "-o", os.devnull]
        answer = ask(["env", f"TMPDIR={passing}", *command])
    return parse_root(answer.stderr + answer.stdout)


def _release_in_name(folder: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", folder.name)))


def _from_folder(folder: Path, ask: Ask) -> Toolkit:
    root = folder.expanduser().absolute()
    version = nvcc_version(root / "bin/nvcc", ask)
    if version is None:
        raise MissingFile(
            f"--toolkit {folder}: there is no bin/nvcc that runs",
            remedy="Name the folder that holds bin/nvcc, or one of auto, system, pypi.",
        )
    return _toolkit(Candidate(root=root, found_by="--toolkit", version=version), Origin.FOLDER, ask)


def _toolkit(found: Candidate, origin: Origin, ask: Ask) -> Toolkit:
    said = ask([str(found.root / "bin/nvcc"), "--help"]).stdout
    codes = parse_codes(said)
    if found.version is None or not codes:
        raise ToolchainError(
            f"{found.root}/bin/nvcc does not run, or names no GPU archs in its --help",
            remedy=f"Install the toolkit again, or remove {found.root}, or name another one with --toolkit.",
        )
    return Toolkit(
        root=found.root,
        version=found.version,
        origin=origin,
        found_by=found.found_by,
        codes=codes,
        options=parse_options(said),
    )


def _known_code(name: str) -> DeviceCode | None:
    try:
        return DeviceCode.parse(name)
    except InvalidArchList:
        return None


def _fits(version: Version, cuda: str | None) -> bool:
    return cuda is None or version.major == Version(cuda).major


def _exact(found: Candidate, cuda: str | None) -> bool:
    return cuda is not None and found.version is not None and found.version.release[:2] == Version(cuda).release[:2]


def _looked_at(seen: tuple[Candidate, ...], cuda: str | None) -> str:
    needed = f"torch was built with CUDA {cuda}" if cuda else "nvcc was not found"
    return "; ".join([needed, *map(str, seen)])


def _remedy(cuda: str | None) -> str:
    return f"Install the CUDA toolkit {cuda or ''}".rstrip() + " and set CUDA_HOME, or name its folder with --toolkit."


def _joined(folders: Iterable[str]) -> str:
    return os.pathsep.join(dict.fromkeys(folder for folder in folders if folder))
