"""A short `torch.utils.cpp_extension`: the same order of calls as torch 2.14, and nothing behind them.

`corpus.harness` replaces `_write_ninja_file_and_compile_objects`, and watches `_get_cuda_arch_flags`.
"""

# ruff: noqa: ANN401, ARG001, ARG002, FBT001, PTH100, PTH118, PTH122, SIM905 - the signatures are those of torch

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import setuptools
from corpus.anything import answer
from setuptools.command.build_ext import build_ext

import torch
from torch import TorchVersion

CUDA_HOME: str | None = None
CUDNN_HOME: str | None = None
ROCM_HOME: str | None = None
SYCL_HOME: str | None = None
ROCM_VERSION: tuple[int, int] | None = None
IS_HIP_EXTENSION = IS_WINDOWS = IS_MACOS = False
IS_LINUX = True
LIB_EXT, EXEC_EXT, CLIB_PREFIX, CLIB_EXT, SHARED_FLAG = ".so", "", "lib", ".so", "-shared"
SUBPROCESS_DECODE_ARGS: tuple[str, ...] = ()
TORCH_LIB_PATH = "/absent/torch/lib"
CUDA_GCC_VERSIONS: dict[str, object] = {}
CUDA_CLANG_VERSIONS: dict[str, object] = {}
COMMON_NVCC_FLAGS = [
    *("-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__", "-D__CUDA_NO_BFLOAT16_CONVERSIONS__"),
    *("-D__CUDA_NO_HALF2_OPERATORS__", "--expt-relaxed-constexpr"),
]
COMMON_HIP_FLAGS: list[str] = []
COMMON_HIPCC_FLAGS: list[str] = []
JIT_EXTENSION_VERSIONER = None

_NAMED = {
    "Kepler+Tesla": "3.7",
    "Kepler": "3.5+PTX",
    "Maxwell+Tegra": "5.3",
    "Maxwell": "5.0;5.2+PTX",
    "Pascal": "6.0;6.1+PTX",
    "Volta+Tegra": "7.2",
    "Volta": "7.0+PTX",
    "Turing": "7.5+PTX",
    "Ampere+Tegra": "8.7",
    "Ampere": "8.0;8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell+Tegra": "11.0",
    "Blackwell": "10.0;10.3;12.0;12.1+PTX",
    "Rubin": "10.7+PTX",
}
_KNOWN = frozenset(
    "3.5 3.7 5.0 5.2 5.3 6.0 6.1 6.2 7.0 7.2 7.5 8.0 8.6 8.7 8.9 9.0 9.0a 10.0 10.0a 11.0 11.0a 10.3 10.3a 10.7 10.7a "
    "12.0 12.0a 12.1 12.1a".split()
)


def _is_cuda_file(path: str) -> bool:
    return os.path.splitext(path)[1] in (".cu", ".cuh")


def _join_cuda_home(*paths: str) -> str:
    if CUDA_HOME is None:
        raise OSError("CUDA_HOME environment variable is not set.")
    return os.path.join(CUDA_HOME, *paths)


def _join_rocm_home(*_: str) -> str:
    raise OSError("ROCM_HOME environment variable is not set.")


def _find_cuda_home() -> str | None:
    return os.environ.get("CUDA_HOME") or CUDA_HOME


def _find_rocm_home() -> None:
    return None


def _maybe_write(filename: str, new_content: str) -> None:
    Path(filename).write_text(new_content, encoding="utf-8")


def _get_num_workers(verbose: bool) -> int | None:
    jobs = os.environ.get("MAX_JOBS")
    return int(jobs) if jobs is not None and jobs.isdigit() else None


def get_cxx_compiler() -> str:
    """Return the host compiler."""
    return os.environ.get("CXX", "c++")


def get_compiler_abi_compatibility_and_version(compiler: str) -> tuple[bool, TorchVersion]:
    """Return that the compiler is fine, and its version."""
    return True, TorchVersion("13.3.0")


def check_compiler_ok_for_platform(compiler: str) -> bool:
    """Return that the compiler is fine."""
    return True


def check_compiler_is_gcc(compiler: str) -> bool:
    """Return that the compiler is GCC."""
    return True


def _check_cuda_version(*_: object) -> None:
    """Find the versions of nvcc and torch equal."""


def is_ninja_available() -> bool:
    """Return that ninja is there."""
    return True


def verify_ninja_availability() -> None:
    """Find ninja."""


def include_paths(*_: object, **__: object) -> list[str]:
    """Return torch's include folders."""
    return ["/absent/torch/include", "/absent/torch/include/torch/csrc/api/include"]


def library_paths(*_: object, **__: object) -> list[str]:
    """Return torch's library folders."""
    return [TORCH_LIB_PATH]


