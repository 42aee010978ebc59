"""Run a `setup.py` up to the point where torch would write its ninja file, and write down what nvcc would be told.

This file is run as a script by the interpreter that holds torch, with the project's folder as working directory. It
imports nothing of archpatch. What it writes is a JSON object, read by `archpatch.builder.capture`:

    {name, version, roots: {prefix, base_prefix, torch}, environment: [NAME], cmake: null | VERSION, wraps_compilers,
     extensions: [{name, sources, nvcc, cxx, link, by_ninja, torch_added, torch_refused,
                   cmake: [{words, folder, variables, line}]}],
     error: null | {kind, message, module, program, where, unreached: [NAME]}}

`environment` are the variables that the project's own files read, and name in their text. `torch_refused` is what torch
said where it knows no flags for an arch of its list. `unreached` are the extensions that were still to come when
`setup.py` failed after CMake, which did not run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from typing import Any

#: Where the modules beside this file are found, which nobody else shall find: they have names like `git` and `source`.
_HERE = os.path.dirname(os.path.realpath(__file__))


class Capture:
    """What was seen: one entry per extension, in the order in which they would be built."""

    def __init__(self) -> None:
        self.extensions: list[dict[str, Any]] = []
        self.cmake_version: str | None = None
        self.stand_in: Any = None
        self.finished: set[str] = set()
        self._current: dict[str, Any] | None = None

    def begin(self, name: str, sources: list[str]) -> None:
        """Start an extension: what is recorded from here on belongs to it."""
        self._current = self._of(name)
        self._current["sources"] = list(map(os.path.abspath, sources))

    def _of(self, name: str) -> dict[str, Any]:
        """Return the entry of an extension, a new one where it has none."""
        for extension in self.extensions:
            if extension["name"] == name:
                return extension
        lists: dict[str, Any] = {key: [] for key in ("sources", "cxx", "link", "torch_added", "cmake")}
        self.extensions.append({"name": name, "nvcc": None, "by_ninja": False, "torch_refused": None, **lists})
        return self.extensions[-1]

    @property
    def current(self) -> dict[str, Any]:
        """The extension that is being built."""
        if self._current is None:
            self.begin("", [])
        assert self._current is not None  # noqa: S101 - begin has set it
        return self._current

    def ninja(self, **rules: Any) -> None:
        """Stand in for `torch.utils.cpp_extension._write_ninja_file_and_compile_objects`."""
        self.current["by_ninja"] = True
        self.current["sources"] = list(map(os.path.abspath, rules["sources"]))
        self.current["cxx"] = unquoted(rules["cflags"], rules["post_cflags"])
        self.current["link"] += unquoted(rules.get("cuda_dlink_post_cflags"))
        if rules.get("with_cuda"):
            self.current["nvcc"] = unquoted(rules["cuda_cflags"], rules["cuda_post_cflags"])

    def spawn(self, command: list[str], *_: object, **__: object) -> None:
        """Stand in for the compiler's `spawn`, which is used where ninja is not."""
        if self.stand_in.takes_words(command):
            return
        if os.path.basename(command[0]).startswith("nvcc") or any(word.endswith(".cu") for word in command):
            self.current["nvcc"] = list(command[1:])

    def torch_adds(self, flags: list[str]) -> list[str]:
        """Note the arch flags that torch adds by itself."""
        self.current["torch_added"] = list(flags)
        return flags

    def cmake(self, command: Any) -> None:
        """Note a command that CMake would run, for the extension that is being built."""
        name, line = at_work()
        seen = {"words": [command.name, *command.arguments], "folder": command.folder, "line": line}
        self._of(name)["cmake"].append({**seen, "variables": command.variables})
        if self.cmake_version is None and command.name.startswith("cmake"):
            program = command.words[: len(command.words) - len(command.arguments)]
            answer = subprocess.run([*program, "--version"], capture_output=True, text=True, check=False)
            self.cmake_version = answer.stdout.partition("\n")[0].replace("cmake version ", "")

    @contextlib.contextmanager
    def after_cmake(self, name: str) -> Iterator[None]:
        """Let an extension end early that misses what CMake would have made: those behind it are looked at still."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if not any(extension["cmake"] for extension in self.extensions if extension["name"] == name):
                raise
            end_early(name, error)

    def unreached(self) -> list[str] | None:
        """Return the extensions that were not looked at to their end; None where no CMake was stood in for."""
        by_cmake = {extension["name"] for extension in self.extensions if extension["cmake"]}
        if not by_cmake:
            return None
        if not distribution():
            return ["setup()"]
        names = [full_name(extension.name) for extension in declared()]
        return [name for name in names if name not in by_cmake | self.finished]


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


def distribution() -> Any:
    """Return what `setup()` made of its arguments, None before it did."""
    from distutils import core

    return getattr(core, "_setup_distribution", None)


def declared() -> list[Any]:
    """Return the extensions that `setup()` was called with."""
    return list(getattr(distribution(), "ext_modules", None) or ())


def full_name(name: str) -> str:
    """Return the name of an extension with that of its package, as `build_ext` has it."""
    package = getattr(distribution(), "ext_package", None)
    return f"{package}.{name}" if package else name


def at_work() -> tuple[str, int | None]:
    """Return the extension that a function of `setup.py` is at work on, or the only one there is, and its line.

    A command can be started far from `build_extension`: in a method of the extension, or in a `run` of its own.
    """
    from distutils.extension import Extension

    frame: Any = sys._getframe(1)
    found, line, setup = None, None, os.path.abspath("setup.py")
    while frame is not None:
        if line is None and frame.f_code.co_filename == setup:
            line = frame.f_lineno
        # The names of a module outlive what they were for: a loop over extensions leaves the last one.
        if found is None and frame.f_code.co_name != "<module>":
            found = next((value for value in frame.f_locals.values() if isinstance(value, Extension)), None)
        frame = frame.f_back
    if found is None and len(declared()) == 1:
        found = declared()[0]
    return (full_name(found.name) if found else "", line)


def load(name: str) -> Any:
    """Import a module that lies beside this file."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec: Any = spec_from_file_location(f"archpatch_{name}", os.path.join(_HERE, f"{name}.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hook(capture: Capture) -> None:
    """Put the recorder where torch, setuptools and CMake would start to compile."""
    from setuptools.command.build_ext import build_ext
    from torch.utils import cpp_extension

    # setuptools' own is built on it, and some packages' too; it comes to life with setuptools.
    plain: Any = sys.modules["distutils.command.build_ext"].build_ext

    original_flags = cpp_extension._get_cuda_arch_flags
    original_build = build_ext.build_extension

    def arch_flags(*args: Any, **kwargs: Any) -> list[str]:
        try:
            return capture.torch_adds(original_flags(*args, **kwargs))
        except ValueError as error:
            capture.current["torch_refused"] = str(error)
            return []

    original_filter = plain._filter_build_errors

    @contextlib.contextmanager
    def filter_errors(self: Any, ext: Any) -> Iterator[None]:
        with capture.after_cmake(self.get_ext_fullname(ext.name)), original_filter(self, ext):
            yield

    def build_extension(self: Any, ext: Any) -> None:
        capture.begin(self.get_ext_fullname(ext.name), ext.sources)
        link = (ext.libraries, ext.library_dirs, ext.runtime_library_dirs, ext.extra_objects, ext.extra_link_args)
        capture.current["link"] = [str(word) for words in link for word in words or ()]
        # Without ninja the compiler is started by `spawn`, in newer setuptools by `call`.
        self.compiler.spawn = self.compiler.call = capture.spawn
        self.compiler.link = self.compiler.link_shared_object = held_back
        original_build(self, ext)
        capture.finished.add(capture.current["name"])

    cpp_extension._get_cuda_arch_flags = arch_flags
    cpp_extension._write_ninja_file_and_compile_objects = capture.ninja
    build_ext.build_extension = build_extension
    plain._filter_build_errors = filter_errors
    capture.stand_in = load("cmake_stand_in").StandIn(capture.cmake)
    capture.stand_in.install()


