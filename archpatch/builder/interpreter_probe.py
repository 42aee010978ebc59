"""Look at an interpreter from the inside, without importing torch.

This file is imported for this interpreter and run as a script by any other (CPython 3.8 or later), so it imports
nothing but the standard library. As a script it prints `facts()` as JSON.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import mmap
import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

#: `name-version.dist-info`, `name-version.egg-info`, `name-version-py3.11.egg-info`; wheels and eggs write no other
#: hyphen into a name or version.
_METADATA = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_UNVERSIONED = re.compile(r"(?P<name>[^-]+)\.egg-info")
_REQUIRED_STANDARD = re.compile(rb"__cplusplus\s*<\s*(\d{6})L")
#: What torch's CUDA headers (`ATen/cuda/CUDAContextLight.h`) include of NVIDIA's libraries.
_LIBRARY_HEADERS = ("cublas_v2.h", "cusparse.h", "cusolverDn.h")


def facts() -> dict[str, Any]:
    """Return what `archpatch.builder.interpreter.Interpreter` holds, as plain JSON values."""
    return {
        "executable": sys.executable,
        "version": ".".join(map(str, sys.version_info[:3])),
        "abi_tag": abi_tag(str(sysconfig.get_config_var("SOABI"))),
        "platform_tag": re.sub(r"[^a-z0-9_]", "_", sysconfig.get_platform().lower()),
        "machine": os.uname().machine,
        "torch": find_torch(),
        "packages": installed(sys.path),
        "scripts": script_folders(sys.path),
        "library_headers": library_headers(sys.path),
    }


def abi_tag(soabi: str) -> str:
    """Return the wheel tag for `cpython-311-x86_64-linux-gnu`: `cp311`."""
    implementation, _, rest = soabi.partition("-")
    return implementation.replace("cpython", "cp") + rest.partition("-")[0]


def find_torch() -> dict[str, Any] | None:
    """Return what can be read of the torch that `import torch` would load, or None."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return torch_facts(Path(spec.origin).parent)


def torch_facts(folder: Path) -> dict[str, Any] | None:
    """Return version, CUDA, C++ ABI and the C++ standard that the headers demand, of the torch in `folder`."""
    values = constants(_read(folder / "version.py").decode())
    if not isinstance(values.get("__version__"), str):
        return None
    return {
        "folder": str(folder),
        "version": values["__version__"],
        "cuda": values.get("cuda"),
        "cxx11_abi": has_cxx11_abi(folder / "lib/libc10.so"),
        "cxx_standard": required_standard(_read(folder / "include/torch/csrc/api/include/torch/all.h")),
    }


def constants(source: str) -> dict[str, Any]:
    """Return the constants that are assigned at the top of a module, annotated or not, without running it."""
    found = {}
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(targets[0], ast.Name) and isinstance(value, ast.Constant):
            found[targets[0].id] = value.value
    return found


def has_cxx11_abi(library: Path) -> bool | None:
    """Tell whether `library` uses libstdc++'s new `std::string`, or None where there is no such file.

    That string's mangled name holds `__cxx11`, and libc10 exports functions that take strings (`c10::Error`'s
    constructor), so its symbol names hold those bytes exactly when it was compiled with the new ABI.
    """
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(b"NSt7__cxx1112basic_string") != -1
    except (OSError, ValueError):
        return None


def required_standard(header: bytes) -> int | None:
    """Return the C++ standard below which torch's `all.h` stops (`__cplusplus < 202002L`: 20), or None."""
    match = _REQUIRED_STANDARD.search(header)
    return int(match[1][2:4]) if match else None


def installed(path: list[str]) -> dict[str, str]:
    """Return the version of every distribution on `path`, by normalised name; the first one found counts.

    Names and versions are taken from the names of the metadata folders: reading each METADATA file takes a second
    in a large environment.
    """
    found: dict[str, str] = {}
    for folder in path:
        for name in _names(folder):
            match = _METADATA.fullmatch(name)
            if match is not None:
                found.setdefault(_normalized(match["name"]), match["version"].replace("_", "-"))
            elif _UNVERSIONED.fullmatch(name):
                _add_unversioned(found, Path(folder, name))
    return found


def script_folders(path: list[str]) -> list[str]:
    """Return the folders where the interpreter's tools lie: its own scripts, then those of `pip --target` folders."""
    candidates = [Path(sysconfig.get_path("scripts")), Path(sys.executable).parent]
    candidates += [Path(folder, "bin") for folder in path if folder]
    return [str(folder) for folder in dict.fromkeys(candidates) if folder.is_dir()]


def library_headers(path: list[str]) -> list[str]:
    """Return the include folders of NVIDIA's wheels that hold the library headers that torch's own include.

    CUDA 13's wheels share `nvidia/cu13/include`, CUDA 12's have `nvidia/cublas/include` and so on.
    """
    places = [f"{folder}/nvidia" for folder in path if folder]
    includes = [Path(place, name, "include") for place in places for name in _names(place)]
    return [str(folder) for folder in includes if any((folder / header).is_file() for header in _LIBRARY_HEADERS)]


def _add_unversioned(found: dict[str, str], folder: Path) -> None:
    """Add a project that was put on the path by `setup.py develop`: its metadata alone tells the version."""
    head = _read(folder / "PKG-INFO").decode("utf-8", "replace").partition("\n\n")[0]
    fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    if "Name" in fields and "Version" in fields:
        found.setdefault(_normalized(fields["Name"]), fields["Version"])


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(folder: str) -> list[str]:
    # Strings: a large environment has a thousand entries, and paths sort ten times as slowly.
    try:
        return sorted(os.listdir(folder)) if folder else []  # noqa: PTH208
    except OSError:
        return []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    # A script's own folder comes first on the path; nothing there is for the interpreter that is looked at.
    sys.path[:] = [folder for folder in sys.path if Path(folder) != Path(__file__).parent]
    print(json.dumps(facts()))  # noqa: T201 - the answer of the script
