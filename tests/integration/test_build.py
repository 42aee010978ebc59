"""From a requirement to a wheel, with the real nvcc and the real torch, on miniature projects."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from commandline import FIXTURES, Answer, CommandLine, dumped, library, make_sdist, only_index

pytestmark = pytest.mark.integration

MINI = FIXTURES / "mini"


def test_two_archs_and_ptx_are_compiled_read_back_and_filed(archpatch: CommandLine, cuobjdump: Path) -> None:
    answer = archpatch("build", MINI, "--arch", "8.0;9.0+PTX")
    wheel, record = answer.wheel, answer.record
    place = wheel.relative_to(archpatch.wheelhouse).as_posix()
    label = re.fullmatch(
        r"sm80-sm90-ptx90/torch[^/]+-cu130/archpatch_mini-(0\.1\.0\+cu130torch[\d.]+sm80\.sm90\.ptx90)-cp\d+-cp\d+-\w+\.whl",
        place,
    )
    assert label is not None, place
    assert record["device_code"] == ["sm_80", "sm_90", "compute_90"]
    assert dumped(cuobjdump, library(wheel, archpatch.folder / "unpacked")) == {"sm_80", "sm_90", "compute_90"}
    assert {pair["action"] for pair in record["pairs"]} == {"kept", "dropped", "added"}
    assert record["request"] == {"archs": ["8.0", "9.0+PTX"], "gpus": [], "source": "--arch", "on_missing": "error"}
    assert archpatch.left_behind() == []
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        assert metadata.startswith(f"archpatch_mini-{label[1]}.dist-info/")
        assert f"\nVersion: {label[1]}\n".encode() in archive.read(metadata)


def test_a_gpu_type_takes_the_wheel_that_an_arch_led_to(archpatch: CommandLine) -> None:
    first = archpatch("build", MINI, "--arch", "9.0", "--json").json["wheels"][0]
    second = archpatch("build", MINI, "--gpu", "h200", "--json").json["wheels"][0]
    assert (first["hit"], second["hit"]) == (False, True)
    assert second["wheel"] == first["wheel"]
    folder = Path(archpatch("wheelhouse", "path", "--gpu", "h200").stdout.strip())
    (link,) = folder.glob("*.whl")
    assert link.is_symlink()
    assert link.resolve() == Path(first["wheel"])
    listed = archpatch("wheelhouse", "list", "--json").json["wheels"]
    assert [(each["device_code"], each["gpus"]) for each in listed] == [(["sm_90"], ["h200"])]
    line = archpatch("wheelhouse", "requirements", "--gpu", "h200").stdout.strip()
    assert line == f"archpatch_mini @ {Path(first['wheel']).as_uri()}#sha256={first['sha256']}"


def test_a_gpu_type_takes_the_nearest_cubin(archpatch: CommandLine) -> None:
    answer = archpatch("build", MINI, "--gpu", "l4")
    assert answer.record["device_code"] == ["sm_80"]
    fit = archpatch("inspect", answer.wheel, "--runs-on", "l4", "--json")
    assert (fit.status, fit.json["runs_on"]["verdict"], fit.json["runs_on"]["via"]) == (0, "compatible", ["sm_80"])
    unfit = archpatch("inspect", answer.wheel, "--runs-on", "h200", "--json")
    assert (unfit.status, unfit.json["runs_on"]["verdict"]) == (1, "no")


def test_a_wrapper_that_adds_an_arch_is_caught_and_nothing_is_published(archpatch: CommandLine) -> None:
    wrapper = archpatch.folder / "nvcc"
    wrapper.write_text('#!/bin/sh\nexec "$CUDA_HOME/bin/nvcc" -gencode arch=compute_75,code=sm_75 "$@"\n')
    wrapper.chmod(0o755)
    answer = archpatch("build", MINI, "--arch", "9.0", environ={"PYTORCH_NVCC": str(wrapper)})
    assert answer.status == 4
    assert "archpatch_mini._C holds sm_75, sm_90; nvcc was asked for sm_90; too much: sm_75" in answer.stderr
    assert archpatch.published() == []


def test_arch_flags_in_nvccs_own_variable_are_ignored_and_said(archpatch: CommandLine) -> None:
    answer = archpatch(
        "build", MINI, "--arch", "9.0", environ={"NVCC_APPEND_FLAGS": "-gencode arch=compute_75,code=sm_75"}
    )
    assert answer.record["device_code"] == ["sm_90"]
    assert "NVCC_APPEND_FLAGS holds arch flags" in answer.stderr


def test_the_environment_list_is_used_and_an_option_beats_it(archpatch: CommandLine) -> None:
    listed = {"TORCH_CUDA_ARCH_LIST": "7.5"}
    assert archpatch("build", MINI, environ=listed).record["request"]["source"] == "env"
    answer = archpatch("build", MINI, "--arch", "9.0", environ=listed)
    assert answer.record["device_code"] == ["sm_90"]
    assert "--arch is used; TORCH_CUDA_ARCH_LIST (7.5) is not" in answer.stderr


def test_a_name_that_is_taken_is_replaced_or_refused(archpatch: CommandLine) -> None:
    first = archpatch("build", MINI, "--arch", "9.0").record
    other = {"CXXFLAGS": "-DSOMETHING"}
    refused = archpatch("build", MINI, "--arch", "9.0", "--no-replace", environ=other)
    assert refused.status == 5
    assert "environment.CXXFLAGS was absent, is -DSOMETHING" in refused.stderr
    replaced = archpatch("build", MINI, "--arch", "9.0", environ=other)
    assert "will be replaced: environment.CXXFLAGS was absent, is -DSOMETHING" in replaced.stderr
    assert replaced.record["fingerprint"] != first["fingerprint"]
    assert len(archpatch.published()) == 2


def test_no_local_version_leaves_the_version_alone(archpatch: CommandLine) -> None:
    wheel = archpatch("build", MINI, "--arch", "9.0", "--no-local-version").wheel
    assert wheel.name.startswith("archpatch_mini-0.1.0-cp")


def test_a_damaged_wheel_is_found_and_built_again(archpatch: CommandLine) -> None:
    wheel = archpatch("build", MINI, "--arch", "9.0").wheel
    assert archpatch("wheelhouse", "verify").status == 0
    wheel.write_bytes(wheel.read_bytes()[:-1])
    verify = archpatch("wheelhouse", "verify", "--json")
    assert verify.status == 1
    assert "was changed after it was published" in verify.json["faults"][0]["problem"]
    assert archpatch("build", MINI, "--arch", "9.0", "--json").json["wheels"][0]["hit"] is False
    assert archpatch("wheelhouse", "verify").status == 0


def test_torchs_headers_get_the_standard_that_they_demand(archpatch: CommandLine) -> None:
    answer = archpatch("build", FIXTURES / "mini_torch", "--gpu", "h200")
    assert answer.record["device_code"] == ["sm_90"]


def test_nvcc_from_pypi_builds_where_the_machine_has_none(archpatch: CommandLine) -> None:
    path = ":".join(folder for folder in ("/usr/bin", "/bin") if not Path(folder, "nvcc").exists())
    environ = {"PATH": path, "CUDA_HOME": "", "CUDA_PATH": "", "ARCHPATCH_CACHE": str(archpatch.folder / "cache")}
    answer = archpatch("build", MINI, "--arch", "9.0", "--toolkit", "pypi", environ=environ)
    assert answer.record["device_code"] == ["sm_90"]
    assert str(archpatch.folder / "cache") in answer.record["toolchain"]["nvcc"]


def test_auto_takes_nvcc_from_pypi_where_the_machine_has_no_toolkit(archpatch: CommandLine) -> None:
    """The machine's toolkits are hidden below empty mounts, which only this process sees."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mounts of one's own may be made here")
    hide = 'for d in /usr/local/cuda-*; do [ -L "$d" ] || mount -t tmpfs none "$d"; done; exec "$@"'
    environ = {"PATH": "/usr/bin:/bin", "CUDA_HOME": "", "CUDA_PATH": ""}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", hide, "sh", *archpatch.command("build", MINI, "--gpu", "h200")],
        cwd=archpatch.folder,
        env=archpatch.environment({**environ, "ARCHPATCH_CACHE": str(archpatch.folder / "cache")}),
        capture_output=True,
        text=True,
        check=False,
    )
    record = Answer(done.returncode, done.stdout, done.stderr).record
    assert record["device_code"] == ["sm_90"]
    assert str(archpatch.folder / "cache" / "toolkits") in record["toolchain"]["nvcc"]