def run_setup(scratch: str) -> None:
    """Run `setup.py build_ext` in this process, as its build backend would."""
    path = os.path.abspath("setup.py")
    sys.argv = ["setup.py", "build_ext", "--build-temp", scratch, "--build-lib", scratch]
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, {"__name__": "__main__", "__file__": path, "__builtins__": __builtins__})


def describe(error: BaseException, unreached: list[str]) -> dict[str, Any]:
    """Return what a person needs to know of an error in `setup.py`; `unreached` is what it kept from being seen."""
    if isinstance(error, SystemExit) and str(error.code) == f"error: {error.__context__}":
        # That is how distutils ends a command whose files or programs are not there.
        error = error.__context__ or error
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith("setup.py")]
    message = str(error.code if isinstance(error, SystemExit) else error)
    return {
        "kind": type(error).__name__,
        "message": message,
        "module": getattr(error, "name", None) if isinstance(error, ImportError) else None,
        "program": os.path.basename(str(error.filename)) if isinstance(error, FileNotFoundError) else None,
        "where": f"setup.py:{frames[-1].lineno}" if frames else None,
        "unreached": unreached,
    }


def held_back(_objects: object, output: str, *_: object, **__: object) -> None:
    """Stand in for a link: make nothing but the folder, which some packages write into afterwards."""
    os.makedirs(os.path.dirname(output) or ".", exist_ok=True)


def end_early(what: str, error: BaseException) -> None:
    """Say in the log that something misses what CMake would have made, where all that a capture looks for was seen."""
    seen = describe(error, [])
    reason = f"{seen['kind']}: {seen['message']}"
    sys.stderr.write(f"archpatch: {what} ends here ({seen['where']}, {reason}): CMake does not run in a capture\n")


def torch_folder() -> str:
    """Return where torch lies, or nothing where it could not be imported."""
    torch = sys.modules.get("torch")
    return os.path.dirname(torch.__file__ or "") if torch is not None else ""


def main(result: str, legacy: str) -> None:
    """Capture the project in the working directory and write the JSON to `result`."""
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != _HERE]
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
        unreached = capture.unreached()
        if unreached == []:
            end_early("setup.py", caught)
        else:
            traceback.print_exc()
            error = describe(caught, unreached or [])
    project = distribution()
    seen = {
        "name": project and project.get_name(),
        "version": project and project.get_version(),
        "roots": {"prefix": sys.prefix, "base_prefix": sys.base_prefix, "torch": torch_folder()},
        "environment": sorted(environment),
        "cmake": capture.cmake_version,
        "wraps_compilers": hasattr(sys.modules.get("torch.utils.cpp_extension"), "_wrap_compiler"),
        "extensions": capture.extensions,
        "error": error,
    }
    with open(result, "w", encoding="utf-8") as file:
        json.dump(seen, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
