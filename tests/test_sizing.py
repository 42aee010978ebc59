"""How small device code is made, by what nvcc can do."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from archpatch.builder.schedule.nvcc_stand_in import without_lineinfo
from archpatch.builder.sizing import Sizing
from archpatch.builder.toolkit import Origin, Toolkit
from archpatch.errors import UsageError


def toolkit(version: str, *options: str) -> Toolkit:
    return Toolkit(
        root=Path("/cuda"),
        version=Version(version),
        origin=Origin.SYSTEM,
        found_by="",
        codes=frozenset(),
        options=frozenset(options),
    )


OLD, TWELVE, THIRTEEN = toolkit("12.4.1"), toolkit("12.8.93", "--compress-mode"), toolkit("13.0.88", "--compress-mode")


@pytest.mark.parametrize(
    ("mode", "tools", "flags"),
    [
        ("default", THIRTEEN, ()),
        ("size", THIRTEEN, ("--compress-mode=size",)),
        ("size", TWELVE, ("--compress-mode=size",)),
        ("none", THIRTEEN, ("--compress-mode=none",)),
        ("default", OLD, ()),
    ],
)
def test_nvcc_is_told_what_was_asked_for_and_else_decides(mode: str, tools: Toolkit, flags: tuple[str, ...]) -> None:
    sizing = Sizing(compress_mode=mode)
    assert sizing.flags(tools) == flags
    assert sizing.inputs(tools) == ({"sizing": flags[0]} if flags else {})


def test_a_mode_that_nvcc_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"nvcc 12\.4\.1 has no such option"):
        Sizing(compress_mode="size").flags(OLD)
    with pytest.raises(UsageError, match="'tiny' is not one of default, size"):
        Sizing(compress_mode="tiny")


def test_without_source_lines_it_is_another_wheel() -> None:
    assert Sizing(lineinfo=False).inputs(None) == {"lineinfo": "no"}
    assert Sizing().inputs(None) == {}


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["-O3", "-lineinfo", "-c", "a.cu"], ["-O3", "-c", "a.cu"]),
        (["--generate-line-info", "--resource-usage"], []),
        (["--ptxas-options=-v", "-Xptxas", "-v"], []),
        (["--ptxas-options=-v,-O2"], ["--ptxas-options=-O2"]),
        (["-Xptxas", "-O1", "-Xptxas", "-v,-warn-spills"], ["-Xptxas=-O1"]),
        (["-v", "-DX=-lineinfo", "-Xcompiler", "-v"], ["-v", "-DX=-lineinfo", "-Xcompiler", "-v"]),
        (["-Xptxas"], []),
    ],
)
def test_what_stores_source_lines_or_has_ptxas_talk_goes_and_nothing_else(words: list[str], kept: list[str]) -> None:
    assert list(without_lineinfo(words)) == kept
