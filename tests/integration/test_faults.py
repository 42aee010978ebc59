"""What goes wrong: a clear message, the right exit status, nothing published, nothing left behind, no stray process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commandline import FIXTURES, CommandLine, make_sdist, only_index

pytestmark = pytest.mark.integration

MINI = FIXTURES / "mini"


def append(project: Path, text: str) -> Path:
    """Put a line before everything else in the project's `setup.py`."""
    setup = project / "setup.py"
    setup.write_text(f"{text}\n{setup.read_text()}")
    return project


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("raise ValueError('no luck')", "setup.py:1 raised ValueError: no luck"),
        ("import sys; sys.exit('go away')", "setup.py:1 called sys.exit('go away')"),
        ("import sys; sys.exit(0)", "setup.py:1 called sys.exit('0')"),
        ("import os; os._exit(7)", "setup.py ended the interpreter (status 7)"),
        ("import nosuchmodule.part", "needs the module 'nosuchmodule"),
        ("import os; os.kill(os.getpid(), 9)", "setup.py ended the interpreter (status -9)"),
    ],
)
def test_a_setup_py_that_fails_is_told_with_its_line(archpatch: CommandLine, mini: Path, line: str, says: str) -> None:
    answer = archpatch("build", append(mini, line), "--arch", "9.0")
    assert answer.status == 4
    assert says in answer.stderr
    assert archpatch.published() == archpatch.left_behind() == []


def test_the_first_compiler_error_is_shown_and_the_log_kept(archpatch: CommandLine, mini: Path) -> None:
    source = mini / "csrc" / "add.cu"
    source.write_text(f"int broken = nowhere;\n{source.read_text()}")
    answer = archpatch("build", mini, "--arch", "9.0")
    assert answer.status == 4
    assert re.search(r'add\.cu\(1\): error: identifier "nowhere" is undefined', answer.stderr)
    log = re.search(r"The whole log: (\S+)", answer.stderr)
    assert log is not None
    assert "nvcc" in Path(log[1]).read_text()
    assert archpatch.published() == archpatch.left_behind() == []


def test_an_extension_that_would_lose_all_its_pairs_is_no_match(archpatch: CommandLine, mini: Path) -> None:
    """The pair that is asked for stands under a condition that is false: torch alone would compile for it."""
    setup = mini / "setup.py"
    setup.write_text(setup.read_text().replace(">= (12, 8)", ">= (99, 0)"))
    answer = archpatch("build", mini, "--arch", "12.0")
    assert answer.status == 3
    assert "nothing remains of sm_75, sm_80, sm_90" in answer.stderr


def test_an_arch_that_this_nvcc_does_not_know_is_found_before_the_compile(archpatch: CommandLine) -> None:
    answer = archpatch("build", MINI, "--arch", "7.0", "--on-missing", "add")
    assert answer.status == 4
    assert "compute_70,sm_70: nvcc" in answer.stderr
    assert "CUDA 13 dropped every arch below 7.5" in answer.stderr


def test_a_pair_under_a_false_condition_is_told_and_strict_refuses_it(archpatch: CommandLine, mini: Path) -> None:
    setup = mini / "setup.py"
    setup.write_text(setup.read_text().replace(">= (12, 8)", ">= (99, 0)"))
    answer = archpatch("build", mini, "--arch", "9.0;12.0", "--strict")
    assert answer.status == 3
    assert "12.0" in answer.stderr
    lenient = archpatch("build", mini, "--arch", "9.0;12.0")
    assert lenient.record["device_code"] == ["sm_90"]
    assert "sm_120 (line 24) stands in setup.py under a condition that CUDA 13.0 makes false" in lenient.stderr


@pytest.mark.parametrize(
    ("requirement", "status", "says"),
    [
        ("archpatch_mini==9.9", 2, "archpatch_mini==9.9"),
        ("nosuchpackage", 2, "nosuchpackage is unknown"),
        ("archpatch_mini==0.1.0#sha256=" + "0" * 64, 4, "Do not build it before you know why"),
    ],
)
def test_what_the_index_does_not_have(archpatch: CommandLine, requirement: str, status: int, says: str) -> None:
    make_sdist(MINI, archpatch.folder / "index")
    answer = archpatch("build", requirement, "--arch", "9.0", environ=only_index(archpatch.folder / "index"))
    assert answer.status == status, answer.stderr
    assert says in answer.stderr


def test_an_index_that_cannot_be_reached_is_no_unknown_package(archpatch: CommandLine) -> None:
    environ = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    answer = archpatch("build", "archpatch_mini", "--arch", "9.0", environ={**environ, "PIP_FIND_LINKS": ""})
    assert answer.status == 4
    assert "127.0.0.1:9" in answer.stderr


@pytest.mark.parametrize("release", ["mamba_ssm==2.2.2", "causal_conv1d==1.4.0"])
def test_a_release_without_sources_ends_in_seconds(archpatch: CommandLine, release: str) -> None:
    started = time.monotonic()
    # Its repository is taken next; this makes sure that no network is asked for it.
    environ = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "url.file:///nowhere/.insteadOf"}
    answer = archpatch(
        "build", release, "--gpu", "h200", environ={**environ, "GIT_CONFIG_VALUE_0": "https://github.com/"}
    )
    assert answer.status == 4
    assert "the source holds none of the files that its setup.py names: csrc/" in answer.stderr
    assert archpatch.published() == []
    assert time.monotonic() - started < 180


def test_a_full_wheelhouse_is_told_and_nothing_is_published(archpatch: CommandLine, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(230 * 1024))
    answer = archpatch("build", MINI, "--arch", "9.0", "--wheelhouse", small_disk / "house")
    assert answer.status == 4, answer.stderr
    assert "no space is left" in answer.stderr
    assert list(small_disk.rglob("*.whl*")) == []
    assert archpatch.left_behind() == []


def test_a_full_temporary_folder_is_told(archpatch: CommandLine, small_disk: Path) -> None:
    answer = archpatch("build", MINI, "--arch", "9.0", environ={"TMPDIR": str(small_disk)})
    assert answer.status == 4, answer.stderr
    assert re.search(r"disk: .* free|no space is left|the disk is full", answer.stderr)
    assert archpatch.published() == []


def test_a_wheelhouse_that_cannot_be_written_is_told(archpatch: CommandLine) -> None:
    archpatch.wheelhouse.write_text("a file")
    answer = archpatch("build", MINI, "--arch", "9.0")
    assert answer.status == 2
    assert "wheelhouse" in answer.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_compile_leaves_no_process_and_no_wheel(
    archpatch: CommandLine, number: signal.Signals, status: int
) -> None:
    process = subprocess.Popen(
        archpatch.command("build", FIXTURES / "mini_torch", "--arch", "9.0"),
        cwd=archpatch.folder,
        env=archpatch.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that starts the tests in the background has SIGINT ignored, and that is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - no threads here
    )
    try:
        deadline = time.monotonic() + 120
        while not archpatch.compilers():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == status, stderr
    assert "Traceback" not in stderr
    assert archpatch.compilers() == []
    assert archpatch.published() == archpatch.left_behind() == []
