from __future__ import annotations

import pytest

from archpatch.builder.diagnosis import first_error, is_disk_full

NINJA = "ninja: build stopped: subcommand failed."
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "x.py", line 1',
    "RuntimeError: Error compiling objects for extension",
]


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (
            [
                "[1/2] nvcc ...",
                '/b/a.cu(12): error: identifier "foo" is undefined',
                "      foo();",
                "      ^",
                NINJA,
                *TRACEBACK,
            ],
            '/b/a.cu(12): error: identifier "foo" is undefined',
        ),
        (
            ["/b/a.cpp:3:10: fatal error: nope.h: No such file or directory", NINJA],
            "/b/a.cpp:3:10: fatal error: nope.h",
        ),
        (["nvcc fatal   : Unsupported gpu architecture 'compute_120'"], "nvcc fatal   : Unsupported gpu"),
        (
            ['At end of source: error: expected a "}"', '1 error detected in the compilation of "a.cu".', *TRACEBACK],
            'At end of source: error: expected a "}"\n1 error detected in the compilation of "a.cu".',
        ),
        (["a.cu(3): internal error: assertion failed: x"], "a.cu(3): internal error"),
        (["a.cpp:3:1: internal compiler error: Segmentation fault", *TRACEBACK], "a.cpp:3:1: internal compiler error"),
        (
            ["c++: fatal error: Killed signal terminated program cc1plus", "compilation terminated."],
            "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.",
        ),
        (["/usr/bin/x86_64-linux-gnu-g++-12: fatal error: no input files"], "/usr/bin/x86_64-linux-gnu-g++-12: fatal"),
        (["ptxas /tmp/a.ptx, line 12; error   : Unknown symbol"], "ptxas /tmp/a.ptx, line 12; error"),
        (["sh: 1: /opt/cuda/bin/nvcc: Permission denied", *TRACEBACK], "sh: 1: /opt/cuda/bin/nvcc: Permission denied"),
        (["/bin/bash: line 1: nvcc: command not found", *TRACEBACK], "/bin/bash: line 1: nvcc: command not found"),
        (
            ["/usr/bin/ld: warning: a.o: missing .note.GNU-stack section", "/usr/bin/ld: a.o: undefined symbol"],
            "/usr/bin/ld: a.o: undefined symbol",
        ),
        (["x86_64-linux-gnu-ld: a.o: file not recognized"], "x86_64-linux-gnu-ld: a.o"),
        (["ptxas fatal   : Unresolved extern function 'x'"], "ptxas fatal"),
        (["nvcc error   : 'cicc' died due to signal 9 (Kill signal)"], "nvcc error   : 'cicc' died"),
        (
            [
                "/usr/bin/ld: cannot find -lcudart: No such file or directory",
                "collect2: error: ld returned 1 exit status",
            ],
            "/usr/bin/ld: cannot find -lcudart",
        ),
        (["/usr/bin/ld: a.o: undefined reference to `foo'"], "/usr/bin/ld: a.o: undefined reference"),
        (
            ["CMake Error at CMakeLists.txt:2 (project):", "", "  CMAKE_CUDA_ARCHITECTURES:", "", "    8x", *TRACEBACK],
            "CMake Error at CMakeLists.txt:2 (project):\n  CMAKE_CUDA_ARCHITECTURES:\n    8x",
        ),
        (["CMake Error: build.cmake", "a.cu(1): error: x"], "a.cu(1): error: x"),
        (TRACEBACK, "RuntimeError: Error compiling"),
        (["error: Microsoft Visual C++"], "error: Microsoft"),
        (["warning: all is well", "no error here, only the word"], None),
        ([], None),
    ],
)
def test_the_first_compiler_error_is_found(lines: list[str], error: str | None) -> None:
    found = first_error(lines)
    assert found is None if error is None else str(found).startswith(error)


def test_a_compilers_error_beats_an_earlier_traceback() -> None:
    assert str(first_error([*TRACEBACK, "a.cu(1): error: x"])).startswith("a.cu(1)")


def test_the_lines_that_follow_come_along() -> None:
    assert first_error(["a.cu(1): error: x", "  code", "  ^", "more"]) == "a.cu(1): error: x\n  code\n  ^"


@pytest.mark.parametrize(
    "lines",
    [
        ["subprocess.CalledProcessError: Command '['ninja']' failed", "The above exception was ...", *TRACEBACK],
        [*TRACEBACK, *TRACEBACK],
        ["a.cu(1): error: x", *TRACEBACK],
        ["sh: 1: nvcc: not found", *TRACEBACK],
    ],
)
def test_a_traceback_is_never_shown(lines: list[str]) -> None:
    assert "\n" not in str(first_error(lines))


def test_a_full_disk_is_told_apart() -> None:
    assert is_disk_full(["fatal error: error writing to /tmp/x.o: No space left on device"])
    assert not is_disk_full(["a.cu(1): error: x"])
