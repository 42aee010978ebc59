"""The machine is shared by all that compiles: turns, threads, memory, and what compiler caches answer."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from commandline import CUDA_HOME, FIXTURES, CommandLine, library, make_sdist, only_index

from archpatch.builder.schedule.desk import Desk, Seat, Split
from archpatch.builder.schedule.rota import UNKNOWN, Machine
from archpatch.builder.schedule.seating import STAND_IN

pytestmark = pytest.mark.integration

MINI = FIXTURES / "mini"
NVCC = str(CUDA_HOME / "bin/nvcc")
KERNEL = "__global__ void scale(float *x) { x[threadIdx.x] *= 2; }\n"
#: What nvcc writes into an object of the flags that it was called with.
SPLIT = b"-split-compile"

# --- builds --------------------------------------------------------------------------------------


def built(archpatch: CommandLine, **environ: str) -> tuple[bytes, dict[str, Any]]:
    """Return the library of the miniature project, and what its files cost."""
    answer = archpatch("build", MINI, "--arch", "9.0", "--compress-mode", "none", environ=environ)
    return library(answer.wheel, archpatch.folder / "unpacked").read_bytes(), answer.record["files"]


@pytest.mark.parametrize("environ", [{}, {"MAX_JOBS": "1"}])
def test_a_build_takes_all_cores(archpatch: CommandLine, environ: dict[str, str]) -> None:
    content, files = built(archpatch, **environ)
    assert SPLIT in content
    assert set(files) == {"csrc/add.cu"}


@pytest.mark.parametrize("environ", [{"NVCC_THREADS": "1"}, {"PYTORCH_NVCC": NVCC}])
def test_a_user_who_has_divided_them_keeps_them(archpatch: CommandLine, environ: dict[str, str]) -> None:
    content, files = built(archpatch, **environ)
    assert SPLIT not in content
    assert set(files) == (set() if "PYTORCH_NVCC" in environ else {"csrc/add.cu"})


def test_what_files_cost_is_recorded_and_counts_for_the_next_build(archpatch: CommandLine) -> None:
    first = archpatch("build", MINI, "--arch", "9.0")
    (cost,) = first.record["files"].values()
    assert 0.1 < cost["seconds"] < 60
    assert 50 << 20 < cost["memory"] < 4 << 30
    second = archpatch("build", MINI, "--arch", "8.0")
    assert second.record["files"].keys() == first.record["files"].keys()


def test_three_packages_are_refreshed_at_once(archpatch: CommandLine) -> None:
    names = [f"archpatch_mini_{number}" for number in range(3)]
    for name in names:
        make_sdist(MINI, archpatch.folder / "index", name=name)
    plan = f"[tool.archpatch.plan]\npackages = {[f'{name}==0.1.0' for name in names]}\ngpu = ['h200']\n"
    (archpatch.folder / "pyproject.toml").write_text(plan)
    answer = archpatch("refresh", "--json", environ=only_index(archpatch.folder / "index"))
    assert answer.status == 0, answer.stderr
    cells = answer.json["cells"]
    assert [(cell["package"], cell["state"]) for cell in cells] == [(f"{name}==0.1.0", "built") for name in names]
    # Each was at work while another was.
    lines = answer.stderr.splitlines()
    order = [name for line in lines for name in names if f"{name}==0.1.0@h200: " in line]
    assert order != sorted(order)
    assert archpatch.left_behind() == []


@pytest.mark.parametrize(
    ("told", "slow"),
    [(": compiling ", ""), (": reading ", "import time\ntime.sleep(60)\n")],
    ids=["compile", "capture"],
)
def test_an_interrupted_refresh_ends_all_its_builds(archpatch: CommandLine, told: str, slow: str) -> None:
    for name in ("first", "second"):
        project = archpatch.folder / name
        shutil.copytree(MINI, project)
        (project / "setup.py").write_text(slow + (MINI / "setup.py").read_text())
        metadata = (MINI / "pyproject.toml").read_text()
        (project / "pyproject.toml").write_text(metadata.replace('"archpatch_mini"', f'"archpatch_{name}"', 1))
    plan = "[tool.archpatch.plan]\npackages = ['./first', './second']\ngpu = ['h200']\n"
    (archpatch.folder / "pyproject.toml").write_text(plan)
    errors = archpatch.folder / "stderr"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            archpatch.command("refresh"),
            cwd=archpatch.folder,
            env=archpatch.environment(),
            stdout=subprocess.PIPE,
            stderr=stderr,
            # A shell that starts this in the background has it ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - no threads
        )
        deadline = time.monotonic() + 120
        while errors.read_text().count(told) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        if slow:
            # Until both setup.py run.
            time.sleep(3)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130, errors.read_text()
    assert "Traceback" not in errors.read_text()
    assert archpatch.compilers() == []
    assert archpatch.left_behind() == []
    assert archpatch.published() == []


@pytest.fixture
def limited() -> Iterator[Callable[[], object]]:
    """Yield what puts a process into a control group with 4 GiB of memory, and no swap."""
    group = Path(f"/sys/fs/cgroup/memory/archpatch-test-{os.getpid()}")
    try:
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(str(4 << 30))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    group.rmdir()


def test_a_build_in_a_container_with_4_gib_is_not_killed(archpatch: CommandLine, limited: Callable[[], object]) -> None:
    done = subprocess.run(
        archpatch.command("build", FIXTURES / "mini_torch", "--arch", "9.0", "--json"),
        cwd=archpatch.folder,
        env=archpatch.environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def noexec(archpatch: CommandLine) -> Iterator[Path]:
    """A temporary folder where no program can be run."""
    folder = archpatch.folder / "noexec"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,size=3g", "tmpfs", folder], check=False)
    if mount.returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_build_needs_no_programs_in_the_temporary_folder(archpatch: CommandLine, noexec: Path) -> None:
    answer = archpatch("build", MINI, "--arch", "9.0", environ={"TMPDIR": str(noexec)})
    assert set(answer.record["files"]) == {"csrc/add.cu"}


def test_nothing_more_is_compiled_after_a_file_that_cannot_be(archpatch: CommandLine) -> None:
    project = archpatch.folder / "project"
    shutil.copytree(MINI, project)
    names = [f"csrc/add{number}.cu" for number in range(6)]
    for name in names:
        (project / name).write_text("no C++\n")
    setup = project / "setup.py"
    setup.write_text(setup.read_text().replace('"csrc/add.cu"', ", ".join(f'"{name}"' for name in names)))
    answer = archpatch("build", project, "--arch", "9.0", "--max-jobs", 2)
    assert answer.status == 4
    log = Path(answer.stderr.strip().rpartition("The whole log: ")[2]).read_text()
    assert 1 <= sum(f"/{name}(1): error" in log for name in names) <= 2


# --- the desk and the stand-in ------------------------------------------------------------------


def stand_in(*words: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the stand-in of nvcc as ninja would."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(STAND_IN), *words],
        cwd=folder,
        env={**os.environ, "ARCHPATCH_NVCC": NVCC, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@contextlib.contextmanager
def seat_for(folder: Path, count: int, **limits: int) -> Iterator[tuple[Seat, list[str]]]:
    """Yield a seat for some sources that are written into the folder, and their names."""
    names = [f"{number}.cu" for number in range(count)]
    for name in names:
        (folder / name).write_text(KERNEL)
    machine = Machine(**{"cores": 2, "memory": 64 << 30, "jobs": 2, **limits})
    costs = {str(folder / name): UNKNOWN for name in names}
    with Desk(machine).seat([costs], archs=1, split=Split()) as seat:
        yield seat, names


def test_each_file_gets_its_turn_and_its_cost_is_told(tmp_path: Path) -> None:
    def compile_one(name: str) -> int:
        return stand_in("-c", name, "-o", f"{name}.o", folder=tmp_path, ARCHPATCH_DESK=seat.address).returncode

    with seat_for(tmp_path, 4) as (seat, names), ThreadPoolExecutor(4) as pool:
        assert list(pool.map(compile_one, names)) == [0] * 4
    assert {Path(path).name for path in seat.costs} == set(names)
    assert all(SPLIT in (tmp_path / f"{name}.o").read_bytes() for name in names)


def test_one_job_at_a_time_means_one(tmp_path: Path) -> None:
    # nvcc would be too quick to be caught in the act: what is measured is the desk.
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\nmkdir "$OUT/busy" || exit 9\nsleep 0.2\nrmdir "$OUT/busy"\n')
    slow.chmod(0o755)

    def compile_one(name: str) -> int:
        environ = {"ARCHPATCH_DESK": seat.address, "ARCHPATCH_NVCC": str(slow), "OUT": str(tmp_path)}
        return stand_in("-c", name, folder=tmp_path, **environ).returncode

    with seat_for(tmp_path, 5, jobs=1) as (seat, names), ThreadPoolExecutor(5) as pool:
        assert list(pool.map(compile_one, names)) == [0] * 5


def test_a_stand_in_that_is_killed_holds_nobody_up(tmp_path: Path) -> None:
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nsleep 60\n")
    sleeper.chmod(0o755)
    with seat_for(tmp_path, 2, jobs=1) as (seat, (first, second)):
        environ = {**os.environ, "ARCHPATCH_NVCC": str(sleeper), "ARCHPATCH_DESK": seat.address}
        command = [sys.executable, "-I", "-S", str(STAND_IN), "-c", first]
        hanging = subprocess.Popen(command, cwd=tmp_path, env=environ, start_new_session=True)
        time.sleep(1)
        os.killpg(hanging.pid, signal.SIGKILL)
        hanging.wait()
        assert stand_in("-c", second, folder=tmp_path, ARCHPATCH_DESK=seat.address).returncode == 0


@pytest.mark.parametrize("words", [["--version"], ["-c", "a.cu"], ["-E", "a.cu"], ["a.cu", "-c", "b.cu"], ["-c"]])
def test_where_nobody_is_to_be_asked_nvcc_runs_as_it_is_called(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "a.cu").write_text(KERNEL)
    (tmp_path / "b.cu").write_text(KERNEL)
    plain = subprocess.run([NVCC, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    stood_in = stand_in(*words, folder=tmp_path, ARCHPATCH_DESK="nobody-listens-here")
    assert (stood_in.returncode, stood_in.stdout) == (plain.returncode, plain.stdout)


def test_an_error_of_nvcc_is_passed_on(tmp_path: Path) -> None:
    with seat_for(tmp_path, 1) as (seat, (name,)):
        (tmp_path / name).write_text("no C++")
        failed = stand_in("-c", name, folder=tmp_path, ARCHPATCH_DESK=seat.address)
        assert failed.returncode != 0
        assert "error" in failed.stderr


# --- size -----------------------------------------------------------------------------------------


def test_device_code_is_compressed_and_keeps_no_source_lines_where_that_is_asked(archpatch: CommandLine) -> None:
    project = archpatch.folder / "project"
    shutil.copytree(MINI, project)
    setup = project / "setup.py"
    setup.write_text(setup.read_text().replace('"nvcc": ["-O1"]', '"nvcc": ["-O1", "-lineinfo"]'))

    def size(wheelhouse: str, *options: str) -> int:
        answer = archpatch("build", project, "--arch", "9.0", "--wheelhouse", wheelhouse, *options)
        assert answer.status == 0, answer.stderr
        assert "stays" not in answer.stderr
        assert set(answer.record["device_code"]) == {"sm_90"}
        return len(library(answer.wheel, archpatch.folder / wheelhouse / "unpacked").read_bytes())

    plain = size("plain", "--compress-mode", "none")
    assert size("small", "--compress-mode", "size") < plain
    assert size("without", "--compress-mode", "none", "--no-lineinfo") < plain
    # Each is a wheel of its own.
    again = archpatch("build", project, "--arch", "9.0", "--wheelhouse", "small", "--json", "--no-lineinfo")
    assert again.json["wheels"][0]["hit"] is False