def _visible_archs() -> list[str]:
    """Return the archs of the visible GPUs, the last one with PTX; raises IndexError where there is none, as torch."""
    capabilities = {torch.cuda.get_device_capability(number) for number in range(torch.cuda.device_count())}
    archs = sorted(f"{major}.{minor}" for major, minor in capabilities)
    archs[-1] += "+PTX"
    return archs


def _get_cuda_arch_flags(cflags: list[str] | None = None) -> list[str]:
    """Return torch's own flags for `TORCH_CUDA_ARCH_LIST`; none where any flag contains the letters `arch`."""
    if any("arch" in flag for flag in cflags or () if "TORCH_EXTENSION_NAME" not in flag):
        return []
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if listed and listed != "native":
        listed = listed.replace(" ", ";")
        for name, archs in _NAMED.items():
            listed = listed.replace(name, archs)
        chosen = listed.split(";")
    else:
        chosen = _visible_archs()
    flags = set()
    for arch in chosen:
        if arch.removesuffix("+PTX") not in _KNOWN:
            raise ValueError(f"Unknown CUDA arch ({arch}) or GPU not supported")
        number = arch.removesuffix("+PTX").replace(".", "")
        flags.add(f"-gencode=arch=compute_{number},code=sm_{number}")
        if arch.endswith("+PTX"):
            flags.add(f"-gencode=arch=compute_{number},code=compute_{number}")
    return sorted(flags)


def _write_ninja_file(**_: Any) -> None:
    """Write nothing."""


def _run_ninja_build(*_: object, **__: object) -> None:
    """Build nothing."""


def _write_ninja_file_and_compile_objects(**_: Any) -> None:
    """Compile nothing."""


def _standard(flags: list[str]) -> list[str]:
    return flags if any(flag.startswith("-std=") for flag in flags) else [*flags, "-std=c++20"]


def _nvcc_flags(flags: list[str]) -> list[str]:
    # torch reads this function through its module, so that what replaced it is what runs.
    own = [*COMMON_NVCC_FLAGS, "--compiler-options", "'-fPIC'", *flags]
    added = globals()["_get_cuda_arch_flags"](flags)
    host = os.environ.get("CC")
    chosen = any(flag.startswith(("-ccbin", "--compiler-bindir")) for flag in flags)
    return [*own, *added, *(["-ccbin", host] if host is not None and not chosen else [])]


class BuildExtension(build_ext):
    """The command; subclasses override `build_extensions` and `build_extension`."""

    @classmethod
    def with_options(cls, **options: Any) -> type[BuildExtension]:
        """Return a subclass that is made with `options`."""

        class WithOptions(cls):  # type: ignore[misc, valid-type]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                kwargs.update(options)
                super().__init__(*args, **kwargs)

        return WithOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.no_python_abi_suffix = kwargs.get("no_python_abi_suffix", False)
        self.use_ninja = kwargs.get("use_ninja", True)

    def finalize_options(self) -> None:
        """Compile anew with ninja, which looks for itself."""
        super().finalize_options()
        if self.use_ninja:
            self.force = True

    def build_extensions(self) -> None:
        """Prepare the flags of each extension, put torch's compile function in place, and go on as setuptools."""
        self._check_abi()
        for extension in self.extensions:
            if isinstance(extension.extra_compile_args, dict):
                for language in ("cxx", "nvcc", "sycl"):
                    extension.extra_compile_args.setdefault(language, [])
            self._add_compile_flag(extension, "-DTORCH_API_INCLUDE_EXTENSION_H")
            self._define_torch_extension_name(extension)
        self.compiler.src_extensions += [".cu", ".cuh", ".hip", ".sycl"]
        if self.use_ninja:
            self.compiler.compile = self._compile_with_ninja
        else:
            self._original_compile = self.compiler._compile
            self.compiler._compile = self._compile_one
        super().build_extensions()

    def _compile_with_ninja(
        self,
        sources: list[str],
        output_dir: str | None = None,
        macros: Any = None,
        include_dirs: Any = None,
        **rest: Any,
    ) -> list[str]:
        given = rest.get("extra_postargs") or []
        with_cuda = any(map(_is_cuda_file, sources))
        host = given["cxx"] if isinstance(given, dict) else list(given)
        nvcc = dlink = None
        if with_cuda:
            nvcc = _standard(_nvcc_flags(given["nvcc"] if isinstance(given, dict) else list(given)))
        if isinstance(given, dict) and "nvcc_dlink" in given:
            dlink = _nvcc_flags(given["nvcc_dlink"])
        folder = os.path.abspath(output_dir or ".")
        objects = [os.path.join(folder, os.path.splitext(source)[0].lstrip("/") + ".o") for source in sources]
        globals()["_write_ninja_file_and_compile_objects"](
            sources=sources,
            objects=objects,
            cflags=[],
            post_cflags=_standard(host),
            cuda_cflags=[] if with_cuda else None,
            cuda_post_cflags=nvcc,
            cuda_dlink_post_cflags=dlink,
            sycl_cflags=None,
            sycl_post_cflags=None,
            sycl_dlink_post_cflags=None,
            build_directory=folder,
            verbose=True,
            with_cuda=with_cuda,
            with_sycl=False,
        )
        return objects

    def _compile_one(self, obj: str, src: str, ext: str, cc_args: list[str], extra_postargs: Any, pp_opts: Any) -> None:
        flags = copy.deepcopy(extra_postargs)
        before = self.compiler.compiler_so
        try:
            if _is_cuda_file(src):
                self.compiler.set_executable("compiler_so", [_join_cuda_home("bin", "nvcc")])
                flags = _nvcc_flags(flags["nvcc"] if isinstance(flags, dict) else flags)
            elif isinstance(flags, dict):
                flags = flags["cxx"]
            self._original_compile(obj, src, ext, cc_args, _standard(flags), pp_opts)
        finally:
            self.compiler.set_executable("compiler_so", before)

    def _check_abi(self) -> tuple[str, TorchVersion]:
        return get_cxx_compiler(), get_compiler_abi_compatibility_and_version("c++")[1]

    def _add_compile_flag(self, extension: Any, flag: str) -> None:
        # The copy is torch's: from here on, extensions that shared one dict have one each.
        extension.extra_compile_args = copy.deepcopy(extension.extra_compile_args)
        lists = extension.extra_compile_args
        for flags in lists.values() if isinstance(lists, dict) else [lists]:
            flags.append(flag)

    def _define_torch_extension_name(self, extension: Any) -> None:
        self._add_compile_flag(extension, f"-DTORCH_EXTENSION_NAME={extension.name.split('.')[-1]}")

    def _add_gnu_cpp_abi_flag(self, extension: Any) -> None:
        self._add_compile_flag(extension, "-D_GLIBCXX_USE_CXX11_ABI=1")

    def _hipify_compile_flags(self, extension: Any) -> None:
        """Change nothing: this is CUDA."""


