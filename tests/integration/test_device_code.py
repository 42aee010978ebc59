"""What nvcc really writes, read by us and by NVIDIA's own cuobjdump."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import output_of

from archpatch.arch.coverage import Verdict
from archpatch.arch.gpu import find_gpu
from archpatch.wheels.elf import Binary
from archpatch.wheels.inspection import inspect_path
from archpatch.wheels.metadata import read_metadata, relabel, verify_record

pytestmark = pytest.mark.integration

FIXTURES = Path(__file__).parents[2] / "fixtures" / "cuda"
CUDA_HOME = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
#: Big enough, with its strings and branches, that every compress mode has something to do.
KERNEL = """\
#include <cstdio>
__global__ void scale(float *x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) { x[i] = sinf(x[i]) / 2; }
  if (n < 0) { printf("%d\\n", n); }
}
extern "C" void launch(float *x, int n) { scale<<<1, 32>>>(x, n); }
"""

Compile = Callable[..., Path]


@pytest.fixture
def compiled(nvcc: Path, tmp_path: Path) -> Compile:
    (tmp_path / "k.cu").write_text(KERNEL)

    def compile_to(name: str, *flags: str) -> Path:
        output_of([nvcc, "-Xcompiler", "-fPIC", tmp_path / "k.cu", *flags, "-o", tmp_path / name])
        return tmp_path / name

    return compile_to


def read(path: Path) -> Binary:
    (binary,) = inspect_path(path).files
    return binary


def spelled(path: Path) -> list[str]:
    binary = read(path)
    return [*map(str, binary.device_code), *binary.other]


def oracle(cuobjdump: Path, path: Path) -> set[str]:
    """Return what cuobjdump lists; of a cubin it does not tell the family suffix."""
    listed = "".join(
        subprocess.run([cuobjdump, "-all", option, path], capture_output=True, text=True, check=False).stdout
        for option in ("-lelf", "-lptx")
    )
    kinds = {"cubin": "sm", "ptx": "compute"}
    return {f"{kinds[kind]}_{arch}" for arch, kind in re.findall(r"\.sm_(\w+)\.(cubin|ptx)$", listed, re.MULTILINE)}


def as_the_oracle_sees(path: Path) -> set[str]:
    binary = read(path)
    return {re.sub(r"^(sm_\d+)f$", r"\1", str(code)) for code in binary.device_code}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-gencode", "arch=compute_90,code=sm_90"], ["sm_90"]),
        (["-gencode", "arch=compute_90a,code=sm_90a"], ["sm_90a"]),
        (["-gencode", "arch=compute_90a,code=compute_90a"], ["compute_90a"]),
        (["-gencode", "arch=compute_100f,code=sm_100f"], ["sm_100f"]),
        (["-gencode", "arch=compute_100f,code=sm_100"], ["sm_100f"]),
        (["-gencode", "arch=compute_100f,code=sm_103"], ["sm_103f"]),
        (["-gencode", "arch=compute_120a,code=sm_120a"], ["sm_120a"]),
        (["-gencode", "arch=compute_120f,code=compute_120f"], ["compute_120f"]),
        (["-arch=sm_90"], ["sm_90", "compute_90"]),
        (["-gencode", "arch=compute_80,code=sm_80", "-arch=sm_90"], ["sm_80", "sm_90", "compute_90"]),
        ([], ["sm_75", "compute_75"]),
        (["-rdc=true", "-gencode", "arch=compute_90,code=[sm_90,compute_90]"], ["sm_90", "compute_90"]),
        (["-dlto", "-dc", "-arch=sm_90"], ["compute_90", "lto_90"]),
        (["-dc", "-gencode", "arch=compute_90,code=[lto_90,sm_90]"], ["sm_90", "lto_90"]),
        (["-dc", "-gencode", "arch=compute_90a,code=lto_90a"], ["lto_90a"]),
        (["-dc", "-gencode", "arch=compute_100f,code=lto_100f"], ["lto_100f"]),
        (["-G", "-gencode", "arch=compute_90,code=[sm_90,compute_90]"], ["sm_90", "compute_90"]),
        (["-lineinfo", "-gencode", "arch=compute_90,code=[sm_90,compute_90]"], ["sm_90", "compute_90"]),
    ],
    ids=" ".join,
)
def test_every_kind_of_device_code(compiled: Compile, cuobjdump: Path, flags: list[str], expected: list[str]) -> None:
    found = compiled("k.o", "-c", *flags)
    assert spelled(found) == expected
    assert as_the_oracle_sees(found) == oracle(cuobjdump, found)


@pytest.mark.parametrize("mode", ["none", "size", "speed", "balance", "default"])
def test_every_compress_mode(compiled: Compile, cuobjdump: Path, mode: str) -> None:
    found = compiled("k.o", "-c", f"--compress-mode={mode}", "-gencode", "arch=compute_90a,code=[sm_90a,compute_90a]")
    assert spelled(found) == ["sm_90a", "compute_90a"]
    assert as_the_oracle_sees(found) == oracle(cuobjdump, found)


@pytest.mark.parametrize("arch", ["80", "90", "90a", "100f", "103f", "120", "120a", "120f"])
def test_a_bare_cubin(compiled: Compile, arch: str) -> None:
    found = read(compiled("k.cubin", "-cubin", f"-arch=sm_{arch}"))
    assert ([*map(str, found.cubins)], found.machine, found.is_cubin) == ([f"sm_{arch}"], "cuda", True)


def test_a_library_that_nvcc_links_holds_an_empty_cubin_of_its_default_arch(
    compiled: Compile, nvcc: Path, cuobjdump: Path, tmp_path: Path
) -> None:
    built = compiled("k.o", "-c", "-gencode", "arch=compute_90,code=sm_90")
    output_of([nvcc, "-shared", built, "-o", tmp_path / "by_nvcc.so"])
    output_of(["g++", "-shared", built, "-o", tmp_path / "by_gxx.so"])
    assert spelled(tmp_path / "by_nvcc.so") == ["sm_75", "sm_90"]
    assert spelled(tmp_path / "by_gxx.so") == ["sm_90"]
    assert as_the_oracle_sees(tmp_path / "by_nvcc.so") == oracle(cuobjdump, tmp_path / "by_nvcc.so")
    assert read(tmp_path / "by_nvcc.so").machine == os.uname().machine


def test_after_a_device_link_only_the_linked_code_can_be_loaded(
    compiled: Compile, nvcc: Path, cuobjdump: Path, tmp_path: Path
) -> None:
    built = compiled("k.o", "-c", "-rdc=true", "-gencode", "arch=compute_90,code=[sm_90,compute_90]")
    output_of([nvcc, "-shared", "-arch=sm_90", built, "-o", tmp_path / "k.so"])
    binary = read(tmp_path / "k.so")
    assert spelled(tmp_path / "k.so") == ["sm_90", "compute_90"]
    assert [*map(str, binary.loadable)] == ["sm_90"]
    assert as_the_oracle_sees(tmp_path / "k.so") == oracle(cuobjdump, tmp_path / "k.so")
    inspection = inspect_path(tmp_path / "k.so")
    assert [inspection.runs_on(find_gpu(gpu)).verdict for gpu in ("h200", "b200")] == [Verdict.NATIVE, Verdict.NO]


def test_a_large_library_of_many_containers(cuobjdump: Path) -> None:
    torch = pytest.importorskip("torch")
    library = Path(torch.__file__).parent / "lib" / "libtorch_cuda_linalg.so"
    if not library.exists():
        pytest.skip("this torch has no CUDA")
    assert as_the_oracle_sees(library) == oracle(cuobjdump, library) != set()


@pytest.fixture(scope="module")
def mini_wheel(nvcc: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The miniature project, built by plain `build` as any package is."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("mini")
    shutil.copytree(FIXTURES / "mini", folder / "mini")
    environ = {**os.environ, "CUDA_HOME": str(nvcc.parent.parent), "MAX_JOBS": "1"}
    output_of([sys.executable, "-m", "build", "--wheel", "--no-isolation", folder / "mini", "-o", folder], env=environ)
    (built,) = folder.glob("*.whl")
    return built


def test_a_real_wheel_is_read_and_judged(mini_wheel: Path) -> None:
    found = inspect_path(mini_wheel)
    (binary,) = found.files
    assert binary.path.startswith("archpatch_mini/_C.")
    assert [str(code) for code in binary.device_code] == ["sm_75", "sm_80", "sm_90", "sm_120"]
    assert binary.needs.glibc is not None
    judged = [found.runs_on(find_gpu(gpu)) for gpu in ("h200", "l4", "b200")]
    assert [verdict.verdict for verdict in judged] == [Verdict.NATIVE, Verdict.COMPATIBLE, Verdict.NO]
    assert [str(code) for code in judged[1].via] == ["sm_80"]


def test_a_relabelled_wheel_installs_and_its_extension_loads(mini_wheel: Path, tmp_path: Path) -> None:
    labelled = relabel(mini_wheel, "cu130torch2.14.1sm90", tmp_path)
    verify_record(labelled)
    assert read_metadata(labelled).tags == read_metadata(mini_wheel).tags
    site = tmp_path / "site"
    output_of([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, labelled])
    # Without a GPU the kernel cannot run; the extension must still load, and say so in CUDA's words.
    script = """
import importlib.metadata, archpatch_mini
print(importlib.metadata.version("archpatch_mini"))
try:
    print(archpatch_mini.add(1000))
except RuntimeError as error:
    print("CUDA:", error)
"""
    version, said = output_of([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(site)}).splitlines()
    assert version == "0.1.0+cu130torch2.14.1sm90"
    assert said == str(3 * sum(range(1000))) or said.startswith("CUDA: ")
