"""The site as `nox -s docs` builds it: what is wrong in a page fails the build, and is named with its place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import PROJECT

pytestmark = pytest.mark.docs

#: A page, what is added to it, and what the build says.
MISTAKES = (
    ("README.md", "[x](docs/gone.md)", "'docs/gone.md'"),
    ("README.md", "[x](examples/gone.py)", "'examples/gone.py'"),
    ("README.md", "[x](examples/gone/)", "'examples/gone/'"),
    ("CHANGELOG.md", "[x](README.md#gone)", "'gone'"),
    ("CONTRIBUTING.md", "[x](http://example.org)", "http://example.org is no https address"),
    ("docs/how-to.md", "[x](https://example)", "https://example is no https address"),
    ("README.md", "[x](#examples)", "'examples'"),
    ("docs/matching.md", "[x](#gone)", "'gone'"),
    ("docs/tutorial.md", "[x](matching.md#gone)", "'gone'"),
    ("docs/new.md", "# A page that the index does not list", "document isn't included in any toctree"),
)


def build(checkout: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout beside it, and return what was said."""
    command = [sys.executable, "-m", "sphinx", "-E", "-W", "--keep-going", "-q", "-c", "docs", ".", f"{checkout}.site"]
    # Sphinx colours what it warns of where CI or FORCE_COLOR is set.
    environ = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of all that the site is made of."""
    copy = tmp_path / "checkout"
    for folder in ("docs", "examples", ".github"):
        shutil.copytree(PROJECT / folder, copy / folder)
    for page in PROJECT.glob("*.md"):
        shutil.copy(page, copy)
    return copy


def test_the_pages_are_in_order(checkout: Path) -> None:
    built = build(checkout)
    assert (built.returncode, built.stderr) == (0, "")
    index = Path(f"{checkout}.site", "docs", "index.html").read_text()
    assert all(f">{kind}<" in index for kind in ("Tutorial", "How-to guides", "Reference", "Explanation"))


def test_each_mistake_fails_the_build_and_is_named_with_its_place(checkout: Path) -> None:
    lines = {}
    for page, text, _ in MISTAKES:
        with (checkout / page).open("a") as file:
            file.write(f"\n{text}\n")
        lines[page, text] = len((checkout / page).read_text().splitlines())
    built = build(checkout)
    assert built.returncode == 1
    warnings = built.stderr.splitlines()
    for page, text, says in MISTAKES:
        places = (f"{checkout / page}:{lines[page, text]}: WARNING", f"{checkout / page}: WARNING")
        assert any(line.startswith(places) and says in line for line in warnings), (page, text, built.stderr)
