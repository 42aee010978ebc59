from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from archpatch.arch.arch import Arch
from archpatch.builder.gpus import DetectedGpu
from archpatch.cli.main import run
from archpatch.errors import UnknownGpu, UsageError
from archpatch.kernel_cache import environment
from archpatch.kernel_cache.compilers import COMPILERS
from archpatch.kernel_cache.lane import Lane, Wanted, find_lane
from archpatch.kernel_cache.variables import FORMATS

TORCH, TRITON = "2.14.1+cu130", "3.8.0"
WANTED = Wanted(gpu="h200", torch=TORCH, triton=TRITON)


def card(name: str, arch: Arch) -> DetectedGpu:
    return DetectedGpu(name=name, arch=arch, driver="580.1", uuid="GPU-1")


def lane(wanted: Wanted = WANTED, cards: Sequence[DetectedGpu] = ()) -> Lane:
    return find_lane(wanted, environ={}, detect=lambda _: cards)


def test_every_folder_is_below_the_root_and_no_two_caches_share_one() -> None:
    variables = environment("/kernels", lane())
    folders = {name: value for name, value in variables.items() if value.startswith("/")}
    assert set(variables) - set(folders) == {"TRITON_CACHE_AUTOTUNING", "CUDA_CACHE_MAXSIZE"}
    assert all(Path(value).is_relative_to("/kernels") for value in folders.values())
    assert folders["DG_JIT_CACHE_DIR"] == folders["SGLANG_DG_CACHE_DIR"]  # sglang sets the one from the other
    assert len(set(folders.values())) == len(folders) - 1


