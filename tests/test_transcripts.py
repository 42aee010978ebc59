from __future__ import annotations

from pathlib import Path

import pytest
from pages import DOCS, sections
from transcripts import Command, Written, fits, steps

PAGE = """
```console
$ cd mini
$ ls
setup.py
```

Shown only:

```toml
a = 1
```

```python title="noxfile.py"
import nox
```
"""


def test_a_page_is_read_in_order(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert list(steps(page)) == [
        Command(3, "cd mini", ()),
        Command(4, "ls", ("setup.py",)),
        Written("noxfile.py", "import nox\n"),
    ]


def test_an_answer_without_a_command_is_a_mistake_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\nsetup.py\n```\n")
    with pytest.raises(AssertionError, match="starts with a command"):
        list(steps(page))


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ([], "", True),
        ([], "something\n", False),
        (["..."], "", True),
        (["..."], "one\ntwo\n", True),
        (["one"], "one\n", True),
        (["one"], "one\ntwo\n", False),
        (["one", "..."], "one\ntwo\n", True),
        (["...", "two"], "one\ntwo\n", True),
        (["...", "two"], "one\ntwo\nthree\n", False),
        (["built in ... s"], "built in 1.5 s\n", True),
        (["built in ... s"], "built in 1.5 s\nlater s\n", False),
        (["a.b"], "axb\n", False),
        (["name   MB"], "name        MB   \n", True),
        (["  indented"], "indented\n", False),
        (["one", "", "two"], "one\n\ntwo\n", True),
    ],
)
def test_what_is_shown_fits_what_is_printed(shown: list[str], printed: str, *, expected: bool) -> None:
    assert fits(shown, printed) is expected


def test_each_block_of_the_tutorial_is_a_step() -> None:
    blocks = [block for section in sections(DOCS / "tutorial.md") for block in section.blocks]
    assert {block.info for block in blocks if 'title="' not in block.info} == {"console"}
