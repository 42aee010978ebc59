"""Sdists of PyPI, fetched by their hash and unpacked."""

from __future__ import annotations

import platform
from pathlib import Path

from archpatch.builder.download import fetch_sdist
from archpatch.builder.pip_settings import read_pip_settings
from archpatch.builder.requirement import IndexRequirement, parse_requirement
from archpatch.builder.sdist_store import sdist_store
from archpatch.storage.archives import unpack


def unpacked(text: str, folder: Path) -> Path:
    """Return the unpacked tree of `NAME==VERSION#sha256=...`, in a new `folder`."""
    requirement = parse_requirement(text)
    assert isinstance(requirement, IndexRequirement)
    python = platform.python_version()
    settings, store = read_pip_settings(), sdist_store()
    _, sdist = fetch_sdist(requirement, settings, offline=False, python_version=python, store=store)
    unpack(sdist, folder)
    (tree,) = folder.iterdir()
    return tree