def test_every_variable_that_is_known_is_set() -> None:
    assert set(environment("/k", lane())) == {
        *("TRITON_CACHE_DIR", "TRITON_CACHE_AUTOTUNING", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR"),
        *("FLASHINFER_WORKSPACE_BASE", "VLLM_CACHE_ROOT", "TILELANG_CACHE_DIR", "TVM_FFI_CACHE_DIR"),
        *("SGLANG_CACHE_DIR", "SGLANG_JIT_CACHE_DIR", "SGLANG_DG_CACHE_DIR", "DG_JIT_CACHE_DIR", "TRTLLM_DG_CACHE_DIR"),
        *("CUTE_DSL_CACHE_DIR", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR"),
        "JAX_COMPILATION_CACHE_DIR",
    }


def test_what_is_timed_is_kept_by_the_gpus_name_and_the_rest_by_its_arch() -> None:
    hopper = [environment("/k", lane(Wanted(gpu=gpu, torch=TORCH, triton=TRITON))) for gpu in ("h100", "h200")]
    differing = {name for name in hopper[0] if hopper[0][name] != hopper[1][name]}
    assert differing == {name for each in COMPILERS if each.timed for name, _ in each.variables}
    assert "TRITON_CACHE_DIR" in differing
    assert "DG_JIT_CACHE_DIR" not in differing


@pytest.mark.parametrize(
    "other",
    [
        Wanted(gpu="gb10", torch=TORCH, triton=TRITON),
        Wanted(gpu="rtx-pro-6000", torch="2.13.0+cu130", triton=TRITON),
        Wanted(gpu="rtx-pro-6000", torch="2.14.1+cu129", triton=TRITON),
        Wanted(gpu="rtx-pro-6000", torch=TORCH, triton="3.7.0"),
    ],
)
def test_another_arch_torch_cuda_or_triton_is_another_lane(other: Wanted) -> None:
    one, two = lane(Wanted(gpu="rtx-pro-6000", torch=TORCH, triton=TRITON)), lane(other)
    assert one != two
    first, second = environment("/k", one), environment("/k", two)
    assert not [name for name in first if first[name] == second[name] and first[name].startswith("/")]


def test_a_detected_gpu_is_named_as_the_driver_names_it() -> None:
    none = Wanted(torch=TORCH, triton=TRITON)
    assert lane(none, [card("NVIDIA H200", Arch(9, 0))]) == lane()
    assert lane(none, [card("NVIDIA H100 80GB HBM3", Arch(9, 0))]).gpu == "h100-80gb-hbm3"
    assert lane(none, [card("NVIDIA H100 PCIe", Arch(9, 0))]).gpu == "h100-pcie"
    assert lane(Wanted(gpu="NVIDIA H100 PCIe", torch=TORCH)).gpu == "h100-pcie"
    assert lane(none, [card("NVIDIA H200 MIG 1g.18gb", Arch(9, 0))]).gpu == "h200-mig-1g-18gb"
    mixed = lane(none, [card("NVIDIA L4", Arch(8, 9)), card("Tesla T4", Arch(7, 5)), card("NVIDIA L4", Arch(8, 9))])
    assert (mixed.gpu, mixed.arch) == ("l4-tesla-t4", "sm75-sm89")


def test_without_a_gpu_the_lane_says_so() -> None:
    none = lane(Wanted(torch=TORCH, triton=TRITON))
    assert str(none).endswith("/gpu-none")
    assert none.timed == none.shared


def test_the_stack_names_each_version_once() -> None:
    assert lane().stack.startswith("torch2.14.1-cu130-triton3.8.0-cp3")
    cpu = lane(Wanted(gpu="h200", torch="2.14.1+cpu", triton=TRITON))
    assert cpu.stack.startswith("torch2.14.1-cpu-no-cu-triton3.8.0-cp3")
    bare = Lane(gpu="h200", arch="sm90", torch="none", cuda="none", triton="none", python="cp311", machine="x86_64")
    assert bare.stack == "no-torch-no-cu-no-triton-cp311-x86_64"


def test_a_lane_comes_back_from_json() -> None:
    assert Lane.from_json(json.loads(json.dumps(lane().to_json()))) == lane()
    for wrong in (None, [], {}, {**lane().to_json(), "more": "x"}, {**lane().to_json(), "gpu": 1}):
        with pytest.raises(ValueError, match="no lane"):
            Lane.from_json(wrong)


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(UsageError, match="names no CUDA"):
        lane(Wanted(gpu="h200", torch="2.14.1"))
    with pytest.raises(UnknownGpu):
        lane(Wanted(gpu="h300", torch=TORCH))
    with pytest.raises(UsageError, match="no colon"):
        environment("/k:l", lane())


AWKWARD = {"A": '/k/it\'s $HOME "quoted"', "B": "/k/b"}


def test_each_format_says_the_same() -> None:
    assert FORMATS["github"](AWKWARD) == FORMATS["docker"](AWKWARD) == 'A=/k/it\'s $HOME "quoted"\nB=/k/b\n'
    assert json.loads(FORMATS["ray"](AWKWARD)) == {"env_vars": AWKWARD}
    lines = FORMATS["k8s"](AWKWARD).splitlines()
    assert [line.removeprefix("- name: ") for line in lines[::2]] == list(AWKWARD)
    assert [json.loads(line.removeprefix("  value: ")) for line in lines[1::2]] == list(AWKWARD.values())


@pytest.mark.integration
def test_a_shell_takes_its_format() -> None:
    def told(environ: dict[str, str]) -> str:
        script = "set -eu\n" + FORMATS["shell"](AWKWARD) + 'sh -c \'printf "%s " "$A" "$B"\''
        return subprocess.run(["/bin/sh", "-c", script], env=environ, capture_output=True, text=True, check=True).stdout

    path = {"PATH": os.environ["PATH"]}
    assert told(path) == f"{AWKWARD['A']} /k/b "
    assert told({**path, "A": "/mine"}) == "/mine /k/b "
    assert told({**path, "B": ""}) == f"{AWKWARD['A']}  "


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    status = run(["cache", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_command_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["env", "--root", "/k", "--gpu", "h200", "--torch", TORCH, "--triton", TRITON]
    status, out, err = printed(capsys, *options, "--json")
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert (told["schema"], told["root"], told["lane"]) == ("archpatch.cache-env/1", "/k", str(lane()))
    assert told["environment"] == environment("/k", lane())
    assert printed(capsys, *options, "--format", "json")[1] == out
    assert printed(capsys, *options)[1] == FORMATS["shell"](told["environment"])


def test_a_jobs_own_setting_is_not_overridden_on_github(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    options = ["env", "--root", "/k", "--gpu", "h200", "--torch", TORCH, "--triton", TRITON, "--format"]
    names = {form: printed(capsys, *options, form)[1].count("TRITON_CACHE_DIR=") for form in ("github", "docker")}
    assert names == {"github": 0, "docker": 1}
    assert "TORCHINDUCTOR_CACHE_DIR=/k/" in printed(capsys, *options, "github")[1]


def test_the_command_warns_without_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("archpatch.kernel_cache.lane.find_lane.__kwdefaults__", _no_gpus())
    status, out, err = printed(capsys, "env", "--root", str(tmp_path), "--torch", TORCH, "--json")
    assert status == 0
    assert json.loads(out)["lane"].endswith("/gpu-none")
    assert "no GPU is visible" in err


def _no_gpus() -> dict[str, Any]:
    return {"environ": os.environ, "detect": lambda _: ()}
