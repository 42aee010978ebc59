"""A real nvcc: the machine's, seen through its wrapper, and NVIDIA's wheels with the machine's out of sight."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from archpatch.arch.arch import Arch, DeviceCode, Pair
from archpatch.builder.host import inspect_host
from archpatch.builder.interpreter import Interpreter, probe
from archpatch.builder.questions import ask
from archpatch.builder.toolchain import Needs, check, require
from archpatch.builder.toolkit import Origin, Toolkit, Toolkits, environment, resolve_toolkit
from archpatch.errors import ToolchainError

pytestmark = pytest.mark.integration

KERNEL = """\
#include <cub/cub.cuh>
#include <cuda_runtime.h>
__global__ void scale(float *x, float by) { x[blockIdx.x * blockDim.x + threadIdx.x] *= by; }
extern "C" int launch(float *x) { scale<<<1, 32>>>(x, 2.0f); return cudaGetLastError(); }
"""
TORCH_HEADERS = "#include <ATen/cuda/CUDAContext.h>\n#include <c10/cuda/CUDAGuard.h>\n"


@pytest.fixture(scope="module")
def interpreter() -> Interpreter:
    return probe(Path(sys.executable))


@pytest.fixture(scope="module")
def fetched(interpreter: Interpreter, tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    """The toolkit of two threads that ask at once, with no nvcc on PATH, no variable, and an empty /usr/local."""
    folder = tmp_path_factory.mktemp("toolkits")
    places = Toolkits(cache=folder / "cache", local=folder / "local")
    environ = hidden(os.environ)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(resolve_toolkit, "auto", interpreter, environ, toolkits=places) for _ in range(2)]
        first, second = (found.result() for found in waiting)
    assert first == second
    assert sorted(path.name for path in places.cache.iterdir()) == [first.root.name, f"{first.root.name}.lock"]
    return first


def hidden(environ: os._Environ[str]) -> dict[str, str]:
    """Return `environ` as on a machine without a CUDA toolkit."""
    folders = [folder for folder in environ["PATH"].split(os.pathsep) if not Path(folder, "nvcc").exists()]
    return {key: value for key, value in environ.items() if "CUDA" not in key} | {"PATH": os.pathsep.join(folders)}


def run(command: list[object], environ: dict[str, str]) -> None:
    done = subprocess.run(list(map(str, command)), env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nvcc_from_pypi_compiles_and_links(fetched: Toolkit, interpreter: Interpreter, tmp_path: Path) -> None:
    assert fetched.origin is Origin.PYPI
    assert interpreter.torch is not None
    assert fetched.release == interpreter.torch.cuda
    environ = environment(fetched, hidden(os.environ), interpreter=interpreter)
    (tmp_path / "kernel.cu").write_text(KERNEL)
    flags = ["-gencode", "arch=compute_90,code=sm_90", "-Xcompiler", "-fPIC"]
    run(["nvcc", "-c", *flags, tmp_path / "kernel.cu", "-o", tmp_path / "kernel.o"], environ)
    library = tmp_path / "kernel.so"
    run(["g++", "-shared", tmp_path / "kernel.o", f"-L{fetched.root}/lib64", "-lcudart", "-o", library], environ)
    loader = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).launch"
    run([sys.executable, "-c", loader, library], environ | {"LD_LIBRARY_PATH": f"{fetched.root}/lib64"})


@pytest.mark.parametrize("choice", ["pypi", "system"])
def test_torchs_cuda_headers_are_found(choice: str, fetched: Toolkit, interpreter: Interpreter, tmp_path: Path) -> None:
    assert interpreter.torch is not None
    toolkit = fetched if choice == "pypi" else resolve_toolkit("system", interpreter, os.environ)
    environ = environment(toolkit, os.environ, interpreter=interpreter)
    (tmp_path / "headers.cu").write_text(TORCH_HEADERS)
    include = interpreter.torch.folder / "include"
    options = [f"-std=c++{interpreter.torch.cxx_standard}", f"-I{include}", f"-I{toolkit.root}/include"]
    run([toolkit.nvcc, "-E", *options, tmp_path / "headers.cu", "-o", tmp_path / "headers.ii"], environ)


def test_the_machines_toolkit_is_found_behind_its_wrapper(interpreter: Interpreter, tmp_path: Path) -> None:
    real = resolve_toolkit("system", interpreter, os.environ)
    wrapper = tmp_path / "bin/nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {real.nvcc} "$@"\n')
    wrapper.chmod(0o755)
    places = Toolkits(cache=tmp_path / "cache", local=tmp_path / "local")
    environ = hidden(os.environ) | {"PATH": f"{wrapper.parent}:/usr/bin:/bin"}
    found = resolve_toolkit("system", interpreter, environ, toolkits=places)
    assert found.root.samefile(real.root)
    assert found.found_by == "nvcc on PATH"


@pytest.mark.parametrize(
    ("compute", "code"),
    [
        *(("9.0", "sm_90"), ("9.0a", "sm_90a"), ("10.0f", "sm_100"), ("12.0f", "sm_120f"), ("9.0", "compute_90")),
        *(("7.0", "sm_70"), ("10.1", "sm_101"), ("8.9", "sm_89"), ("10.7", "sm_107")),
    ],
)
def test_nvcc_agrees_on_what_it_supports(interpreter: Interpreter, tmp_path: Path, compute: str, code: str) -> None:
    toolkit = resolve_toolkit("system", interpreter, os.environ)
    (tmp_path / "empty.cu").touch()
    pair = Pair(Arch.parse(compute), DeviceCode.parse(code))
    flag = f"-gencode=arch={pair.spelled[0]},code={pair.spelled[1]}"
    answer = ask([str(toolkit.nvcc), "--dryrun", flag, "-c", str(tmp_path / "empty.cu"), "-o", os.devnull])
    assert toolkit.supports(pair) is (answer.status == 0)


def test_an_index_without_the_wheels_leaves_nothing(
    interpreter: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ToolchainError, match="No matching distribution found for cuda-toolkit"):
        resolve_toolkit("pypi", interpreter, os.environ, toolkits=Toolkits(cache=tmp_path / "cache"))
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_another_interpreter_is_seen_as_it_sees_itself(tmp_path: Path, interpreter: Interpreter) -> None:
    run([sys.executable, "-m", "venv", "--without-pip", tmp_path], dict(os.environ))
    bare = probe(tmp_path / "bin/python")
    assert bare.torch is None
    assert bare.version_of("pip") is None
    assert (bare.abi_tag, bare.platform_tag) == (interpreter.abi_tag, interpreter.platform_tag)


def test_this_machine_can_build(interpreter: Interpreter, fetched: Toolkit, tmp_path: Path) -> None:
    host = inspect_host(interpreter, os.environ, folder=tmp_path)
    require(check(interpreter, fetched, host, Needs(pairs=(Pair.of(DeviceCode.parse("sm_90a")),))))
