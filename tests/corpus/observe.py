"""The inside of a capture: run a `setup.py` in this process, which is of no use afterwards, and note nvcc's flags."""

# ruff: noqa: ANN401, PTH103, PTH119, PTH120 - it hooks untyped functions, whose paths are strings

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import socket
import sys
import traceback
from collections.abc import Mapping
from distutils import core
from distutils.command.build_ext import build_ext
from pathlib import Path
from typing import Any, NoReturn

import torch
from setuptools.dist import Distribution
from torch.utils import cpp_extension

from corpus import bare, processes
from corpus.anything import Permissive
from corpus.toolkits import Toolkit

__all__ = ["Recorder", "observe"]

_WRITER = cpp_extension._write_ninja_file
_CUDA = (".cu", ".cuh")


class Recorder:
    """What was seen, in the form of `corpus.seen.Seen.from_json`."""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []
        self.extensions: list[str] = []
        self.torch: tuple[list[str], str | None] = ([], None)

    def begin(self, name: str) -> None:
        """Start an extension; a name that was there before gets a number."""
        self.extensions.append(name if name not in self.extensions else f"{name}#{self.extensions.count(name) + 1}")

    def command(self, label: str, flags: list[str], *, is_assumed: bool = False) -> None:
        """Note one command of the extension that is being built; a repeated one counts once."""
        added, failed = self.torch
        mine = [each for each in self.commands if each["extension"] == self.extensions[-1]]
        if any(each["flags"] == list(flags) and each["label"].partition("#")[0] == label for each in mine):
            return
        number = sum(each["label"].partition("#")[0] == label for each in mine)
        seen = {"extension": self.extensions[-1], "label": f"{label}#{number + 1}" if number else label}
        seen |= {"flags": list(flags), "torch_added": added, "torch_failed": failed, "is_assumed": is_assumed}
        self.commands.append(seen)

    def ninja(self, **rules: Any) -> None:
        """Stand in for `_write_ninja_file_and_compile_objects`."""
        if rules["with_cuda"]:
            self.command("", rules["cuda_post_cflags"])
        if rules["cuda_dlink_post_cflags"]:
            self.command("dlink", rules["cuda_dlink_post_cflags"])
        if cpp_extension._write_ninja_file is not _WRITER:
            self.own_writer(rules)

    def own_writer(self, rules: dict[str, Any]) -> None:
        """Let a ninja writer of `setup.py`'s own write, and note the flags of each of its rules."""
        path = Path(rules["build_directory"], "build.ninja")
        path.parent.mkdir(parents=True, exist_ok=True)
        wanted = {name: value for name, value in rules.items() if name not in ("build_directory", "verbose")}
        writer = cpp_extension._write_ninja_file
        wanted |= {"path": str(path), "ldflags": None, "library_target": None}
        code = getattr(writer, "__code__", None)
        if code is not None and not code.co_flags & 8:
            wanted = {name: value for name, value in wanted.items() if name in code.co_varnames[: code.co_argcount]}
        writer(**wanted)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        for name, flags in re.findall(r"^\s*(cuda\w*flags\w*) = (.*)$", text, re.MULTILINE):
            if "arch" in flags:
                self.command(f"ninja:{name}", shlex.split(flags.replace("$$", "$")))

    def spawn(self, command: list[str], *_: object, **__: object) -> None:
        """Stand in for the compiler's `spawn`."""
        if os.path.basename(str(command[0])).startswith("nvcc") or any(str(word).endswith(_CUDA) for word in command):
            words = [str(word) for word in command[1:]]
            self.command("", [word for word in words if not word.endswith((*_CUDA, ".o")) and word not in ("-c", "-o")])

    def loaded(self, name: str, _: list[str], nvcc: list[str] | None) -> None:
        """Stand in for `load`."""
        self.begin(f"load:{name}")
        if nvcc is not None:
            self.command("", nvcc)

    def bare_cuda(self, ext: Any) -> None:
        """Note the flags of a CUDAExtension whose CUDA sources are not at hand."""
        if not getattr(ext, "corpus_is_cuda", False) or any(str(source).endswith(_CUDA) for source in ext.sources):
            return
        given = ext.extra_compile_args
        self.command("", cpp_extension._nvcc_flags(given.get("nvcc", []) if isinstance(given, dict) else list(given)),
                     is_assumed=True)  # fmt: skip


