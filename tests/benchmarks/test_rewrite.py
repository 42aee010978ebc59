"""How long a thousand rewrites take, beside what they cannot do without: libcst's own parse; both in one run."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path

import libcst
import pytest
from commandline import PROJECT
from measuring import Comparison, fastest

sys.path.insert(0, str(PROJECT / "tests"))

from corpus.files import files_of_cases

from archpatch.arch.arch import ArchRequest
from archpatch.arch.selection import Policy
from archpatch.rewrite.source import rewrite_source

pytestmark = pytest.mark.benchmark

FIXTURES = PROJECT / "fixtures" / "setup_py"
#: Sdists of PyPI, where the list lies beside the checkout.
CASES = PROJECT.parent / "shared/cases/pypi-sdists.toml"
FILES = 1000


def sources(scratch: Path) -> list[bytes]:
    """Return what the fixtures hold, and the `setup.py` of each sdist in the list."""
    real = [file.path for file in files_of_cases(CASES, scratch)] if CASES.is_file() else []
    return [path.read_bytes() for path in (*sorted(FIXTURES.rglob("*.py")), *real)]


def is_read(source: bytes) -> bool:
    """Whether libcst can parse it; some fixtures are there to be refused."""
    try:
        libcst.parse_module(source)
    except (libcst.ParserSyntaxError, UnicodeDecodeError, RecursionError):
        return False
    return True


def test_a_rewrite_takes_little_more_than_the_parse(tmp_path: Path, compared: Callable[..., None]) -> None:
    distinct = list(filter(is_read, sources(tmp_path)))
    files = [
        b"%s\n# %d\n" % (source.rstrip(b"\n"), number)
        for number, source in enumerate(itertools.islice(itertools.cycle(distinct), FILES))
    ]
    request, policy = ArchRequest.parse("9.0"), Policy()
    rewrite, parse = fastest(
        {
            f"rewrite {FILES} files": lambda: [rewrite_source(file, request, policy=policy) for file in files],
            "libcst.parse_module alone": lambda: [libcst.parse_module(file) for file in files],
        },
        rounds=1,
        clock=time.process_time,
    ).values()
    size = sum(map(len, files)) / 1e6
    note = f"{FILES / rewrite.value:.0f} files/s of one core; {len(distinct)} distinct files, {size:.1f} MB in all"
    compared(Comparison(name="rewrite", measured=rewrite, against=parse, most=4.0, note=note))
