"""What is measured goes into one report, which is written after each measurement."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench_page import row
from commandline import PROJECT
from measuring import Comparison, Imports, Report

#: Where the report goes.
REPORT = Path(os.environ.get("ARCHPATCH_TEST_BENCH", PROJECT / ".nox" / "bench.json"))

#: A library of 44 MB, as torch 2.14.1 has it.
LINALG = Path(sysconfig.get_path("purelib"), "torch", "lib", "libtorch_cuda_linalg.so")


@pytest.fixture
def linalg() -> Path:
    """A large library with device code."""
    if not LINALG.is_file():
        pytest.skip("there is no torch with CUDA here")
    return LINALG


@pytest.fixture(scope="session", autouse=True)
def _compiled_modules() -> Iterator[None]:
    """Let every Python keep its modules compiled, as a user's does, whatever this environment says of that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session")
def keep() -> Callable[[Comparison | Imports], None]:
    """Put a measurement into the report."""
    report = Report.here()

    def keep(made: Comparison | Imports) -> None:
        nonlocal report
        report = report.plus(made)
        report.write(REPORT)

    return keep


@pytest.fixture
def compared(keep: Callable[[Comparison | Imports], None]) -> Callable[..., None]:
    """Keep comparisons, print them, and fail where the figure of any is beyond a limit."""

    def compared(*comparisons: Comparison) -> None:
        for comparison in comparisons:
            keep(comparison)
            print(f"\n{row(comparison)}")
        assert [row(comparison) for comparison in comparisons if not comparison.holds] == []

    return compared
