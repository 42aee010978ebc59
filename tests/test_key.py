from __future__ import annotations

import re

import pytest

from archpatch.cli.key import show_key
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


def test_parts_that_pass_are_left_off_one_by_one() -> None:
    passing = Key(parts=("kernels", "h200", "2026-W48", "monday"), inputs={}, passing=2)
    assert passing.restore_prefixes == (
        "kernels-h200-2026-W48-monday-",
        "kernels-h200-2026-W48-",
        "kernels-h200-",
    )
    assert passing.to_json()["restore_prefixes"] == list(passing.restore_prefixes)
    assert key().restore_prefixes == (key().prefix,)


def test_github_gets_each_restore_key_on_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    show_key("key-wheelhouse", key(a="1"), form="github")
    assert capsys.readouterr().out == f"key={key(a='1')}\nrestore-keys<<END\n{key().prefix}\nEND\n"
