"""The guide for CIs shows what the examples hold, and names all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from archpatch.config import load_config

PROJECT = Path(__file__).parents[1]
EXAMPLES = PROJECT / "examples" / "ci"
GUIDE = (PROJECT / "docs" / "ci.md").read_text(encoding="utf-8")
FILES = sorted(path for path in EXAMPLES.rglob("*") if path.is_file())


def stripped(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("block", re.findall(r"^```\w+\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL))
def test_what_the_guide_shows_stands_in_an_example(block: str) -> None:
    wanted = stripped(block)
    lines = [stripped(file.read_text(encoding="utf-8")) for file in FILES]
    assert any(wanted == of[at : at + len(wanted)] for of in lines for at in range(len(of))), block


def test_the_guide_names_every_example() -> None:
    # The plan is shown whole.
    named = {
        EXAMPLES / "pyproject.toml",
        *(EXAMPLES / name for name in re.findall(r"\(\.\./examples/ci/(\S+)\)", GUIDE)),
    }
    assert sorted(named) == FILES


@pytest.mark.parametrize("name", ["restore-wheelhouse", "restore-kernel-cache"])
def test_the_guide_lists_the_inputs_of_the_action(name: str) -> None:
    action = (PROJECT / ".github" / "actions" / name / "action.yml").read_text(encoding="utf-8")
    inputs = re.findall(r"^  ([\w-]+):$", action.partition("\noutputs:")[0].partition("\ninputs:")[2], re.MULTILINE)
    table = GUIDE.partition(f"\n`{name}` ")[2].partition("| input |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    assert re.findall(r"`([\w-]+)`", " ".join(rows)) == inputs


def test_the_plan_of_the_examples_is_one() -> None:
    plan = load_config(EXAMPLES, config=EXAMPLES / "pyproject.toml").plan
    assert plan is not None
    assert [cell.id for cell in plan.cells] == ["causal_conv1d==1.7.0@h200", "causal_conv1d==1.7.0@l4"]
