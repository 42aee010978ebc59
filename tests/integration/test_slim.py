"""What nvcc really writes and PyPI really holds, slimmed, and read by NVIDIA's own cuobjdump."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import resource
import shutil
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import CUDA_HOME, FIXTURES, CommandLine, dumped, output_of

from archpatch.wheels.device_sections import read_device_sections
from archpatch.wheels.elf import Binary
from archpatch.wheels.inspection import inspect_path
from archpatch.wheels.metadata import verify_record

pytestmark = pytest.mark.integration

#: Two translation units; the second one has data of its own, and strings and branches for the compressors.
UNITS = {
    "scale.cu": """\
#include <cstdio>
__global__ void scale(float *x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) { x[i] = sinf(x[i]) / 2; }
  if (n < 0) { printf("%d\\n", n); }
}
extern "C" int run_scale(float *x, int n) { scale<<<1, 32>>>(x, n); return cudaGetLastError(); }
""",
    "shift.cu": """\
__device__ float table[4] = {1, 2, 3, 4};
__global__ void shift(float *x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) { x[i] += table[i & 3]; }
}
extern "C" int run_shift(float *x, int n) { shift<<<1, 32>>>(x, n); return cudaGetLastError(); }
""",
}
GENCODE = (
    *("-gencode", "arch=compute_80,code=sm_80"),
    *("-gencode", "arch=compute_90,code=[sm_90,compute_90]"),
    *("-gencode", "arch=compute_100,code=sm_100"),
)

Compile = Callable[..., Path]


@pytest.fixture
def linked(nvcc: Path, tmp_path: Path) -> Compile:
    """Compile both units and link them, by the host's linker as torch does, or by nvcc."""

    def compile_and_link(*flags: str, by_nvcc: bool = False) -> Path:
        objects = []
        for name, source in UNITS.items():
            (tmp_path / name).write_text(source)
            objects.append(tmp_path / f"{name}.o")
            output_of([nvcc, "-Xcompiler", "-fPIC", "-c", *GENCODE, *flags, tmp_path / name, "-o", objects[-1]])
        library = tmp_path / "_C.so"
        linker = [nvcc, *flags] if by_nvcc else ["g++", "-L", CUDA_HOME / "lib64"]
        tail = [*GENCODE] if "-rdc=true" in flags else [] if by_nvcc else ["-lcudart_static", "-ldl", "-lrt"]
        output_of([*linker, "-shared", *objects, "-o", library, *tail])
        return library

    return compile_and_link


def slim(archpatch: CommandLine, file: Path, *arguments: str) -> Path:
    answer = archpatch("slim", file, *arguments, "-o", archpatch.folder / "slim")
    assert answer.status == 0, answer.stderr
    return Path(answer.stdout.strip())


