from __future__ import annotations

import pytest

from archpatch.arch.gencode import parse_gencode
from archpatch.rewrite.spelling import HOLE, Flag, NotAFlag, Opaque, is_arch_flag, keep_codes, read_flags


@pytest.mark.parametrize(
    "text",
    [
        "-gencode",
        "--generate-code",
        "-arch",
        "--gpu-architecture",
        "arch=compute_80,code=sm_80",
        "-gencode=arch=compute_80,code=sm_80",
        "-O3 -gencode arch=compute_80,code=sm_80",
        "-arch=sm_80",
        "-arch=native",
        "-arch=all-major",
        "-O3 -arch sm_80",
        "-arch=%s",
        "-arch={}",
        "-arch=",
        "arch=",
        f"-arch={HOLE}",
        f"arch=compute_{HOLE},code=sm_{HOLE}",
        "code=[sm_80,compute_80]",
        "code=sm_80,arch=compute_80",
    ],
)
def test_arch_flags(text: str) -> None:
    assert is_arch_flag(text)


@pytest.mark.parametrize(
    "text",
    [
        "-march=native",
        "--offload-arch=gfx90a",
        "--offload-arch=",
        f"--offload-arch={HOLE}",
        "-arch arm64",
        "-arch=arm64",
        f"-arch {HOLE}",
        "my-gencode",
        "kernel_sm_80.cu",
        "sm_80",
        "search=compiled",
        "-DARCH=80",
    ],
)
def test_false_friends(text: str) -> None:
    assert not is_arch_flag(text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-O3", "-gencode", "arch=compute_80,code=sm_80", "-g"], [(1, 3)]),
        (["-gencode=arch=compute_80,code=sm_80", "-arch", "sm_80", "-arch=sm_90"], [(0, 1), (1, 3), (3, 4)]),
        (["-arch", "arm64", "-arch=arm64", Opaque.UNKNOWN], []),
        (["-gencode", Opaque.COMPUTED, "-gencode", Opaque.UNKNOWN], [(2, "computed-value")]),
        (["-gencode", "-gencode", "arch=compute_80,code=sm_80"], [(0, "orphan-flag"), (1, 3)]),
        (["-gencode", "arm64", "-arch"], [(0, "orphan-flag"), (2, "orphan-flag")]),
        (["arch=compute_80,code=sm_80", "arch=compute_99x,code=sm_99"], [(0, "orphan-value"), (1, "orphan-value")]),
        (["-gencode", "arch=compute_99,code=sm_99", "-arch=sm_81"], [(0, "unknown-arch"), (2, "unknown-arch")]),
        (["-arch=all", "-arch", "native"], [(0, "machine-dependent"), (1, "machine-dependent")]),
        (["-O3 -gencode arch=compute_80,code=sm_80"], [(0, "one-string")]),
        (["-code=sm_80", "-code", "sm_90", "-code"], [(0, "gpu-code"), (1, "gpu-code")]),
    ],
)
def test_read_flags(words: list[str | Opaque], expected: list[tuple[int, object]]) -> None:
    found = list(read_flags(words))

    assert [(item.start, item.stop if isinstance(item, Flag) else item.shape) for item in found] == expected
    assert all(isinstance(item, Flag | NotAFlag) for item in found)


@pytest.mark.parametrize(
    ("text", "codes", "expected"),
    [
        ("arch=compute_80,code=[sm_80,compute_80]", "sm_80", "arch=compute_80,code=sm_80"),
        ("-gencode=arch=compute_80,code=[sm_80,sm_86]", "sm_86", "-gencode=arch=compute_80,code=sm_86"),
        (r"arch=compute_80,code=\"sm_80,sm_86,sm_87\"", "sm_80,sm_87", r"arch=compute_80,code=\"sm_80,sm_87\""),
        ("code=sm_80,arch=compute_80", "sm_80", "arch=compute_80,code=sm_80"),
        ("-gencode=code=sm_80,arch=compute_80", "sm_80,sm_86", "-gencode=arch=compute_80,code=[sm_80,sm_86]"),
    ],
)
def test_keep_codes(text: str, codes: str, expected: str) -> None:
    pairs = parse_gencode(f"arch=compute_80,code=[{codes}]")
    assert pairs is not None

    assert keep_codes(text, pairs) == expected
