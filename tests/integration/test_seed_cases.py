"""The packages that archpatch began with: their real `setup.py`, and what each request leaves of it."""

from __future__ import annotations

import ast
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import Policy
from archpatch.builder.download import fetch_sdist
from archpatch.builder.pip_settings import IndexSettings
from archpatch.builder.requirement import IndexRequirement, parse_requirement
from archpatch.errors import NoMatchingArch
from archpatch.rewrite.outcome import Refused
from archpatch.rewrite.source import rewrite_source

pytestmark = pytest.mark.integration

SEEDS = {
    "mamba_ssm==2.3.2.post1": "104cc47e9101e5401a675fa2b784f2952b9b037f3b1dd83b5ac544394e95d028",
    "causal_conv1d==1.7.0": "3202758494eaa7b597ce1c282dfa188889506bfcb92cad3c407d26736bfcd32b",
    "fast_hadamard_transform==1.1.0": "7c03daf825dc74c7200605a5b758f2d5a3bc47ef3b817bf02e97b24076a83906",
    "flash_attn==2.8.3": "1e71dd64a9e0280e0447b8a0c2541bad4bf6ac65bdeaa2f90e51a9e57de0370d",
}

Setup = Callable[[str], bytes]


@pytest.fixture(scope="module")
def setup_of(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """Return what gives the `setup.py` of a seed, fetched from the index once."""
    store = tmp_path_factory.mktemp("sdists")

    def setup_of(seed: str) -> bytes:
        requirement = parse_requirement(seed, sha256=SEEDS[seed])
        assert isinstance(requirement, IndexRequirement)
        _, path = fetch_sdist(requirement, IndexSettings(), offline=False, python_version="3.11.0", store=store)
        return member(path)

    return setup_of


def member(path: Path) -> bytes:
    with tarfile.open(path) as archive:
        name = next(name for name in archive.getnames() if re.fullmatch(r"[^/]+/setup\.py", name))
        file = archive.extractfile(name)
        assert file is not None
        return file.read()


def emitted(source: bytes) -> list[str]:
    """Return the values of all `-gencode`s that are appended, read with Python's own parser."""
    appended = [
        call.args[0].value
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "append"
        and isinstance(call.args[0], ast.Constant)
    ]
    flags = appended.count("-gencode")
    values = [value for value in appended if str(value).startswith("arch=")]
    assert flags == len(values), "each option has its value"
    return sorted(values)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("archs", "expected"),
    [
        ("12.0", ["arch=compute_120,code=sm_120"]),
        ("9.0", ["arch=compute_90,code=sm_90"]),
        (
            "8.0;9.0+PTX",
            ["arch=compute_80,code=sm_80", "arch=compute_90,code=compute_90", "arch=compute_90,code=sm_90"],
        ),
    ],
)
def test_exactly_the_requested_pairs_remain(setup_of: Setup, seed: str, archs: str, expected: list[str]) -> None:
    outcome = rewrite_source(setup_of(seed), ArchRequest.parse(archs), policy=Policy(), cxx_standard=20)

    assert outcome.outcome == "rewritten"
    assert emitted(outcome.source) == expected
    compile(outcome.source, "setup.py", "exec")
    again = rewrite_source(outcome.source, ArchRequest.parse(archs), policy=Policy(), cxx_standard=20)
    assert again.outcome == "unchanged"
    assert again.source == outcome.source


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("archs", "named"), [("12.0a", "sm_120"), ("8.9", "sm_80")])
def test_no_match_names_what_would_run(setup_of: Setup, seed: str, archs: str, named: str) -> None:
    source = setup_of(seed)
    outcome = rewrite_source(source, ArchRequest.parse(archs), policy=Policy())

    assert isinstance(outcome, Refused)
    assert outcome.source == source
    with pytest.raises(NoMatchingArch, match=f"{named} would run"):
        raise outcome.error()


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_request_the_file_stays(setup_of: Setup, seed: str) -> None:
    source = setup_of(seed)
    outcome = rewrite_source(source, None, policy=Policy())

    assert outcome.outcome == "unchanged"
    assert outcome.source == source


@pytest.mark.parametrize("seed", SEEDS)
def test_an_l4_keeps_what_it_runs(setup_of: Setup, seed: str) -> None:
    outcome = rewrite_source(setup_of(seed), GpuRequest.of("l4"), policy=Policy())

    assert emitted(outcome.source) == ["arch=compute_80,code=sm_80"]
