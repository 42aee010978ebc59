from __future__ import annotations

import re
from pathlib import Path

import pytest

from archpatch.cli.key import show_key
from archpatch.cli.settings import Settings
from archpatch.storage.key import Key


def key(**inputs: str) -> Key:
    return Key(parts=("archpatch", "wheelhouse", "h200,l4", "torch2.14.1-cu130"), inputs=inputs)


def test_a_key_is_a_readable_prefix_and_a_digest() -> None:
    assert re.fullmatch(r"archpatch-wheelhouse-h200-l4-torch2\.14\.1-cu130-[0-9a-f]{16}", str(key(a="1")))
    assert str(key(a="1")).startswith(key().prefix)


def test_every_input_changes_it_and_their_order_does_not() -> None:
    assert len({str(key()), str(key(a="1")), str(key(a="2")), str(key(b="1"))}) == 4
    assert str(key(a="1", b="2")) == str(key(b="2", a="1"))


def test_json_has_what_a_ci_step_needs() -> None:
    assert key(b="2", a="1").to_json() == {
        "key": str(key(a="1", b="2")),
        "restore_prefixes": [key().prefix],
        "inputs": {"a": "1", "b": "2"},
    }


def test_github_gets_each_restore_key_on_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    show_key("key-wheelhouse", key(a="1"), form="github", against=None)
    assert capsys.readouterr().out == f"key={key(a='1')}\nrestore-keys<<END\n{key().prefix}\nEND\n"


def test_the_projects_settings_reach_the_command_below_the_group(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('gpu = "h200"\n')
    assert Settings(file).defaults_for("key") == {"key": {"wheelhouse": {"gpu": ("h200",)}}}
