from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from archpatch.arch.arch import Arch, DeviceCode, Pair
from archpatch.arch.gpu import find_gpu
from archpatch.builder.host import Compiler, Host
from archpatch.builder.interpreter import Interpreter, TorchFacts
from archpatch.builder.toolchain import Finding, Needs, Status, check, require
from archpatch.builder.toolkit import LIBRARY_HEADERS, Origin, Toolkit
from archpatch.errors import ToolchainError

GIB = 1 << 30
TORCH = TorchFacts(folder=Path("/t/torch"), version="2.14.1+cu130", cuda="13.0", cxx11_abi=True, cxx_standard=20)
PYTHON = Interpreter(
    executable=Path("/env/bin/python"),
    version="3.11.7",
    abi_tag="cp311",
    platform_tag="linux_x86_64",
    machine="x86_64",
    torch=TORCH,
    packages=(("pip", "24.0"), ("setuptools", "84.2.1")),
)
HOST = Host(
    machine="x86_64",
    compiler=Compiler(path=Path("/usr/bin/c++"), kind="gcc", version="12.2.0"),
    ninja=Path("/usr/bin/ninja"),
    cmake=None,
    cores=16,
    memory=64 * GIB,
    disk=100 * GIB,
    folder=Path("/tmp"),
)


def pair(code: str) -> Pair:
    return Pair.of(DeviceCode.parse(code))


def codes(*numbers: str) -> frozenset[DeviceCode]:
    return frozenset(DeviceCode.parse(f"{kind}_{number}") for number in numbers for kind in ("sm", "compute"))


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    (tmp_path / "include/crt").mkdir(parents=True)
    (tmp_path / "include/crt/host_config.h").write_text("#if __GNUC__ > 15\n#error\n#endif\n")
    for name in LIBRARY_HEADERS:
        (tmp_path / "include" / name).touch()
    return Toolkit(
        root=tmp_path,
        version=Version("13.0.88"),
        origin=Origin.SYSTEM,
        found_by="$CUDA_HOME",
        codes=codes("75", "80", "90", "90a", "110"),
    )


def failed(findings: tuple[Finding, ...]) -> list[Finding]:
    return [finding for finding in findings if not finding.ok]


def test_a_machine_that_can_build_passes(toolkit: Toolkit) -> None:
    needs = Needs(
        requirements=("setuptools>=77",), pairs=(pair("sm_90a"), pair("compute_90")), gpus=(find_gpu("h200"),)
    )
    findings = check(PYTHON, toolkit, HOST, needs)
    assert {finding.status for finding in findings} == {Status.OK}
    assert [finding.what for finding in findings] == [
        *("python", "torch", "nvcc", "host compiler", "ninja", "build requirements", "disk", "cores and memory")
    ]
    require(findings)


@pytest.mark.parametrize(
    ("python", "host", "what", "detail", "remedy"),
    [
        (
            replace(PYTHON, torch=None),
            HOST,
            "torch",
            "not installed for /env/bin/python",
            "Run /env/bin/python -m pip install torch",
        ),
        (replace(PYTHON, torch=replace(TORCH, cuda=None)), HOST, "torch", "without CUDA", "CUDA build of torch"),
        (
            replace(PYTHON, torch=replace(TORCH, cuda="12.6")),
            HOST,
            "nvcc",
            "torch was built with CUDA 12.6",
            "a CUDA 12 toolkit",
        ),
        (PYTHON, replace(HOST, compiler=None), "host compiler", "nor g++", "apt-get install g++"),
        (PYTHON, replace(HOST, ninja=None), "ninja", "not found", "/env/bin/python -m pip install ninja"),
        (
            replace(PYTHON, packages=()),
            replace(HOST, ninja=None),
            "ninja",
            "not found",
            "uv pip install --python /env/bin/python ninja",
        ),
        (PYTHON, replace(HOST, folder=Path("/nope")), "disk", "TMPDIR is /nope, where nothing", "folder /nope, point"),
        (PYTHON, replace(HOST, folder=Path("/dev/null")), "disk", "TMPDIR is /dev/null", "point TMPDIR elsewhere"),
        (PYTHON, replace(HOST, disk=GIB), "disk", "1.0 GiB free for /tmp", "TMPDIR"),
    ],
)
def test_what_is_missing_fails_with_its_remedy(
    toolkit: Toolkit, python: Interpreter, host: Host, what: str, detail: str, remedy: str
) -> None:
    (finding,) = failed(check(python, toolkit, host, Needs()))
    assert finding.what == what
    assert detail in finding.detail
    assert remedy in str(finding.remedy)


def test_missing_build_requirements_are_named_as_they_were_written(toolkit: Toolkit) -> None:
    needs = Needs(requirements=("setuptools", "psutil", "wheel>=0.40"))
    (finding,) = failed(check(PYTHON, toolkit, HOST, needs))
    assert finding.detail == "missing for /env/bin/python: psutil, wheel>=0.40"
    assert finding.remedy == "Run /env/bin/python -m pip install psutil 'wheel>=0.40'"


