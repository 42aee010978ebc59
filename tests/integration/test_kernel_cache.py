"""Kernels of the real compilers, without a GPU: saved, moved, and found again by the compilers' own word."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commandline import PROJECT
from kernels import LANE, LIMIT, folder, key

from archpatch.kernel_cache import environment
from archpatch.kernel_cache.report import report
from archpatch.kernel_cache.restore import restore
from archpatch.kernel_cache.save import save
from archpatch.kernel_cache.share import fetch
from archpatch.kernel_cache.soundness import GROUP, check, group_members
from archpatch.kernel_cache.store import Store
from archpatch.kernel_cache.tree import Tree
from archpatch.storage.listing import below

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

HERE = Path(__file__).parent
KERNELS = ("80:128", "90:128", "90:256")
#: A user id that no machine has an entry for.
NOBODY = 54321


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="archpatch-kernels-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Program:
    """A program of this folder that runs with a root, a home folder and maybe a user of its own."""

    root: Path
    home: Path
    user: int | None = None

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return its variables: those of the root, and nothing of whoever runs the tests."""
        ours = (str(PROJECT), str(PROJECT / "tests" / "support"), str(HERE), os.environ.get("PYTHONPATH", ""))
        path = os.pathsep.join(filter(None, ours))
        mine = {"PATH": os.environ["PATH"], "HOME": str(self.home), "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
        return {**environment(self.root, LANE), **mine, **(more or {})}

    def start(self, *arguments: object, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run Python as the program's user."""
        environment = {name: value for name, value in self.environment().items() if name not in without}
        command = [*as_user(self.user), sys.executable, *map(str, arguments)]
        return subprocess.run(
            command, env=environment, cwd=self.home, capture_output=True, text=True, check=False, timeout=600
        )

    def run(self, *arguments: object) -> dict[str, Any]:
        """Run it and return what it printed."""
        done = self.start(*arguments)
        assert done.returncode == 0, done.stderr[-3000:]
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    def triton(self, *kernels: str) -> list[dict[str, Any]]:
        """Compile kernels."""
        found: list[dict[str, Any]] = self.run(HERE / "triton_program.py", *(kernels or KERNELS))["kernels"]
        return found


def as_user(user: int | None) -> list[str]:
    """Return what to put before a command so that a user runs it who is nobody in particular."""
    if user is None:
        return []
    prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    try:
        subprocess.run([*prefix, sys.executable, "-c", "import json"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this interpreter cannot be run as another user")
    return prefix


def program(place: Path, name: str, user: int | None = None) -> Program:
    """Return a program with folders of its own."""
    home = place / name / "home"
    home.mkdir(parents=True)
    if user is not None:
        for each in (place / name, home):
            os.chown(each, user, user)
    return Program(root=place / name / "root", home=home, user=user)


def hits(told: list[dict[str, Any]]) -> list[bool]:
    return [each["hit"] for each in told]


def cubins(told: list[dict[str, Any]]) -> list[str]:
    return [each["cubin"] for each in told]


def save_to(store: Path, root: Path, week: int = 48) -> None:
    assert save(Store(store), root, lane=LANE, key=key(week), limit=LIMIT).archive is not None


def restore_from(store: Path, root: Path, week: int = 48) -> None:
    assert restore(Store(store), root, lane=LANE, key=key(week), limit=LIMIT).key is not None


def test_tritons_kernels_are_hits_at_another_place_for_another_user(place: Path) -> None:
    first, second = program(place, "first"), program(place, "second", NOBODY)
    cold = first.triton()
    assert hits(cold) == [False] * 3
    assert hits(first.triton()) == [True] * 3
    save_to(place / "store", first.root)
    first.root.rename(place / "gone")
    restore_from(place / "store", second.root)
    for path in [second.root, *second.root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    warm = second.triton()
    assert hits(warm) == [True] * 3
    assert cubins(warm) == cubins(cold)
    assert not (second.home / ".triton").exists()


def test_moved_as_they_are_they_are_compiled_again(place: Path) -> None:
    """Why a restore rewrites the groups: without it there is no error, and no hit."""
    first, second = program(place, "first"), program(place, "second")
    first.triton()
    save_to(place / "store", first.root)
    shutil.copytree(first.root, second.root)
    first.root.rename(place / "gone")
    assert hits(second.triton()) == [False] * 3
    shutil.rmtree(second.root)
    restore_from(place / "store", second.root)
    assert hits(second.triton()) == [True] * 3


def test_a_report_counts_what_triton_says(place: Path) -> None:
    first, second = program(place, "first"), program(place, "second")
    first.triton()
    save_to(place / "store", first.root)
    restore_from(place / "store", second.root)
    assert hits(second.triton("80:128", "90:128", "90:512")) == [True, True, False]
    found = report(second.root, LANE, limit=LIMIT, environ={"HOME": str(second.home)})
    (counts,) = found.compilers
    assert (counts.restored, counts.hit, counts.missed, counts.added) == (3, 2, 1, 1)
    assert 0 < counts.seconds < 60
    assert [kernel.name for kernel in found.kernels] == ["add"]
    assert found.tells_hits


DAMAGE = {
    "128": lambda kernel: os.truncate(next(kernel.glob(f"{GROUP}*")), 30),
    "256": lambda kernel: os.truncate(kernel / "add.json", 30),
    "512": lambda kernel: os.truncate(kernel / "add.cubin", 300),
    "1024": lambda kernel: (kernel / "add.cubin").unlink(),
    "64": lambda _: None,
}


@pytest.mark.parametrize("when", ["before the save", "after the restore"])
def test_damaged_kernels_are_compiled_again_and_the_others_are_not(when: str, place: Path) -> None:
    first, second = program(place, "first"), program(place, "second")
    cold = first.triton(*(f"90:{block}" for block in DAMAGE))
    blocks = {"".join(_block(path)): path.parent for path in folder(first.root, "triton").rglob("add.ttir")}
    if when == "before the save":
        for block, damage in DAMAGE.items():
            damage(blocks[block])
    save_to(place / "store", first.root)
    if when == "after the restore":
        restore_from(place / "store", second.root)
        for block, damage in DAMAGE.items():
            damage(folder(second.root, "triton") / blocks[block].name)
    restore_from(place / "store", second.root)  # which mends what it can
    warm = second.triton(*(f"90:{block}" for block in DAMAGE))
    mended = when == "after the restore"
    assert hits(warm) == [mended, mended, mended, mended, True]
    assert cubins(warm) == cubins(cold)
    assert hits(second.triton(*(f"90:{block}" for block in DAMAGE))) == [True] * 5


def _block(path: Path) -> Iterator[str]:
    """Yield the block size that a kernel's intermediate code speaks of."""
    yield next(word for word in ("1024", "512", "256", "128", "64") if f"tensor<{word}x" in path.read_text())


def test_inductors_graphs_are_hits_at_another_place(place: Path) -> None:
    """Of another user's, the graphs are hits too, but C++ is compiled again: its headers' path has the user's name."""
    first, second = program(place, "first"), program(place, "second")
    cold = first.run(HERE / "inductor_program.py")
    assert (cold["fxgraph_cache_hit"], cold["autograd_cache_hit"]) == (0, 0)
    assert cold["fxgraph_cache_miss"] > 0
    save_to(place / "store", first.root)
    first.root.rename(place / "gone")
    restore_from(place / "store", second.root)
    before = set(folder(second.root, "inductor").rglob("*.so"))
    warm = second.run(HERE / "inductor_program.py")
    assert (warm["fxgraph_cache_miss"], warm["autograd_cache_miss"]) == (0, 0)
    assert (warm["fxgraph_cache_hit"], warm["autograd_cache_hit"]) == (cold["fxgraph_cache_miss"], 1)
    assert warm["loss"] == cold["loss"]
    assert set(folder(second.root, "inductor").rglob("*.so")) == before != set()


def test_what_inductor_measured_is_found_at_another_place_and_nothing_is_written_at_the_old(place: Path) -> None:
    first, second = program(place, "first"), program(place, "second")
    assert first.run(HERE / "tuned_program.py", "tune") == {"kept": 1}
    save_to(place / "store", first.root)
    first.root.rename(place / "gone")
    restore_from(place / "store", second.root)
    assert second.run(HERE / "tuned_program.py", "find") == {"best": {"XBLOCK": 256}, "after": {"XBLOCK": 512}}
    assert not first.root.exists()


def test_moved_as_it_is_it_is_not_found_and_the_old_place_is_written(place: Path) -> None:
    first, second = program(place, "first"), program(place, "second")
    first.run(HERE / "tuned_program.py", "tune")
    first.root.rename(second.root)
    assert second.run(HERE / "tuned_program.py", "find")["best"] is None
    assert list(first.root.rglob("*.best_config"))


COMMON = ["--lane", "unit", "--torch", "2.14.1+cu130"]


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (["--gpu", "rtx-pro-6000", "--triton", "3.8.0"], ["--gpu", "gb10", "--triton", "3.8.0"]),
        (["--gpu", "h200", "--triton", "3.8.0"], ["--gpu", "h200", "--triton", "3.7.0"]),
        (["--gpu", "h200", "--triton", "3.8.0"], ["--gpu", "h100", "--triton", "3.8.0"]),
    ],
)
def test_another_lanes_kernels_are_not_offered(made: list[str], wanted: list[str], place: Path) -> None:
    first = program(place, "first")

    def archpatch(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "archpatch", "cache", *map(str, arguments)]
        return subprocess.run(command, env=first.environment(), capture_output=True, text=True, check=False)

    told = json.loads(archpatch("env", "--root", first.root, *made, *COMMON[2:], "--json").stdout)
    where = Path(told["environment"]["TRITON_CACHE_DIR"])
    first.triton()
    if where != folder(first.root, "triton"):
        shutil.copytree(folder(first.root, "triton"), where)
    saved = archpatch("save", "--root", first.root, "--store", place / "store", *made, *COMMON, "--json")
    archive = json.loads(saved.stdout)["archive"]
    other = ["--root", place / "other", *wanted, *COMMON]
    assert archpatch("restore", "--store", place / "store", *other).stdout == "nothing was restored\n"
    refused = archpatch("restore", "--store", archive, *other)
    assert (refused.returncode, refused.stdout) == (5, "nothing was restored\n")
    assert "it is of another lane" in refused.stderr
    assert not list((place / "other").rglob("*.cubin"))


# --- what ninja builds -------------------------------------------------------------------------

EXTENSION = """
import json, os, sys, time
from torch.utils import cpp_extension
started = time.monotonic()
library = cpp_extension.load("tiny", [sys.argv[1]], is_python_module=False, is_standalone=False)
print(json.dumps({"built": os.stat(os.environ["TORCH_EXTENSIONS_DIR"] + "/tiny/tiny.so").st_mtime_ns}))
"""


def test_a_torch_extension_is_built_once_and_again_when_a_header_changes(place: Path) -> None:
    first = program(place, "first")
    source = place / "source" / "tiny.cpp"
    source.parent.mkdir()
    source.write_text('#include "tiny.h"\nint twice(int value) { return FACTOR * value; }\n')
    (source.parent / "tiny.h").write_text("#define FACTOR 2\n")
    script = place / "load.py"
    script.write_text(EXTENSION)
    first.run(script, source)
    save_to(place / "store", first.root)
    shutil.rmtree(first.root)
    for path in source.parent.iterdir():
        path.touch()  # a fresh checkout
    restore_from(place / "store", first.root)
    place_of_it = folder(first.root, "extensions") / "tiny" / "tiny.so"
    restored = place_of_it.stat().st_mtime_ns
    assert first.run(script, source)["built"] == restored
    shutil.rmtree(first.root)
    (source.parent / "tiny.h").write_text("#define FACTOR 3\n")
    restore_from(place / "store", first.root)
    assert not place_of_it.exists()
    assert first.run(script, source)["built"] > restored


PLAIN = """\
rule compile
  command = c++ {flags} -MF $out.d -isystem {source} -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = c++ -shared $in -o $out
rule copy
  command = cp $in $out
{steps}
build plain.so: link plain.o
default plain.so
"""
COMPILED = "build plain.o: compile {source}/plain.cpp"
COPIED = "build plain.cpp: copy {source}/plain.cpp\nbuild plain.o: compile plain.cpp"


@pytest.mark.parametrize(
    ("flags", "steps", "change", "saved"),
    [
        ("-MD", COMPILED, None, True),
        ("-MMD", COMPILED, None, True),
        ("-MD", COMPILED, "plain.h", True),
        ("-MMD", COMPILED, "plain.h", True),
        ("-MMD", COMPILED, "new.h", True),
        ("-MD", COPIED, "plain.cpp", False),
    ],
)
def test_ninja_has_nothing_to_do_only_where_nothing_changed(
    flags: str, steps: str, change: str | None, *, saved: bool, place: Path
) -> None:
    built, source = folder(place / "root", "extensions") / "plain", place / "source"
    source.mkdir()
    (source / "plain.h").write_text("#define VALUE 1\n")
    (source / "plain.cpp").write_text("#include <plain.h>\nint value() { return VALUE; }\n")
    built.mkdir(parents=True)
    (built / "build.ninja").write_text(PLAIN.format(flags=flags, source=source, steps=steps.format(source=source)))

    def ninja() -> str:
        command = [Path(sys.executable).with_name("ninja"), "-C", built]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]

    assert ninja() != "ninja: no work to do." == ninja()
    archive = save(Store(place / "store"), place / "root", lane=LANE, key=key(), limit=LIMIT).archive
    assert (archive is not None) == saved
    if not saved:
        return
    shutil.rmtree(place / "root")
    if change:
        (source / change).write_text("#define VALUE 2\n")
    restore_from(place / "store", place / "root")
    assert built.exists() == (change is None)
    if change is None:
        assert ninja() == "ninja: no work to do."


# --- the variables -----------------------------------------------------------------------------

#: One file of a package, without all that the package imports.
RUN = (
    "import runpy, importlib.util as u; "
    "run = lambda p, f: runpy.run_path(u.find_spec(p).submodule_search_locations[0] + '/' + f)"
)
#: Module -> what it says, once imported, of where its cache lies, and the variable for that.
ASKED: dict[str, tuple[str, str]] = {
    "triton": ("import triton; print(triton.knobs.cache.dir)", "TRITON_CACHE_DIR"),
    "triton.knobs": ("import triton; print(int(triton.knobs.autotuning.cache))", "TRITON_CACHE_AUTOTUNING"),
    "torch": (
        "from torch._inductor.runtime.cache_dir_utils import cache_dir; print(cache_dir())",
        "TORCHINDUCTOR_CACHE_DIR",
    ),
    "torch.utils": (
        "from torch.utils.cpp_extension import _get_build_directory; print(_get_build_directory('.', False)[:-2])",
        "TORCH_EXTENSIONS_DIR",
    ),
    "flashinfer": (
        "from flashinfer.jit import env; print(env.FLASHINFER_BASE_DIR)",
        "FLASHINFER_WORKSPACE_BASE",
    ),
    "tilelang": (f"{RUN}; print(run('tilelang', 'env.py')['env'].TILELANG_CACHE_DIR)", "TILELANG_CACHE_DIR"),
    "numba": ("import numba; print(numba.config.CACHE_DIR)", "NUMBA_CACHE_DIR"),
    "jax": ("import jax; print(jax.config.jax_compilation_cache_dir)", "JAX_COMPILATION_CACHE_DIR"),
    "cupy": (
        "from cupy.cuda._compiler_cache import DiskKernelCacheBackend as B; print(B()._cache_dir)",
        "CUPY_CACHE_DIR",
    ),
    "tvm_ffi": (
        "import tvm_ffi.cpp as c; print(c.build_inline('x', cpp_sources='', functions=[]).rpartition('/x_')[0])",
        "TVM_FFI_CACHE_DIR",
    ),
    "vllm": ("import vllm.envs as e; print(e.VLLM_CACHE_ROOT)", "VLLM_CACHE_ROOT"),
    **{
        f"sglang.{name}": (f"{RUN}; print(run('sglang', 'srt/environ.py')['envs'].{name}.get())", name)
        for name in ("SGLANG_CACHE_DIR", "SGLANG_JIT_CACHE_DIR", "SGLANG_DG_CACHE_DIR")
    },
}


@pytest.mark.parametrize("module", ASKED)
def test_each_compiler_says_that_its_cache_is_there(module: str, place: Path) -> None:
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed")
    first = program(place, "first")
    script, variable = ASKED[module]
    done = first.start("-c", script)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == first.environment()[variable]


def test_the_variables_need_neither_a_user_nor_a_home_nor_torch(place: Path) -> None:
    other = program(place, "other", NOBODY)
    code = "import sys, archpatch.kernel_cache as k; print(len(k.environment(sys.argv[1])), 'torch' in sys.modules)"
    done = other.start("-c", code, other.root, without=("HOME", "USER", "LOGNAME"))
    assert done.stdout.split() == [str(len(environment(place, LANE))), "False"], done.stderr


# --- a crowd -----------------------------------------------------------------------------------

CROWD = ("direct", "direct", "node", "node", "node", "node", "saver", "saver")
#: It ends when so many were killed and so many kernels compiled or found, or else fails after so many seconds.
KILLS, COMPILES, SECONDS = 40, 150, 420
BLOCKS = tuple(1 << power for power in range(4, 13))


def torn(shared: Path) -> list[str]:
    """Return the groups in a shared folder that a reader could not use."""
    found = []
    for group in below(folder(shared, "triton")):
        if not group.name.startswith(GROUP) or ".archpatch" in group.parts or "tmp.pid" in str(group):
            continue
        try:
            names = group_members(group.read_bytes())
        except ValueError:
            found.append(str(group))
            continue
        found += [str(group.parent / name) for name in names if not (group.parent / name).is_file()]
    return found


def test_many_that_are_killed_at_random_leave_nothing_torn(place: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    sys.stdout.write(f"seed {seed}\n")
    rng = random.Random(seed)  # noqa: S311 - no secret
    shared, log = place / "shared", place / "log"
    shared.mkdir()
    base = program(place, "base")
    started = time.monotonic()
    base.triton("80:128")
    pace = time.monotonic() - started  # a loaded machine takes its time to start a process
    words = [f"{arch}:{block}" for arch in (80, 90) for block in BLOCKS]
    expected = {(each["arch"], each["block"]): each["cubin"] for each in base.triton(*words)}

    def start(number: int) -> subprocess.Popen[bytes]:
        own = place / f"node{number}" / "root"
        arguments = [CROWD[number], shared, own, log, rng.random()]
        command = [sys.executable, str(HERE / "crowd_program.py"), *map(str, arguments)]
        with (place / "errors").open("ab") as errors:
            return subprocess.Popen(command, env=base.environment(), stdout=errors, stderr=errors, cwd=base.home)

    crowd = [start(number) for number in range(len(CROWD))]
    kills, found, ended = 0, list[str](), time.monotonic() + SECONDS
    log.touch()
    try:
        while kills < KILLS or len(log.read_text().splitlines()) < COMPILES:
            assert time.monotonic() < ended, f"only {kills} kills, {len(log.read_text().splitlines())} compiles"
            alive = time.monotonic() + rng.uniform(0.05, 1.2) * pace
            while time.monotonic() < alive:
                found += torn(shared)
                time.sleep(0.02)
            victim = rng.randrange(len(crowd))
            status = crowd[victim].poll()
            assert status is None, (place / "errors").read_text()[-3000:]
            crowd[victim].kill()
            crowd[victim].wait()
            crowd[victim] = start(victim)
            kills += 1
    finally:
        for each in crowd:
            each.kill()
            each.wait()
    told = [json.loads(line) for line in log.read_text().splitlines()]
    sys.stdout.write(f"{kills} kills, {len(told)} compiles, {sum(hits(told))} of them hits\n")
    assert found == torn(shared) == []
    assert 0 < sum(hits(told)) < len(told)
    assert [each for each in told if expected[each["arch"], each["block"]] != each["cubin"]] == []
    last = program(place, "last")
    fetch(last.root, shared, lane=LANE)
    held = {entry.name for entry in Tree.of(last.root, LANE).entries() if not check(entry).faults}
    final = last.triton(*words)
    assert sum(hits(final)) == len(held)
    assert {(each["arch"], each["block"]): each["cubin"] for each in final} == expected