def _extension(name: str, sources: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> setuptools.Extension:
    kwargs["include_dirs"] = [*(kwargs.get("include_dirs") or []), *include_paths()]
    kwargs["library_dirs"] = [*(kwargs.get("library_dirs") or []), *library_paths()]
    kwargs["language"] = "c++"
    return setuptools.Extension(name, sources, *args, **kwargs)


def CppExtension(name: str, sources: list[str], *args: Any, **kwargs: Any) -> setuptools.Extension:  # noqa: N802
    """Return an extension of C++ alone."""
    return _extension(name, sources, args, kwargs)


def CUDAExtension(name: str, sources: list[str], *args: Any, **kwargs: Any) -> setuptools.Extension:  # noqa: N802
    """Return an extension with CUDA code; with `dlink` its device code is linked."""
    libraries = kwargs.get("dlink_libraries", [])
    if kwargs.get("dlink", False) or libraries:
        flags = kwargs.get("extra_compile_args", {})
        flags["nvcc_dlink"] = [*flags.get("nvcc_dlink", []), "-dlink", *(f"-l{name}" for name in libraries), "-dlto"]
        kwargs["extra_compile_args"] = flags
    extension = _extension(name, sources, args, kwargs)
    extension.corpus_is_cuda = True
    return extension


def SyclExtension(name: str, sources: list[str], *args: Any, **kwargs: Any) -> setuptools.Extension:  # noqa: N802
    """Return an extension for another maker's GPUs."""
    return _extension(name, sources, args, kwargs)


def load(name: str, sources: Any, extra_cflags: Any = None, extra_cuda_cflags: Any = None, **_: Any) -> Any:
    """Note the flags of an extension that is compiled while `setup.py` runs."""
    sources = [sources] if isinstance(sources, str) else list(sources)
    nvcc = _nvcc_flags(list(extra_cuda_cflags or [])) if any(map(_is_cuda_file, sources)) else None
    globals()["_loaded"](name, sources, nvcc)
    return answer("module")


def load_inline(name: str, cuda_sources: Any = None, extra_cuda_cflags: Any = None, **_: Any) -> Any:
    """Note the flags of an extension whose source is a string."""
    globals()["_loaded"](name, [], _nvcc_flags(list(extra_cuda_cflags or [])) if cuda_sources else None)
    return answer("module")


def _loaded(name: str, sources: list[str], nvcc: list[str] | None) -> None:
    """Note nothing."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return answer(name)
