from __future__ import annotations

import pytest

from archpatch.rewrite.cxx_standard import falls_short, mentions_standard, raised


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-std=c++17", "-std=c++20"),
        ("--std=c++14", "--std=c++20"),
        ("-std=gnu++17", "-std=gnu++20"),
        ("-std=c++1z", "-std=c++20"),
        ("-std=c++0x", "-std=c++20"),
        ("-std=c++98", "-std=c++20"),
        ("-std=c++03", "-std=c++20"),
        ("-std=c++20", None),
        ("-std=c++2a", None),
        ("-std=c++23", None),
        ("-std=c++zz", None),
        ("-std=c11", None),
        ("/std:c++17", None),
        ("-O3 -std=c++17", None),
    ],
)
def test_raised(text: str, expected: str | None) -> None:
    assert raised(text, 20) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-O3 -std=c++17", True),
        ("-O3 -std=c++20", False),
        ("-std=c++", True),
        ("-std=c++14 -std=c++20", True),
        ("", False),
    ],
)
def test_falls_short(text: str, *, expected: bool) -> None:
    assert falls_short(text, 20) is expected


def test_mentions_standard() -> None:
    assert mentions_standard("-Xcompiler -std=c++17")
    assert not mentions_standard("needs c++17")
