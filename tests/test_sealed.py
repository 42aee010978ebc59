from __future__ import annotations

import json

import pytest

from archpatch.storage.sealed import seal, unseal

CONTENT = {"name": "größer", "codes": ("sm_90", "sm_80"), "times": {"compile": 1.25}, "gpu": None}


@pytest.mark.parametrize("ascii_only", [True, False])
def test_what_is_sealed_comes_back_however_it_is_printed(ascii_only: bool) -> None:  # noqa: FBT001 - a case
    text = json.dumps(seal(CONTENT), indent=2, ensure_ascii=ascii_only)
    assert unseal(text) == {**CONTENT, "codes": ["sm_90", "sm_80"]}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sm_90", "sm_91"),
        ("1.25", "1.26"),
        ("null", "0"),
        ('"gpu"', '"gpus"'),
        ('"digest": "', '"digest": "0'),
        ('"digest"', '"other"'),
    ],
)
def test_an_edit_is_seen(old: str, new: str) -> None:
    text = json.dumps(seal(CONTENT))
    assert old in text
    with pytest.raises(ValueError, match="was changed after it was written"):
        unseal(text.replace(old, new, 1))


def test_every_truncation_is_seen() -> None:
    text = json.dumps(seal(CONTENT))
    for length in range(len(text)):
        with pytest.raises(ValueError):
            unseal(text[:length])


@pytest.mark.parametrize("text", ["", "{", "[]", '"text"', "null", "{}"])
def test_what_was_never_sealed_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        unseal(text)
