"""Run a `setup.py` up to the point where torch would write its ninja file, and write down what nvcc would be told.

This file is run as a script by the interpreter that holds torch, with the project's folder as working directory. It
imports nothing of archpatch. What it writes is a JSON object, read by `archpatch.builder.capture`:

    {name, version, extensions: [{name, sources, nvcc, torch_added}], error: null | {kind, message, module, where}}
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import traceback
from typing import Any

_HELD_BACK = "archpatch: held back, nothing is compiled during capture"


class Capture:
    """What was seen: one entry per extension, in the order in which they would be built."""

    def __init__(self) -> None:
        self.extensions: list[dict[str, Any]] = []

    def begin(self, name: str, sources: list[str]) -> None:
        """Start an extension: what is recorded from here on belongs to it."""
        self.extensions.append({"name": name, "sources": list(map(os.path.abspath, sources)), "nvcc": None})
        self.extensions[-1]["torch_added"] = []

    @property
    def current(self) -> dict[str, Any]:
        """The extension that is being built."""
        if not self.extensions:
            self.begin("", [])
        return self.extensions[-1]

    def ninja(self, **rules: Any) -> None:
        """Stand in for `torch.utils.cpp_extension._write_ninja_file_and_compile_objects`."""
        self.current["sources"] = list(map(os.path.abspath, rules["sources"]))
        if rules.get("with_cuda"):
            quoted = [*(rules["cuda_cflags"] or ()), *(rules["cuda_post_cflags"] or ())]
            self.current["nvcc"] = [word for flag in quoted for word in shlex.split(flag)]

    def spawn(self, command: list[str], *_: object, **__: object) -> None:
        """Stand in for the compiler's `spawn`, which is used where ninja is not."""
        if os.path.basename(command[0]).startswith("nvcc") or any(word.endswith(".cu") for word in command):
            self.current["nvcc"] = list(command[1:])

    def torch_adds(self, flags: list[str]) -> list[str]:
        """Note the arch flags that torch adds by itself."""
        self.current["torch_added"] = list(flags)
        return flags


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
        self.compiler.spawn = capture.spawn
        self.compiler.link = self.compiler.link_shared_object = lambda *_, **__: None
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


def main(result: str, legacy: str) -> None:
    """Capture the project in the working directory and write the JSON to `result`."""
    if legacy == "legacy":
        sys.path.insert(0, os.getcwd())
    capture, error = Capture(), None
    try:
        hook(capture)
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
        "extensions": capture.extensions,
        "error": error,
    }
    with open(result, "w", encoding="utf-8") as file:
        json.dump(seen, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