def test_an_sdist_without_sources_is_built_from_its_repository(archpatch: CommandLine, mini: Path) -> None:
    git = ["git", "-C", str(mini), "-c", "user.name=t", "-c", "user.email=t@t.invalid"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"], ["tag", "v0.1.0"]):
        subprocess.run([*git, *command], check=True)
    make_sdist(mini, archpatch.folder / "index", sources=False)
    config = archpatch.folder / "archpatch.toml"
    config.write_text(f'[recipes.archpatch_mini.git]\nurl = "{mini.as_uri()}"\ntag = "v{{version}}"\n')
    environ = only_index(archpatch.folder / "index")
    answer = archpatch("--config", config, "build", "archpatch_mini==0.1.0", "--arch", "9.0", environ=environ)
    assert answer.record["source"]["digest"].startswith("git:")
    assert "the source holds none of the files that its setup.py names" in answer.stderr
    again = archpatch("--config", config, "build", "archpatch_mini==0.1.0", "--arch", "9.0", "--json", environ=environ)
    assert again.json["wheels"][0]["hit"] is True


def test_a_hit_imports_no_torch_and_opens_no_socket(archpatch: CommandLine, mini: Path) -> None:
    make_sdist(mini, archpatch.folder / "index")
    environ = only_index(archpatch.folder / "index")
    archpatch("build", "archpatch_mini==0.1.0", "--arch", "9.0", environ=environ).wheel.touch()
    watched = ("torch", "unearth", "httpx2", "build")
    told, imported = archpatch.inside("build", "archpatch_mini==0.1.0", "--arch", "9.0", watched=watched)
    assert (told["wheels"][0]["hit"], imported) == (True, [])
    offline = archpatch("build", "archpatch_mini", "--arch", "9.0", "--offline", "--json").json
    assert offline["wheels"][0]["hit"] is True


DYNAMIC = """
import os
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

archs = os.environ.get("MINI_ARCHS", "75;80;90;120").split(";")
flags = [word for n in archs for word in ("-gencode", f"arch=compute_{n},code=sm_{n}")]
os.environ["TORCH_CUDA_ARCH_LIST"] = "7.5"


class Build(BuildExtension):
    def build_extension(self, ext):
        ext.extra_compile_args["nvcc"] += ["-gencode", "arch=compute_89,code=sm_89"]
        super().build_extension(ext)


setup(
    packages=["archpatch_mini"],
    ext_modules=[
        CUDAExtension("archpatch_mini._C", ["csrc/module.cpp", "csrc/add.cu"], extra_compile_args={"nvcc": flags}),
    ],
    cmdclass={"build_ext": Build},
)
"""


@pytest.mark.parametrize(
    ("asked", "codes"), [(["--gpu", "h200"], ["sm_90"]), (["--arch", "8.9+PTX"], ["sm_89", "compute_89"])]
)
def test_flags_that_only_a_run_shows_are_selected_by_a_guard(
    archpatch: CommandLine, mini: Path, asked: list[str], codes: list[str]
) -> None:
    (mini / "setup.py").write_text(DYNAMIC)
    answer = archpatch("build", mini, *asked)
    assert answer.record["device_code"] == codes
    assert [source["action"] for source in answer.record["flag_sources"]]


def test_a_guard_that_leaves_nothing_is_no_match(archpatch: CommandLine, mini: Path) -> None:
    (mini / "setup.py").write_text(DYNAMIC)
    answer = archpatch("build", mini, "--arch", "10.0")
    assert answer.status == 3
    assert "archpatch_mini._C" in answer.stderr
    assert archpatch.published() == []


def test_a_build_without_ninja_is_captured_and_compiled_too(archpatch: CommandLine, mini: Path) -> None:
    setup = mini / "setup.py"
    setup.write_text(
        setup.read_text().replace('": BuildExtension}', '": BuildExtension.with_options(use_ninja=False)}')
    )
    assert archpatch("build", mini, "--gpu", "h200").record["device_code"] == ["sm_90"]


def test_two_processes_that_want_the_same_wheel_build_it_once(archpatch: CommandLine) -> None:
    processes = [
        subprocess.Popen(
            archpatch.command("build", MINI, "--arch", "9.0", "--json"),
            cwd=archpatch.folder,
            env=archpatch.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(3)
    ]
    told = [json.loads(process.communicate()[0])["wheels"][0] for process in processes]
    assert sorted(each["hit"] for each in told) == [False, True, True]
    assert len({each["sha256"] for each in told}) == 1


def test_a_variable_that_setup_py_reads_decides_about_a_hit(archpatch: CommandLine, mini: Path) -> None:
    setup = mini / "setup.py"
    setup.write_text(
        setup.read_text().replace('"nvcc": ["-O1"]', '"nvcc": ["-O1", "-D" + os.getenv("MINI_DEFINE", "A")]')
    )
    setup.write_text("import os\n" + setup.read_text())
    make_sdist(mini, archpatch.folder / "index")
    index = only_index(archpatch.folder / "index")

    def hit(**environ: str) -> bool:
        answer = archpatch("build", "archpatch_mini==0.1.0", "--arch", "9.0", "--json", environ={**index, **environ})
        return bool(answer.json["wheels"][0]["hit"])

    assert [hit(), hit(), hit(MINI_DEFINE="B"), hit(MINI_DEFINE="B"), hit(UNRELATED="B")] == [
        False,
        True,
        False,
        True,
        False,
    ]


SPLITTER = """#!/bin/bash
case "$*" in *more.cu*) drop=80;; *) drop=90;; esac
kept=()
while [ $# -gt 0 ]; do
  if [ "$1" = -gencode ] && [ "$2" = "arch=compute_$drop,code=sm_$drop" ]; then shift 2
  else kept+=("$1"); shift; fi
done
exec "$CUDA_HOME/bin/nvcc" "${kept[@]}"
"""


def test_a_file_that_was_compiled_for_another_arch_is_caught(archpatch: CommandLine, mini: Path) -> None:
    """Both archs are in the library, but no file has both: neither GPU could run all of it."""
    (mini / "csrc" / "more.cu").write_text("__global__ void more(int *x) { *x = 2; }\n")
    setup = mini / "setup.py"
    setup.write_text(setup.read_text().replace('"csrc/add.cu"', '"csrc/add.cu", "csrc/more.cu"'))
    wrapper = archpatch.folder / "nvcc"
    wrapper.write_text(SPLITTER)
    wrapper.chmod(0o755)
    answer = archpatch("build", mini, "--arch", "8.0;9.0", environ={"PYTORCH_NVCC": str(wrapper)})
    assert answer.status == 4
    assert re.search(r"holds files with sm_\d0 alone, of sm_80, sm_90", answer.stderr), answer.stderr
    assert archpatch.published() == []


def test_a_link_to_a_wheel_that_its_gpu_does_not_run_is_a_fault(archpatch: CommandLine) -> None:
    wheel = archpatch("build", MINI, "--gpu", "h200").wheel
    (h200,) = (archpatch.wheelhouse / "gpu" / "h200").glob("*")
    b200 = archpatch.wheelhouse / "gpu" / "b200" / h200.name
    b200.mkdir(parents=True)
    (b200 / wheel.name).symlink_to((h200 / wheel.name).readlink())
    verify = archpatch("wheelhouse", "verify")
    assert verify.status == 1
    assert "b200 (10.0) runs nothing of the extension archpatch_mini._C: sm_90" in verify.stdout
