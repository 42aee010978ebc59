"""Unit tests start no process and open no socket: a fixture makes them fail if they try."""

from __future__ import annotations

import socket
import subprocess
from typing import NoReturn

import pytest
import setuptools  # noqa: F401 - it replaces distutils, and has to come before whatever imports that

from fixtures import (  # noqa: F401 - fixtures of the tests with real tools
    archpatch,
    bitsandbytes,
    built,
    cmake,
    cuobjdump,
    in_memory,
    mini,
    nvcc,
    small_disk,
)

_REAL = ("integration", "gpu", "benchmark", "packaging", "docs")


@pytest.fixture(autouse=True)
def _pure(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not any(request.node.get_closest_marker(name) for name in _REAL):

        def refuse(*_: object, **__: object) -> NoReturn:
            pytest.fail("a unit test may start no process and open no socket: mark it integration")

        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
        monkeypatch.setattr(socket.socket, "connect", refuse)