def cubins(cuobjdump: Path, library: Path, into: Path, arch: str) -> Counter[str]:
    """Return the hashes of the cubins of one arch, as cuobjdump takes them out."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    output_of([cuobjdump, "-all", "-xelf", f"sm_{arch}", library], cwd=into)
    files = [path for path in into.iterdir() if re.search(rf"\.sm_{arch}\.cubin$", path.name)]
    return Counter(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)


@pytest.mark.parametrize("mode", ["none", "size", "speed"])
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("--arch", "9.0"), {"sm_90"}),
        (("--arch", "9.0+PTX"), {"sm_90", "compute_90"}),
        (("--arch", "8.0;10.0"), {"sm_80", "sm_100"}),
        (("--gpu", "l4"), {"sm_80"}),
        (("--gpu", "b300"), {"sm_100"}),
        (("--gpu", "rtx-50"), {"compute_90"}),
    ],
    ids=lambda value: " ".join(sorted(value)),
)
def test_what_stays_is_what_was_there_to_the_byte(
    archpatch: CommandLine, linked: Compile, cuobjdump: Path, mode: str, asked: tuple[str, ...], expected: set[str]
) -> None:
    wide = linked(f"--compress-mode={mode}")
    narrow = slim(archpatch, wide, *asked)
    assert dumped(cuobjdump, wide) == {"sm_80", "sm_90", "compute_90", "sm_100"}
    assert dumped(cuobjdump, narrow) == expected
    (binary,) = inspect_path(narrow).files
    assert set(map(str, binary.device_code)) == expected
    assert {frozenset(map(str, part)) for part in binary.parts} == {frozenset(expected)}
    for code in expected:
        if code.startswith("sm_"):
            number = code.removeprefix("sm_")
            before = cubins(cuobjdump, wide, archpatch.folder / "before", number)
            assert before == cubins(cuobjdump, narrow, archpatch.folder / "after", number)
            assert before.total() == len(UNITS)


def test_a_slimmed_library_loads_and_asks_for_a_gpu(archpatch: CommandLine, linked: Compile) -> None:
    narrow = slim(archpatch, linked(), "--arch", "9.0")
    script = "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); print(lib.run_scale(None, 0), lib.run_shift(None, 0))"
    codes = output_of([sys.executable, "-c", script, narrow]).split()
    # cudaErrorNoDevice, cudaErrorInsufficientDriver: what it says where there is no GPU; 0 and 209 are for other tests.
    assert set(codes) <= {"0", "35", "100", "209"}
    assert ctypes.CDLL(str(narrow)).run_scale is not None


def test_the_empty_cubin_of_nvccs_own_link_stays(archpatch: CommandLine, linked: Compile, cuobjdump: Path) -> None:
    narrow = slim(archpatch, linked(by_nvcc=True), "--arch", "9.0")
    assert dumped(cuobjdump, narrow) == {"sm_75", "sm_90"}


def test_an_object_file_is_refused(archpatch: CommandLine, linked: Compile) -> None:
    wide = linked()
    answer = archpatch("slim", wide.with_name("scale.cu.o"), "--arch", "9.0", "-o", archpatch.folder / "slim")
    assert answer.status == 3
    assert "it is an object file" in answer.stderr


def test_relocatable_device_code_is_refused_or_cut_on_demand(
    archpatch: CommandLine, linked: Compile, cuobjdump: Path
) -> None:
    wide = linked("-rdc=true", by_nvcc=True)
    refused = archpatch("slim", wide, "--arch", "9.0", "-o", archpatch.folder / "slim")
    assert refused.status == 3
    assert "__nv_relfatbin" in refused.stderr
    assert not list((archpatch.folder / "slim").iterdir())
    narrow = slim(archpatch, wide, "--arch", "9.0", "--allow-relocatable")
    assert dumped(cuobjdump, narrow) == {"sm_90"}
    before = cubins(cuobjdump, wide, archpatch.folder / "before", "90")
    assert before == cubins(cuobjdump, narrow, archpatch.folder / "after", "90")
    # One for each unit, and the one that they were linked to.
    assert before.total() == len(UNITS) + 1


def test_link_time_code_is_refused(archpatch: CommandLine, nvcc: Path, linked: Compile) -> None:
    linked()
    flags = ["-Xcompiler", "-fPIC", "-gencode", "arch=compute_90,code=[lto_90,sm_90]", "-rdc=true"]
    library = archpatch.folder / "lto.so"
    output_of([nvcc, *flags, "-shared", archpatch.folder / "scale.cu", "-o", library])
    answer = archpatch("slim", library, "--arch", "9.0", "-o", archpatch.folder / "slim", "--allow-relocatable")
    assert answer.status == 3
    assert "lto_90 is neither a cubin nor PTX" in answer.stderr


def test_a_large_library_with_containers_of_many_kinds(archpatch: CommandLine, cuobjdump: Path) -> None:
    torch = pytest.importorskip("torch")
    wide = Path(torch.__file__).parent / "lib" / "libtorch_cuda_linalg.so"
    if not wide.exists():
        pytest.skip("this torch has no CUDA")
    narrow = slim(archpatch, wide, "--gpu", "h200")
    assert dumped(cuobjdump, narrow) == {"sm_90"}
    before = cubins(cuobjdump, wide, archpatch.folder / "before", "90")
    assert before == cubins(cuobjdump, narrow, archpatch.folder / "after", "90")


# --- wheels ---


def test_a_wheel_of_ours_is_slimmed_filed_and_no_hit_for_a_build(archpatch: CommandLine) -> None:
    wide = archpatch("build", FIXTURES / "mini", "--arch", "8.0;9.0").wheel
    answer = archpatch("slim", wide, "--gpu", "h200", "--wheelhouse", archpatch.wheelhouse)
    narrow, record = answer.wheel, answer.record
    assert narrow.parent.parent.name == "sm90"
    assert narrow.name == wide.name.replace("sm80.sm90", "sm90")
    assert record["inputs"]["slimmed-from"] == hashlib.sha256(wide.read_bytes()).hexdigest()
    assert archpatch("wheelhouse", "path", "archpatch_mini", "--gpu", "h200").stdout.strip() == str(narrow)
    assert archpatch("wheelhouse", "verify").status == 0
    built = archpatch("build", FIXTURES / "mini", "--arch", "9.0", "--json")
    assert built.json["wheels"][0]["hit"] is False
    assert "slimmed-from was" in built.stderr
    again = archpatch("slim", wide, "--arch", "9.0", "--wheelhouse", archpatch.wheelhouse, "--no-replace")
    assert again.status == 5


def test_a_slimmed_wheel_installs_and_its_extension_loads(archpatch: CommandLine) -> None:
    wide = archpatch("build", FIXTURES / "mini", "--arch", "8.0;9.0").wheel
    narrow = slim(archpatch, wide, "--arch", "9.0")
    site = archpatch.folder / "site"
    output_of([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", site, narrow])
    script = "import importlib.metadata as m, archpatch_mini._C; print(m.version('archpatch_mini'))"
    version = output_of([sys.executable, "-c", f"import torch; {script}"], env={**os.environ, "PYTHONPATH": str(site)})
    assert re.fullmatch(r"0\.1\.0\+cu130torch[\d.]+sm90", version.strip())


def test_bitsandbytes_as_published(archpatch: CommandLine, bitsandbytes: Path, cuobjdump: Path) -> None:
    refused = archpatch("slim", bitsandbytes, "--arch", "9.0", "-o", archpatch.folder / "slim")
    assert (refused.status, "--allow-relocatable" in refused.stderr) == (3, True)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    narrow = slim(archpatch, bitsandbytes, "--arch", "9.0", "--allow-relocatable")
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    size = bitsandbytes.stat().st_size / 1e8
    print(  # noqa: T201 - the figure is what this prints
        f"\n{size * 100:.1f} MB to {narrow.stat().st_size / 1e6:.1f} MB; per 100 MB: {seconds / size:.2f} s, "
        f"{cpu / size:.2f} s of one core"
    )
    verify_record(narrow)
    libraries = [file for file in inspect_path(narrow).files if file.device_code]
    assert [list(map(str, file.device_code)) for file in libraries] == [["sm_90"]] * 7
    compared = 0
    for library in libraries:
        old, new = (extract(wheel, library.path, archpatch.folder / "unpacked") for wheel in (bitsandbytes, narrow))
        assert entries(old, "sm_90") == entries(new, "sm_90")
        assert entries(new, "sm_90").total() == 7
        if dumped(cuobjdump, old) >= {"sm_80", "sm_90"}:
            assert dumped(cuobjdump, new) == {"sm_90"}
            folder = archpatch.folder / "cubins"
            assert cubins(cuobjdump, old, folder, "90") == cubins(cuobjdump, new, folder, "90") != Counter()
            compared += 1
    # cuobjdump 13.5 does not read what CUDA 12.1 compiled: "Invalid ELF", also as published.
    assert compared >= 6
    assert other_files(narrow, libraries) == other_files(bitsandbytes, libraries)


def entries(library: Path, code: str) -> Counter[str]:
    """Return the hashes of the entries for one arch, headers included, as they lie in the containers."""
    data = library.read_bytes()
    return Counter(
        hashlib.sha256(data[section.offset + entry.offset : section.offset + entry.end]).hexdigest()
        for section in read_device_sections(data, path=library.name, allow_relocatable=True)
        for container in section.containers
        for entry in container.entries
        if str(entry) == code
    )


def extract(wheel: Path, name: str, into: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(name, into / wheel.name))


def other_files(wheel: Path, libraries: list[Binary]) -> dict[str, bytes]:
    """Return the files that are neither a library with device code nor about the wheel itself."""
    cut = {library.path for library in libraries}
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name) for name in archive.namelist() if name not in cut and ".dist-info/" not in name
        }
