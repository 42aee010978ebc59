"""Run a `setup.py` up to the point where torch would write its ninja file, and write down what nvcc would be told.

This file is run as a script by the interpreter that holds torch, with the project's folder as working directory. It
imports nothing of archpatch. What it writes is a JSON object, read by `archpatch.builder.capture`:

    {name, version, roots: {prefix, base_prefix, torch}, environment: [NAME],
     extensions: [{name, sources, nvcc, cxx, link, torch_added}], error: null | {kind, message, module, where}}

`environment` are the variables that the project's own files read, and name in their text.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import tempfile
import traceback
from typing import Any


class Capture:
    """What was seen: one entry per extension, in the order in which they would be built."""

    def __init__(self) -> None:
        self.extensions: list[dict[str, Any]] = []

    def begin(self, name: str, sources: list[str]) -> None:
        """Start an extension: what is recorded from here on belongs to it."""
        paths = list(map(os.path.abspath, sources))
        seen = {"name": name, "sources": paths, "nvcc": None, "cxx": [], "link": [], "torch_added": []}
        self.extensions.append(seen)

    @property
    def current(self) -> dict[str, Any]:
        """The extension that is being built."""
        if not self.extensions:
            self.begin("", [])
        return self.extensions[-1]

    def ninja(self, **rules: Any) -> None:
        """Stand in for `torch.utils.cpp_extension._write_ninja_file_and_compile_objects`."""
        self.current["sources"] = list(map(os.path.abspath, rules["sources"]))
        self.current["cxx"] = unquoted(rules["cflags"], rules["post_cflags"])
        self.current["link"] += unquoted(rules.get("cuda_dlink_post_cflags"))
        if rules.get("with_cuda"):
            self.current["nvcc"] = unquoted(rules["cuda_cflags"], rules["cuda_post_cflags"])

    def spawn(self, command: list[str], *_: object, **__: object) -> None:
        """Stand in for the compiler's `spawn`, which is used where ninja is not."""
        if os.path.basename(command[0]).startswith("nvcc") or any(word.endswith(".cu") for word in command):
            self.current["nvcc"] = list(command[1:])

    def torch_adds(self, flags: list[str]) -> list[str]:
        """Note the arch flags that torch adds by itself."""
        self.current["torch_added"] = list(flags)
        return flags


def unquoted(*flags: list[str] | None) -> list[str]:
    """Return flags as a shell would hand them to a compiler."""
    return [word for some in flags for flag in some or () for word in shlex.split(flag)]


def watch_environment(tree: str) -> list[str]:
    """Return a list that grows by each variable that a file below `tree` reads and names in its text."""
    kind = type(os.environ)
    original: Any = kind.__getitem__
    names: list[str] = []
    texts: dict[str, str] = {}

    def reader() -> str:
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc", "collections.abc"):
            frame = frame.f_back
        path = frame.f_code.co_filename if frame is not None else ""
        if path not in texts:
            with contextlib.suppress(OSError), open(path, encoding="latin-1") as file:
                texts[path] = file.read() if path.startswith(tree + os.sep) else ""
        return texts.get(path, "")

    def getitem(self: Any, key: str) -> str:
        if key not in names and key in reader():
            names.append(key)
        return str(original(self, key))

    setattr(kind, "__getitem__", getitem)  # noqa: B010 - mypy takes no other spelling
    return names


def hook(capture: Capture) -> None:
    """Put the recorder where torch and setuptools would start to compile."""
    from setuptools.command.build_ext import build_ext
    from torch.utils import cpp_extension

    original_flags = cpp_extension._get_cuda_arch_flags
    original_build = build_ext.build_extension

    def arch_flags(*args: Any, **kwargs: Any) -> list[str]:
        return capture.torch_adds(original_flags(*args, **kwargs))

    def build_extension(self: Any, ext: Any) -> None:
        capture.begin(self.get_ext_fullname(ext.name), ext.sources)
        link = (ext.libraries, ext.library_dirs, ext.runtime_library_dirs, ext.extra_objects, ext.extra_link_args)
        capture.current["link"] = [str(word) for words in link for word in words or ()]
        # Without ninja the compiler is started by `spawn`, in newer setuptools by `call`.
        self.compiler.spawn = self.compiler.call = capture.spawn
        self.compiler.link = self.compiler.link_shared_object = held_back
        original_build(self, ext)

    cpp_extension._get_cuda_arch_flags = arch_flags
    cpp_extension._write_ninja_file_and_compile_objects = capture.ninja
    build_ext.build_extension = build_extension


def run_setup(scratch: str) -> None:
    """Run `setup.py build_ext` in this process, as its build backend would."""
    path = os.path.abspath("setup.py")
    sys.argv = ["setup.py", "build_ext", "--build-temp", scratch, "--build-lib", scratch]
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, {"__name__": "__main__", "__file__": path, "__builtins__": __builtins__})


def describe(error: BaseException) -> dict[str, Any]:
    """Return what a person needs to know of an error in `setup.py`."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith("setup.py")]
    message = str(error.code if isinstance(error, SystemExit) else error)
    return {
        "kind": type(error).__name__,
        "message": message,
        "module": getattr(error, "name", None) if isinstance(error, ImportError) else None,
        "where": f"setup.py:{frames[-1].lineno}" if frames else None,
    }


def held_back(_objects: object, output: str, *_: object, **__: object) -> None:
    """Stand in for a link: make nothing but the folder, which some packages write into afterwards."""
    os.makedirs(os.path.dirname(output) or ".", exist_ok=True)


def torch_folder() -> str:
    """Return where torch lies, or nothing where it could not be imported."""
    torch = sys.modules.get("torch")
    return os.path.dirname(torch.__file__ or "") if torch is not None else ""


def main(result: str, legacy: str) -> None:
    """Capture the project in the working directory and write the JSON to `result`."""
    if legacy == "legacy":
        sys.path.insert(0, os.getcwd())
    capture, error, environment = Capture(), None, []
    try:
        hook(capture)
        environment = watch_environment(os.getcwd())
        with tempfile.TemporaryDirectory(prefix="archpatch-capture-") as scratch:
            run_setup(scratch)
    except BaseException as caught:
        if isinstance(caught, KeyboardInterrupt):
            raise
        traceback.print_exc()
        error = describe(caught)
    from distutils import core

    distribution = getattr(core, "_setup_distribution", None)
    seen = {
        "name": distribution and distribution.get_name(),
        "version": distribution and distribution.get_version(),
        "roots": {"prefix": sys.prefix, "base_prefix": sys.base_prefix, "torch": torch_folder()},
        "environment": sorted(environment),
        "extensions": capture.extensions,
        "error": error,
    }
    with open(result, "w", encoding="utf-8") as file:
        json.dump(seen, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
