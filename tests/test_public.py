from __future__ import annotations

import pytest

import archpatch
from archpatch import errors


def test_every_public_name_is_there() -> None:
    for name in archpatch.__all__:
        assert getattr(archpatch, name) is not None
    assert set(archpatch.__all__) <= set(dir(archpatch))


def test_every_error_is_public() -> None:
    assert set(errors.__all__) <= set(archpatch.__all__)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        archpatch.nothing  # noqa: B018
