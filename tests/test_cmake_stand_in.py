from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from archpatch.builder.cmake_stand_in import Command, StandIn, commands_in


@pytest.mark.parametrize(
    ("command", "in_shell", "found"),
    [
        (["cmake", "-S", Path("csrc"), b"-B", "b"], False, [(["cmake", "-S", "csrc", "-B", "b"], "/w")]),
        ("cmake --version", False, [(["cmake --version"], "/w")]),
        (Path("/usr/bin/cmake"), False, [(["/usr/bin/cmake"], "/w")]),
        ("cmake .. -DA='x y'", True, [(["cmake", "..", "-DA=x y"], "/w")]),
        (["cmake ..", "ignored"], True, [(["cmake", ".."], "/w")]),
        ("cd b && cmake .. ; make -j4", True, [(["cmake", ".."], "/w/b"), (["make", "-j4"], "/w/b")]),
        (
            "(cd b; ninja)\ncmake --build b || true",
            True,
            [(["ninja"], "/w/b"), (["cmake", "--build", "b"], "/w/b"), (["true"], "/w/b")],
        ),
        ("A=1 B='2 3' cmake .. # why", True, [(["cmake", "..", "#", "why"], "/w")]),
        ("echo 'unbalanced", True, []),
        ([], False, []),
        ("", True, []),
    ],
)
def test_programs_are_found_in_whatever_starts_them(
    command: object, found: list[tuple[list[str], str]], *, in_shell: bool
) -> None:
    seen = commands_in(command, in_shell=in_shell, folder="/w", environ={})
    assert [(list(each.words), each.folder) for each in seen] == found


def test_a_shell_sets_variables_for_one_program() -> None:
    first, second = commands_in(
        "CUDAARCHS=80 cmake a; cmake b", in_shell=True, folder="/w", environ={"CUDAARCHS": "90"}
    )
    assert first.variables == {"CUDAARCHS": "80"}
    assert second.variables == {"CUDAARCHS": "90"}


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    for name in ("cmake", "cmake3", "ninja", "make", "nvcc", "python3"):
        (tmp_path / "bin" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / name).touch(mode=0o755)
    return {"PATH": str(tmp_path / "bin"), "CUDAARCHS": "90-real", "CMAKE_ARGS": "-DX=1", "OTHER": "1"}


@pytest.mark.parametrize(
    ("lines", "taken"),
    [
        (["cmake -S csrc -B b -DX=1"], [True]),
        (["cmake3 .."], [True]),
        (["{bin}/cmake --build b"], [True]),
        (["cmake --install b --prefix p"], [True]),
        (["cmake --version", "cmake -version", "cmake --help-module X", "cmake -E copy a b"], [False] * 4),
        (["cmake -DX=1 -P script.cmake", "cmake --system-information", "cmake"], [False] * 3),
        (["cmake -B b", "ninja -C b", "ninja -C other", "ninja"], [True, True, False, False]),
        (["cmake -Bb/c", "make -Cb/c -j4", "make"], [True, True, False]),
        (["python3 -m cmake -B b", "python3 -m cmake --version", "python3 -m"], [True, False, False]),
        (["cmake .", "make", "ninja install"], [True, True, True]),
        (["nvcc -c a.cu", "absent/cmake -B b", "sh -c cmake"], [False] * 3),
    ],
)
def test_what_configures_builds_and_installs_is_stood_in_for(
    tmp_path: Path, environ: Mapping[str, str], lines: list[str], taken: list[bool]
) -> None:
    noted: list[Command] = []
    stand_in = StandIn(noted.append)
    words = [line.format(bin=tmp_path / "bin").split() for line in lines]
    assert [stand_in.takes([Command(each, str(tmp_path), environ)]) for each in words] == taken
    assert len(noted) == sum(taken)


def test_a_program_that_is_not_there_fails_as_it_does_without_a_capture(tmp_path: Path) -> None:
    command = Command(["cmake", "-B", "b"], str(tmp_path), {"PATH": str(tmp_path)})
    assert not StandIn(lambda _: None).takes([command])
    assert not (tmp_path / "b").exists()


def test_a_shell_goes_from_one_to_the_next(tmp_path: Path, environ: Mapping[str, str]) -> None:
    noted: list[Command] = []
    commands = commands_in("cd b && cmake .. && make", in_shell=True, folder=str(tmp_path), environ=environ)
    assert StandIn(noted.append).takes(commands)
    assert [command.name for command in noted] == ["cmake", "make"]


def test_the_build_folder_is_made_as_cmake_makes_it(tmp_path: Path, environ: Mapping[str, str]) -> None:
    noted: list[Command] = []
    assert StandIn(noted.append).takes([Command(["cmake", "-B", "b/c"], str(tmp_path), environ)])
    assert (tmp_path / "b" / "c").is_dir()
    assert noted[0].variables == {"CUDAARCHS": "90-real", "CMAKE_ARGS": "-DX=1"}
    assert (noted[0].name, list(noted[0].arguments)) == ("cmake", ["-B", "b/c"])
