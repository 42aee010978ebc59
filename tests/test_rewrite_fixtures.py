"""Every case of fixtures/setup_py, and what holds for all of them."""

from __future__ import annotations

import re
import shlex
import warnings
from pathlib import Path

import pytest

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import OnMissing, Policy
from archpatch.rewrite.guard import strip_guard
from archpatch.rewrite.outcome import Outcome, Refused, Rewritten
from archpatch.rewrite.source import rewrite_source

CASES = Path(__file__).parents[1] / "fixtures" / "setup_py"
REWRITTEN = sorted(path.parent for path in CASES.glob("rewritten/*/before.py"))
UNCHANGED = sorted(CASES.glob("unchanged/*.py"))
REFUSED = sorted(CASES.glob("refused/*.py"))
GUARDED = sorted(CASES.glob("guarded/*.py"))
ALL = [*(case / "before.py" for case in REWRITTEN), *UNCHANGED, *REFUSED, *GUARDED]


def rewrite(source: bytes) -> Outcome:
    """Rewrite a case as its first line says, such as `# archpatch: --arch 9.0 --on-missing add`."""
    words = shlex.split(source.splitlines()[0].decode().replace(";", "\\;").partition("archpatch: ")[2])
    options = dict(zip(words[::2], words[1::2], strict=True))
    request = None
    if "--arch" in options:
        request = ArchRequest.parse(options["--arch"])
    elif "--gpu" in options:
        request = GpuRequest.of(options["--gpu"])
    on_missing = OnMissing(options["--on-missing"]) if "--on-missing" in options else None
    standard = int(options["--cxx"]) if "--cxx" in options else None
    return rewrite_source(source, request, policy=Policy(on_missing=on_missing), cxx_standard=standard)


def marked(source: bytes) -> set[tuple[int, str]]:
    """Return the refusals or flag sources that a case's comments announce: (line, shape)."""
    found = (
        (number, re.search(r"# (?:refused|guarded): ([\w-]+(?:, [\w-]+)*)$", line))
        for number, line in enumerate(source.decode().splitlines(), 1)
    )
    return {(number, shape) for number, match in found if match for shape in match[1].split(", ")}


@pytest.mark.parametrize("case", REWRITTEN, ids=lambda case: case.name)
def test_rewritten(case: Path) -> None:
    outcome = rewrite((case / "before.py").read_bytes())

    assert outcome.outcome == "rewritten"
    assert outcome.source.decode() == (case / "after.py").read_text()


@pytest.mark.parametrize("case", UNCHANGED, ids=lambda case: case.stem)
def test_unchanged(case: Path) -> None:
    source = case.read_bytes()
    outcome = rewrite(source)

    assert outcome.outcome == "unchanged"
    assert outcome.source == source


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.stem)
def test_refused(case: Path) -> None:
    source = case.read_bytes()
    outcome = rewrite(source)

    assert isinstance(outcome, Refused)
    assert outcome.source == source
    assert {(refusal.line, refusal.shape) for refusal in outcome.refusals} == marked(source)
    for refusal in outcome.refusals:
        assert f"line {refusal.line}: {refusal.shape}: {refusal.reason}. {refusal.remedy}" in str(outcome.error())


@pytest.mark.parametrize("case", GUARDED, ids=lambda case: case.stem)
def test_guarded(case: Path) -> None:
    source = case.read_bytes()
    outcome = rewrite(source)

    assert isinstance(outcome, Rewritten)
    assert outcome.guarded
    assert outcome.selection is None
    assert {(item.line, item.shape) for item in outcome.sources} == marked(source)
    assert {item.action for item in outcome.pairs} <= {"guarded"}
    assert strip_guard(outcome.source).source == source
    assert strip_guard(outcome.source).line == 2


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.parent.name}-{case.stem}")
def test_result_is_python_with_the_same_line_ends_and_final(case: Path, newline: bytes) -> None:
    source = case.read_bytes().replace(b"\n", newline)
    once = rewrite(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(once.source, str(case), "exec")
    twice = rewrite(once.source)

    assert once.source.count(b"\n") == once.source.count(newline)
    assert twice.source == once.source
    assert twice.outcome == ("refused" if once.outcome == "refused" else "unchanged")


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.parent.name}-{case.stem}")
def test_no_comment_on_a_line_of_its_own_is_lost(case: Path) -> None:
    source = case.read_bytes()
    comments = re.findall(rb"^\s*(#.*)$", source, re.MULTILINE)
    result = strip_guard(rewrite(source).source).source

    assert re.findall(rb"^\s*(#.*)$", result, re.MULTILINE) == comments


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.parent.name}-{case.stem}")
def test_without_a_final_newline(case: Path) -> None:
    source = case.read_bytes()

    assert rewrite(source.rstrip(b"\n")).source == rewrite(source).source.rstrip(b"\n")