@pytest.mark.parametrize(
    ("version", "code", "reason"),
    [
        ("13.0.88", "sm_70", "CUDA 13 dropped every arch below 7.5"),
        ("13.0.88", "sm_101", "Thor is 11.0 since CUDA 13"),
        ("12.8.93", "sm_121", "it came with CUDA 12.9"),
        ("12.8.93", "sm_100f", "it came with CUDA 12.9"),
        ("12.6.20", "compute_120", "it came with CUDA 12.8"),
        ("13.0.88", "sm_107", "it does not know it"),
    ],
)
def test_a_pair_that_nvcc_cannot_compile_is_explained(toolkit: Toolkit, version: str, code: str, reason: str) -> None:
    chosen = replace(toolkit, version=Version(version))
    python = replace(PYTHON, torch=replace(TORCH, cuda=chosen.release))
    (finding,) = failed(check(python, chosen, HOST, Needs(pairs=(pair("sm_80"), pair(code)))))
    assert finding.what == str(pair(code))
    assert reason in finding.detail
    assert finding.remedy == "It compiles 7.5, 8.0, 9.0, 9.0a, 11.0."


def test_thor_before_cuda_13(toolkit: Toolkit) -> None:
    chosen = replace(toolkit, version=Version("12.9.41"), codes=codes("101"))
    python = replace(PYTHON, torch=replace(TORCH, cuda="12.9"))
    (finding,) = failed(check(python, chosen, HOST, Needs(pairs=(pair("sm_110"),))))
    assert "Thor is 10.1 before CUDA 13" in finding.detail


def test_a_family_pair_is_judged_by_its_compute(toolkit: Toolkit) -> None:
    family = Pair(Arch.parse("11.0f"), DeviceCode.parse("sm_110"))
    (finding,) = failed(check(PYTHON, toolkit, HOST, Needs(pairs=(family,))))
    assert finding.what == "compute_110f,sm_110"


@pytest.mark.parametrize(
    ("machine", "gpu", "fits"), [("x86_64", "gh200", False), ("aarch64", "gh200", True), ("x86_64", "h200", True)]
)
def test_a_gpu_type_brings_its_host_cpu(toolkit: Toolkit, machine: str, gpu: str, *, fits: bool) -> None:
    findings = check(PYTHON, toolkit, replace(HOST, machine=machine), Needs(gpus=(find_gpu(gpu),)))
    assert [finding.what for finding in failed(findings)] == ([] if fits else [gpu])


def test_headers_must_come_from_somewhere(toolkit: Toolkit) -> None:
    (toolkit.root / "include/cusparse.h").unlink()
    (finding,) = failed(check(PYTHON, toolkit, HOST, Needs()))
    assert finding.detail.startswith("cusparse.h (which torch's headers include)")
    assert "'cuda-toolkit[cublas,cusolver,cusparse]==13.0.*'" in str(finding.remedy)
    assert not failed(check(replace(PYTHON, library_headers=(Path("/site"),)), toolkit, HOST, Needs()))


@pytest.mark.parametrize(
    ("python", "host", "what"),
    [
        (replace(PYTHON, torch=replace(TORCH, cuda="13.2")), HOST, "nvcc"),
        (PYTHON, replace(HOST, memory=3 * GIB), "cores and memory"),
        (
            PYTHON,
            replace(HOST, compiler=Compiler(path=Path("/usr/bin/c++"), kind="gcc", version="16.1.0")),
            "host compiler",
        ),
    ],
)
def test_a_warning_does_not_stop_a_build(toolkit: Toolkit, python: Interpreter, host: Host, what: str) -> None:
    findings = check(python, toolkit, host, Needs())
    assert [finding.what for finding in findings if finding.status is Status.WARNING] == [what]
    require(findings)


def test_a_toolkit_that_was_not_found_is_a_finding() -> None:
    error = ToolchainError("no CUDA toolkit fits: nothing there", remedy="Install it.")
    (finding,) = failed(check(PYTHON, error, HOST, Needs()))
    assert (finding.what, finding.detail, finding.remedy) == ("nvcc", error.message, "Install it.")


def test_one_error_lists_all_that_failed(toolkit: Toolkit) -> None:
    findings = check(PYTHON, toolkit, replace(HOST, ninja=None, compiler=None), Needs())
    with pytest.raises(ToolchainError) as caught:
        require(findings)
    assert caught.value.message.splitlines() == [
        "the build cannot start",
        "host compiler: neither $CXX nor c++ nor g++ is on PATH",
        "ninja: not found: torch compiles with it",
    ]
    assert len(str(caught.value.remedy).splitlines()) == 2