def _hook(recorder: Recorder, *, is_bare: bool) -> None:
    """Put the recorder where torch and setuptools would start to compile."""
    original_flags, original_build = cpp_extension._get_cuda_arch_flags, build_ext.build_extension

    def arch_flags(cflags: list[str] | None = None) -> list[str]:
        try:
            recorder.torch = (original_flags(cflags), None)
        except (IndexError, ValueError) as error:
            # torch would stop here; going on shows the extensions that come after.
            recorder.torch = ([], f"{type(error).__name__}: {error}")
        return recorder.torch[0]

    def build_extension(self: Any, ext: Any) -> None:
        recorder.begin(self.get_ext_fullname(ext.name))
        recorder.torch = ([], None)
        self.compiler.spawn = self.compiler.call = recorder.spawn
        self.compiler.link = self.compiler.link_shared_object = lambda *_, **__: None
        self.compiler.mkpath = lambda *_, **__: None
        if is_bare:
            recorder.bare_cuda(ext)
        original_build(self, ext)
        # What the linker makes on the way, and some packages put files into.
        os.makedirs(os.path.dirname(self.get_ext_fullpath(ext.name)), exist_ok=True)

    cpp_extension._get_cuda_arch_flags = arch_flags
    cpp_extension._write_ninja_file_and_compile_objects = recorder.ninja
    cpp_extension._loaded = recorder.loaded
    build_ext.build_extension = build_extension


def _no_network(*_: object, **__: object) -> NoReturn:
    raise socket.gaierror(-2, "no network during a capture")


def _set_torch(toolkit: Toolkit, capability: tuple[int, int] | None, home: str) -> None:
    torch.__version__ = torch.TorchVersion(toolkit.torch)
    torch.version.__version__ = toolkit.torch
    torch.version.cuda = toolkit.release
    torch.cuda.capability = capability
    torch.cuda.arch_list = toolkit.arch_flags
    torch.cuda.arch_list_without_gpu = toolkit.arch_flags_without_gpu
    cpp_extension.CUDA_HOME = home
    real_version = importlib.metadata.version
    importlib.metadata.version = lambda name: toolkit.torch if name == "torch" else real_version(name)


def observe(  # noqa: PLR0913 - all that a run depends on
    folder: Path,
    environment: Mapping[str, str],
    *,
    toolkit: Toolkit,
    capability: tuple[int, int] | None,
    is_bare: bool,
    is_legacy: bool,
    scratch: str,
    bytecode: str,
) -> dict[str, Any]:
    """Run the `setup.py` in `folder`; this process is of no use for anything else afterwards."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # This package is imported already; what lies beside it is nothing for a setup.py to find.
    beside = Path(__file__).resolve().parents[1]
    sys.path[:] = [*([str(folder)] if is_legacy else []), *(each for each in sys.path if Path(each) != beside)]
    sys.pycache_prefix, sys.dont_write_bytecode = bytecode, False
    sys.meta_path.append(Permissive())
    socket.socket.connect = socket.getaddrinfo = _no_network  # type: ignore[assignment, method-assign]
    Distribution.fetch_build_eggs = lambda *_: []  # type: ignore[method-assign, assignment]
    processes.install(toolkit, capability)
    _set_torch(toolkit, capability, environment["CUDA_HOME"])
    if is_bare:
        bare.install(folder)
    recorder, failure = Recorder(), None
    _hook(recorder, is_bare=is_bare)
    try:
        _run_setup(folder / "setup.py", scratch)
    except BaseException as error:  # noqa: BLE001 - whatever a setup.py raises is what is to be told
        traceback.print_exc()
        failure = _describe(error)
    distribution = getattr(core, "_setup_distribution", None)
    return {
        "name": distribution.get_name() if distribution else None,
        "extensions": recorder.extensions,
        "commands": recorder.commands,
        "failure": failure,
    }


def _run_setup(path: Path, scratch: str) -> None:
    sys.argv = ["setup.py", "build_ext", "--build-temp", scratch, "--build-lib", scratch]
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    exec(code, {"__name__": "__main__", "__file__": str(path), "__builtins__": __builtins__})  # noqa: S102 - what it is for


def _describe(error: BaseException) -> dict[str, Any] | None:
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith("setup.py")]
    message = str(error.code) if isinstance(error, SystemExit) else str(error)
    return {"kind": type(error).__name__, "message": message, "line": frames[-1].lineno if frames else None}
