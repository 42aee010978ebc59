"""The corpus' harness tells the truth: about real sdists, against the real torch and nvcc, and about wrong rewrites."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from corpus.files import File, files_of_cases, read_cases
from corpus.toolkits import TOOLKITS

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
CASES = ROOT.parent / "shared/cases/pypi-sdists.toml"
ASK = Path(__file__).with_name("corpus_probe.py")

MINI = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

flags = ["-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90"]
setup(
    name="mini",
    ext_modules=[CUDAExtension("mini", ["mini.cu"], extra_compile_args={"cxx": [], "nvcc": ["-O3", *flags]})],
    cmdclass={"build_ext": BuildExtension},
)
"""


def probe(*arguments: str | Path, text: str = "") -> dict[str, object]:
    """Ask the harness in a process of its own: the stub of torch must not stay in this one."""
    command = [sys.executable, str(ASK), *map(str, arguments)]
    done = subprocess.run(command, check=False, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def sdists(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if not CASES.is_file():
        pytest.skip(f"{CASES} is not here")
    files: list[File] = list(files_of_cases(CASES, tmp_path_factory.mktemp("sdists")))
    return {file.name.removesuffix("/setup.py"): file.path for file in files}


@pytest.mark.parametrize("toolkit", TOOLKITS)
def test_real_sdists_emit_what_is_known_of_them(sdists: dict[str, Path], toolkit: str) -> None:
    names = {f"{case['name']}-{case['version']}": case for case in read_cases(CASES)}
    wanted = {name: case.get(f"cuda_{toolkit.replace('.', '_')}", []) for name, case in names.items()}
    got = {name: probe("pairs", sdists[name], toolkit)["pairs"] for name in wanted if names[name]["flags"] != "dynamic"}
    assert got == {name: sorted(wanted[name]) for name in got}


@pytest.mark.parametrize(
    ("old", "new", "verdict", "reason"),
    [
        ("", "", "right", "as the selection rules say"),
        ('"-gencode", "arch=compute_80,code=sm_80", ', "", "right", "as the selection rules say"),
        ('"-gencode", "arch=compute_90,code=sm_90"', "", "wrong", "nvcc would get sm_80, not sm_90"),
        ('"-gencode", ', "", "wrong", "without -gencode"),
        ('"arch=compute_80,code=sm_80", ', "", "wrong", "without a value"),
        ('"-gencode", "arch=compute_80,code=sm_80", ', '"-gencode",', "wrong", "without a value"),
        (', "nvcc": ["-O3", *flags]', "", "wrong", "its own pairs are gone, and torch fills in"),
        ("setup(", "setup((", "wrong", "not valid Python"),
        ("setup(", 'raise RuntimeError("broken")\nsetup(', "wrong", "the patched file fails: RuntimeError: broken"),
        ('["mini.cu"]', '["mini.cpp"]', "wrong", "mini: it is gone"),
    ],
)
def test_a_rewrite_is_judged_by_what_nvcc_gets(old: str, new: str, verdict: str, reason: str, tmp_path: Path) -> None:
    setup = tmp_path / "setup.py"
    setup.write_text(MINI, encoding="utf-8")
    (tmp_path / "mini.cu").touch()
    if not old:
        answer = probe("judge", setup, "13.0", "9.0")
    else:
        assert old in MINI
        answer = probe("judge", setup, "13.0", "9.0", "patched", text=MINI.replace(old, new, 1))
    assert answer["verdict"] == verdict, answer
    assert reason in str(answer["reason"])


HEAD = """
import os
from pathlib import Path
from setuptools import setup
import torch
from torch.utils import cpp_extension
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

def done(*extensions):
    setup(name="p", ext_modules=list(extensions), cmdclass={"build_ext": BuildExtension})

def ext(name, *archs):
    flags = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    return CUDAExtension(name, [name + ".cu"], extra_compile_args={"cxx": [], "nvcc": flags})

"""
GUARDED = 'raise RuntimeError("archpatch: extension a: nothing remains")\n'
WRITER = """
def writer(path, cuda_post_cflags, **_):
    swapped = [flag.replace("90", "80") for flag in cuda_post_cflags]
    Path(path).write_text("cuda_post_cflags = " + " ".join(swapped))

cpp_extension._write_ninja_file = writer
"""
GPU = 'done(ext("a", "%d%d" % torch.cuda.get_device_capability()))\n'


@pytest.mark.parametrize(
    ("before", "after", "verdict", "reason"),
    [
        ('done(ext("a", 80, 90))', 'done(ext("a", 90))', "right", "as the selection rules say"),
        ('done(ext("a", 80))', 'done(ext("a", 80))', "wrong", "nothing says that nothing matches"),
        ('done(ext("a", 80))', GUARDED, "right", "no match, and the guard says so"),
        ('done(ext("a", 80))', 'done(ext("a"))', "right", "no match, and the check of the flags says so"),
        ('done(ext("a", 90))', GUARDED, "wrong", "the guard raises"),
        ('done(ext("a", 80), ext("b", 90))', 'done(ext("b", 90))', "right", "extensions for other archs are left out"),
        ('done(ext("a", 80, 90), ext("b"))', 'done(ext("a", 90), ext("b"))', "right", "as the selection rules say"),
        ('done(ext("a"))', 'done(ext("a"))', "right", "torch's flags for the list"),
        ('done(ext("a"))', 'os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0"; done(ext("a"))', "wrong", "sm_80, not sm_90"),
        (GPU, GPU, "right", "with a GPU of 9.0 in sight"),
        ("1 / 0", "1 / 0", "unrunnable", "ZeroDivisionError"),
        ("1 / 0", "open(os.devnull + 'x')", "wrong", "patched: FileNotFoundError"),
        (WRITER + 'done(ext("a", 90))', WRITER + 'done(ext("a", 90))', "wrong", "nothing says that nothing matches"),
        (
            'ask = os.environ.get("TORCH_CUDA_ARCH_LIST", "8.0").replace(".", "")\ndone(ext("a", ask))',
            'done(ext("a", 90))',
            "right",
            "as the selection rules say",
        ),
    ],
)
def test_how_files_decide_about_archs(before: str, after: str, verdict: str, reason: str, tmp_path: Path) -> None:
    setup = tmp_path / "setup.py"
    setup.write_text(HEAD + before, encoding="utf-8")
    answer = probe("judge", setup, "13.0", "9.0", "patched", text=HEAD + after)
    assert answer["verdict"] == verdict, answer
    assert reason in str(answer["reason"])


def test_the_command_writes_a_line_per_answer(tmp_path: Path) -> None:
    (tmp_path / "ok").mkdir()
    (tmp_path / "ok/setup.py").write_text(MINI, encoding="utf-8")
    output = tmp_path / "lines.jsonl"
    command = [sys.executable, str(ROOT / "tests/corpus"), str(tmp_path), "--output", str(output), "--request", "9.0"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [line["verdict"] for line in lines] == ["right"] * 6
    assert {(line["file"], line["request"]) for line in lines} == {("ok/setup.py", "9.0")}
    assert {line["toolkit"] for line in lines} == set(TOOLKITS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "seed",
    ["mamba_ssm-2.3.2.post1", "causal_conv1d-1.7.0", "fast_hadamard_transform-1.1.0", "flash_attn-2.8.3"],
)
@pytest.mark.parametrize("archs", [None, "9.0"])
def test_the_stub_is_as_the_real_torch_and_nvcc(
    sdists: dict[str, Path], seed: str, archs: str | None, tmp_path: Path
) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch is installed")
    environ = {**os.environ, "CUDA_HOME": os.environ.get("CUDA_HOME", "/usr/local/cuda")}
    environ.pop("TORCH_CUDA_ARCH_LIST", None)
    environ |= {"TORCH_CUDA_ARCH_LIST": archs} if archs else {}
    release = re.search(
        r"release ([\d.]+)", subprocess.check_output([f"{environ['CUDA_HOME']}/bin/nvcc", "-V"], text=True)
    )
    if release is None or release[1] != "13.0":
        pytest.skip("nvcc is not that of CUDA 13.0")
    result = tmp_path / "capture.json"
    driver = [sys.executable, str(ROOT / "archpatch/builder/driver.py"), str(result), "legacy"]
    subprocess.run(driver, cwd=sdists[seed].parent, env=environ, check=True, capture_output=True)
    real = json.loads(result.read_text(encoding="utf-8"))
    assert real["error"] is None, real["error"]
    stub = probe("flags", sdists[seed], "13.0", *([archs] if archs else []))["flags"]
    assert stub == {each["name"]: _essential(each["nvcc"]) for each in real["extensions"] if each["nvcc"]}


def _essential(flags: list[str]) -> dict[str, int]:
    """Return the flags less the include folders, which are those of the installed torch."""
    return dict(Counter(flag for flag in flags if not flag.startswith(("-I", "-fPIC")) and flag not in _HOST))


#: What the interpreter's own compile command adds; the stub leaves the host compiler out.
_HOST = frozenset({"-c"})
