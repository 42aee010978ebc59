"""The tutorial and the guides, typed as they stand: each command ends with 0 and prints what the page shows."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import FIXTURES, PROJECT
from pages import DOCS, sections
from schemas import documented, misfits
from transcripts import environment, follow

pytestmark = pytest.mark.integration

#: The `python3` and the `archpatch` of the interpreter that runs the tests come first.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A fresh folder, which does not stay: an environment with torch takes 5 GB."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def named_inputs(page: str, title: str) -> set[str]:
    """Return the names in the table of inputs of a page, without what stands before a NAME of the reader's."""
    (section,) = (section for section in sections(DOCS / page) if section.title == title)
    return {code for row in section.tables[0] for code in row["input"].code}


def unnamed(inputs: dict[str, str], names: set[str], package: str = "") -> set[str]:
    """Return the inputs that `names` do not have; `package.version` is `NAME.version` there, and so on."""
    free = {name.removesuffix("NAME") for name in names if name.endswith(".NAME")}
    own = {name.replace("NAME", package) for name in names if name.startswith("NAME.")}
    return {name for name in inputs if name not in names | own and not name.startswith(tuple(free))}


def test_what_goes_otherwise_is_told(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ cd /\n$ pwd\n/tmp\n$ false\n$ echo later\nlater\n```\n")
    said = [problem.splitlines()[0] for problem in follow(page, tmp_path, environment())]
    assert said == [
        "line 3: $ pwd: printed",
        "line 5: $ false: ended with status 1:",
        "line 6: $ echo later: was not run",
    ]


@pytest.mark.thorough
def test_the_tutorial_ends_where_it_says(folder: Path) -> None:
    # `archpatch/` is the checkout that a reader has; what git does not keep stays behind.
    left = shutil.ignore_patterns(".git", ".nox", ".venv", ".*_cache", "__pycache__", "*.egg-info")
    shutil.copytree(PROJECT, folder / "archpatch", ignore=left)
    variables = environment(PATH=PATH, ARCHPATCH_CACHE=str(folder / "cache"))
    # The environment that the reader makes has an archpatch of its own.
    variables.pop("PYTHONPATH", None)
    problems = follow(DOCS / "tutorial.md", folder, variables)
    assert not problems, "\n\n".join(problems)


@pytest.mark.thorough
@pytest.mark.parametrize("page", ["refresh.md", "key.md"])
def test_the_guide_does_what_it_says(page: str, folder: Path) -> None:
    shutil.copytree(FIXTURES / "mini", folder / "mini")
    variables = environment(PATH=PATH, ARCHPATCH_CACHE=str(folder / "cache"))
    problems = follow(DOCS / page, folder, variables)
    assert not problems, "\n\n".join(problems)
    for record in folder.glob("wheelhouse/sm*/*/*.json"):
        content = json.loads(record.read_text())
        assert misfits(content, documented("archpatch.record/1")) == []
        assert unnamed(content["inputs"], named_inputs("wheelhouse.md", "Fingerprint and hits")) == set()
    for key in folder.glob("key.json"):
        inputs = json.loads(key.read_text())["inputs"]
        assert unnamed(inputs, named_inputs("key.md", "What is in it"), "archpatch-mini") == set()
