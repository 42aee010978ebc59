"""Folders of ninja's, their files written by hand: what may be restored, and what is touched."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from kernels import LANE, LIMIT, elf, folder, key, write

from archpatch.kernel_cache import contents, ninja_needs
from archpatch.kernel_cache.contents import Contents
from archpatch.kernel_cache.ninja import build_seconds, current_digest, make_current, read_build
from archpatch.kernel_cache.restore import Restored
from archpatch.kernel_cache.restore import restore as restore_
from archpatch.kernel_cache.save import Saved, plan_save
from archpatch.kernel_cache.save import save as save_
from archpatch.kernel_cache.store import Store

#: Times (ns): that of the build, which is after this test, and one before it.
BUILT, BEFORE = 4 * 10**18, 10**18
NOT_PROVEN = "ninja's files do not prove that it is current"
CHANGED = "what it was built from has changed"
RULES = """\
cxx = {cxx}
rule compile
  command = $cxx {flags} -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
rule link
  command = $cxx $in $ldflags -o $out
"""
STEPS = """\
build main.o: compile main.cpp
build mine.so: link main.o
default mine.so
"""


def deps(records: dict[str, Sequence[str]], version: int = 4) -> bytes:
    """Return ninja's log of dependencies."""
    paths = list(dict.fromkeys(path for output, inputs in records.items() for path in (output, *inputs)))
    data = b"# ninjadeps\n" + struct.pack("<I", version)
    for number, path in enumerate(paths):
        name = path.encode().ljust((len(path) + 3) // 4 * 4, b"\0")
        data += struct.pack("<I", len(name) + 4) + name + struct.pack("<I", ~number & 0xFFFFFFFF)
    for output, inputs in records.items():
        words = [paths.index(path) for path in inputs]
        data += struct.pack("<I", 0x80000000 | 4 * (3 + len(words)))
        data += struct.pack(f"<IQ{len(words)}I", paths.index(output), BUILT, *words)
    return data


@pytest.fixture
def header(tmp_path: Path) -> Path:
    path = write(tmp_path / "include" / "header.h", b"#define X 1")
    os.utime(path, ns=(BEFORE, BEFORE))
    return path


@pytest.fixture
def cxx(tmp_path: Path) -> Path:
    path = write(tmp_path / "own" / "bin" / "c++", elf())
    path.chmod(0o755)
    return path


def rules(cxx: Path, flags: str = "-MD") -> str:
    return RULES.format(cxx=cxx, flags=flags)


@pytest.fixture
def built(tmp_path: Path, header: Path, cxx: Path) -> Path:
    """A folder with one extension, as torch has ninja build it."""
    place = folder(tmp_path / "root", "extensions") / "mine"
    for name, content in {"main.cpp": b"source", "main.o": elf(), "mine.so": elf()}.items():
        os.utime(write(place / name, content), ns=(BEFORE, BEFORE))
    write(place / "build.ninja", rules(cxx) + STEPS)
    lines = ["# ninja log v7", f"0\t1500\t{BUILT}\tmain.o\tabc", f"1500\t2000\t{BUILT}\tmine.so\tdef", ""]
    write(place / ".ninja_log", "\n".join(lines))
    write(place / ".ninja_deps", deps({"main.o": [str(place / "main.cpp"), str(header)]}))
    return place


def save(tmp_path: Path) -> Saved:
    return save_(Store(tmp_path / "store"), tmp_path / "root", lane=LANE, key=key(), limit=LIMIT)


def restore(tmp_path: Path, root: str = "root") -> Restored:
    return restore_(Store(tmp_path / "store"), tmp_path / root, lane=LANE, key=key(), limit=LIMIT)


def test_it_comes_back_current(tmp_path: Path, built: Path, header: Path) -> None:
    assert save(tmp_path).plan.left_out == ()
    built.rename(tmp_path / "gone")
    header.touch()  # a new checkout, of the same content
    assert restore(tmp_path).left_out == ()
    found = read_build(built)
    assert found is not None
    stamps = {(built / name).stat().st_mtime_ns for name in ("main.o", "mine.so")} | set(found.times.values())
    assert len(stamps) == 1
    assert stamps.pop() > header.stat().st_mtime_ns > (built / "main.cpp").stat().st_mtime_ns
    recorded = (built / ".ninja_deps").read_bytes()
    assert recorded == deps({"main.o": [str(built / "main.cpp"), str(header)]}).replace(
        struct.pack("<Q", BUILT), struct.pack("<Q", next(iter(found.times.values())))
    )


def test_what_came_back_is_no_news(tmp_path: Path, built: Path) -> None:
    save(tmp_path)
    built.rename(tmp_path / "gone")
    restore(tmp_path)
    again = save_(Store(tmp_path / "store"), tmp_path / "root", lane=LANE, key=key(week=49), limit=LIMIT)
    assert again.reason == "nothing is new"


def _change(header: Path) -> None:
    header.write_bytes(b"#define X 2")


@pytest.mark.parametrize("change", [_change, Path.unlink])
def test_it_is_left_out_when_what_it_was_built_from_changes(
    change: Callable[[Path], None], tmp_path: Path, built: Path, header: Path
) -> None:
    save(tmp_path)
    built.rename(tmp_path / "gone")
    change(header)
    assert {why for _, why in restore(tmp_path).left_out} == {CHANGED}
    assert not built.exists()


@pytest.mark.parametrize("flags", ["-MD", "-MMD"])
def test_it_is_left_out_when_its_compiler_changes(flags: str, tmp_path: Path, built: Path, cxx: Path) -> None:
    write(built / "build.ninja", rules(cxx, flags) + STEPS)
    assert save(tmp_path).archive is not None
    built.rename(tmp_path / "gone")
    cxx.write_bytes(elf(300))
    assert {why for _, why in restore(tmp_path).left_out} == {CHANGED}


SYSTEM = "-MMD -isystem {folder} -I{folder}/../more"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *(("system/a/b.h", {CHANGED}), ("more/new.h", {CHANGED}), ("own/include/c.h", {CHANGED})),
        *(("always/d.h", {CHANGED}), ("system/.git/x", set())),
    ],
)
def test_headers_that_the_compiler_does_not_list_count(
    name: str, says: set[str], tmp_path: Path, built: Path, cxx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "system" / "a" / "b.h")
    (tmp_path / "system" / "a" / "round").symlink_to(tmp_path / "system")
    monkeypatch.setattr(ninja_needs, "_SYSTEM_INCLUDES", (tmp_path / "always",))
    write(built / "build.ninja", rules(cxx, SYSTEM.format(folder=tmp_path / "system")) + STEPS)
    assert save(tmp_path).archive is not None
    built.rename(tmp_path / "gone")
    write(tmp_path / name, b"another")
    assert {why for _, why in restore(tmp_path).left_out} == says


def test_a_header_of_the_system_that_came_after_the_build_is_told_whatever_its_time(
    tmp_path: Path, built: Path, cxx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ninja_needs, "_SYSTEM_INCLUDES", (tmp_path / "system",))
    system = write(tmp_path / "system" / "x.h")
    write(built / ".ninja_log", (built / ".ninja_log").read_text().replace(str(BUILT), str(time.time_ns())))
    write(built / "build.ninja", rules(cxx, "-MMD") + STEPS)
    assert current_digest(built, Contents(root=tmp_path / "root")) is not None
    time.sleep(0.02)
    os.utime(write(system, b"another"), ns=(BEFORE, BEFORE))  # as package managers do
    assert current_digest(built, Contents(root=tmp_path / "root")) is None


LIBRARIES = {"an archive": "libx.a", "a library": "libx.so"}


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_count(library: str, tmp_path: Path, built: Path, cxx: Path) -> None:
    path = write(tmp_path / "libraries" / LIBRARIES[library], b"1")
    text = rules(cxx) + STEPS.replace("link main.o\n", f"link main.o\n  ldflags = -L{path.parent} -lx\n")
    write(built / "build.ninja", text)
    assert save(tmp_path).archive is not None
    built.rename(tmp_path / "gone")
    path.write_bytes(b"2")
    assert {why for _, why in restore(tmp_path).left_out} == {CHANGED}


def test_what_the_environment_adds_counts(tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path)
    built.rename(tmp_path / "gone")
    monkeypatch.setenv("CPATH", str(tmp_path / "more"))
    assert {why for _, why in restore(tmp_path).left_out} == {CHANGED}
    monkeypatch.delenv("CPATH")
    assert restore(tmp_path).left_out == ()


def test_outputs_are_the_same_however_they_are_written(tmp_path: Path, built: Path) -> None:
    text = (built / "build.ninja").read_text().replace("build main.o", "build ./main.o")
    write(built / "build.ninja", text + "build extra.o: compile extra.cpp\n")
    found = read_build(built)
    assert found is not None
    assert built / "main.cpp" in found.needs.files
    assert save(tmp_path).plan.left_out == ()


#: What is put in place of something in the build file -> it.
NOT_KNOWN: dict[str, tuple[str, str]] = {
    "a rule that is no compiler's": ("$cxx -MD -MF $out.d -c", "cp"),
    "a rule that runs two": ("-c $in", "-c $in && touch $out"),
    "a shell's variable": ("-c $in", "$$FLAGS -c $in"),
    "a rule whose reads nobody lists": ("  deps = gcc\n", ""),
    "a compiler that is not told to list": ("-MD", ""),
    "a source that is linked": ("link main.o", "link main.o other.cpp"),
    "a compiler with parts elsewhere": ("-MD", "-MD -B/opt"),
    "options in a file": ("-MD", "-MD @options"),
    "a library that is not there": ("$ldflags", "-lnowhere"),
    "another build file": ("default", "include other.ninja\ndefault"),
    "no build file": ("rule", "what is this"),
    "an unknown rule": ("rule link", "rule other"),
    "variables in circles": ("  deps = gcc\n", "  deps = $deps\n"),
    "a variable that changes": ("default", "cxx = other\ndefault"),
    "an input that is missing": ("compile main.cpp", "compile main.cpp | missing.h"),
    "inputs that are found later": ("  deps = gcc\n", "  deps = gcc\n  dyndep = x\n"),
}


@pytest.mark.parametrize("why", NOT_KNOWN)
def test_what_is_built_from_more_than_can_be_told_is_not_saved(why: str, tmp_path: Path, built: Path) -> None:
    before, after = NOT_KNOWN[why]
    text = (built / "build.ninja").read_text()
    assert before in text
    write(built / "build.ninja", text.replace(before, after))
    saved = save(tmp_path)
    assert {reason for _, reason in saved.plan.left_out} == {NOT_PROVEN}


@pytest.mark.usefixtures("built")
def test_a_script_in_a_compilers_place_is_not_known(tmp_path: Path, cxx: Path) -> None:
    cxx.write_text("#!/bin/sh\n")
    assert {reason for _, reason in save(tmp_path).plan.left_out} == {NOT_PROVEN}


def test_a_header_that_calls_itself_the_systems_hides_what_it_includes(
    tmp_path: Path, built: Path, header: Path, cxx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ninja_needs, "_SYSTEM_INCLUDES", (tmp_path / "always",))
    header.write_text('#pragma GCC system_header\n#include "hidden.h"\n')
    write(built / "build.ninja", rules(cxx, "-MMD") + STEPS)
    assert {reason for _, reason in save(tmp_path).plan.left_out} == {NOT_PROVEN}
    write(built / "build.ninja", rules(cxx, f"-MMD -I{header.parent}") + STEPS)
    assert save(tmp_path).archive is not None


def test_such_a_header_hides_nothing_from_a_compiler_that_lists_all(
    tmp_path: Path, built: Path, header: Path, cxx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do the headers of CUDA's C++ library, which nvcc lists."""
    monkeypatch.setattr(ninja_needs, "_SYSTEM_INCLUDES", (tmp_path / "always",))
    header.write_text("#pragma GCC system_header")
    kernel = write(built / "kernel.cu")
    every = RULES.partition("rule link")[0].replace("rule compile", "rule every").format(cxx=cxx, flags="-MD")
    write(built / "build.ninja", rules(cxx, "-MMD") + every + STEPS + "build kernel.o: every kernel.cu\n")
    log = built / ".ninja_log"
    write(log, log.read_text() + f"0\t1\t{BUILT}\tkernel.o\tabc\n")
    write(built / "kernel.o", elf())
    listed = {"main.o": [str(built / "main.cpp")], "kernel.o": [str(kernel), str(header)]}
    write(built / ".ninja_deps", deps(listed))
    assert save(tmp_path).plan.left_out == ()


def test_folders_without_end_are_not_read(
    tmp_path: Path, built: Path, cxx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ninja_needs, "_SYSTEM_INCLUDES", (tmp_path / "always",))
    for name in "/", "/proc/self":
        write(built / "build.ninja", rules(cxx, f"-MMD -I{name}") + STEPS)
        assert current_digest(built, Contents(root=tmp_path)) is None
    monkeypatch.setattr(contents, "_MOST_FILES", 0)
    write(built / "build.ninja", rules(cxx, f"-MMD -I{tmp_path / 'include'}") + STEPS)
    assert current_digest(built, Contents(root=tmp_path)) is None


def test_looking_at_it_is_no_use_of_it(tmp_path: Path, built: Path, header: Path) -> None:
    files = [header, *(path for path in built.iterdir() if path.is_file())]
    for path in files:
        os.utime(path, ns=(BEFORE - 10**9, BEFORE))
    plan_save(tmp_path / "root", LANE, snapshot=None, limit=LIMIT)
    assert {path.stat().st_atime_ns for path in files} == {BEFORE - 10**9}


def test_it_is_left_out_at_another_place(tmp_path: Path, built: Path) -> None:
    save(tmp_path)
    (left_out,) = {why for _, why in restore(tmp_path, "other").left_out}
    assert left_out == f"ninja's commands name the folder that it was built in, {built}"


def test_what_is_there_stays(tmp_path: Path, built: Path) -> None:
    save(tmp_path)
    before = (built / ".ninja_log").read_bytes()
    assert restore(tmp_path).left_out == (("extensions/mine", "it is there already"),)
    assert (built / ".ninja_log").read_bytes() == before


def _append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


NOT_CURRENT: dict[str, Callable[[Path, Path], object]] = {
    "a source was changed after the build": lambda _, header: os.utime(header, ns=(BUILT + 1, BUILT + 1)),
    "a source is gone": lambda _, header: header.unlink(),
    "an object without dependencies": lambda place, _: write(place / ".ninja_deps", deps({"other.o": []})),
    "no log of dependencies": lambda place, _: (place / ".ninja_deps").unlink(),
    "a log of another version": lambda place, _: write(place / ".ninja_deps", deps({"main.o": []}, version=9)),
    "a log that is torn": lambda place, _: os.truncate(place / ".ninja_deps", 17),
    "no object": lambda place, _: write(place / ".ninja_log", "# ninja log v7\n"),
    "a log of something else": lambda place, _: write(place / ".ninja_log", "# x\n1\t2\tx\tmain.o\tabc\n"),
    "a record without an end": lambda place, _: _append(place / ".ninja_deps", b"\4\0\0\x80\0\0\0\0"),
    "a folder": lambda place, _: write(place / ".ninja_deps", deps({"main.o": ["/"]})),
    "a device": lambda place, _: write(place / ".ninja_deps", deps({"main.o": ["/dev/zero"]})),
}


@pytest.mark.parametrize("why", NOT_CURRENT)
def test_what_cannot_be_told_to_be_current_is_not_saved(why: str, tmp_path: Path, built: Path, header: Path) -> None:
    NOT_CURRENT[why](built, header)
    saved = save(tmp_path)
    assert saved.archive is None
    assert {reason for _, reason in saved.plan.left_out} == {NOT_PROVEN}


def test_a_record_that_a_killed_build_left_is_passed_over(built: Path, header: Path) -> None:
    path = built / ".ninja_deps"
    path.write_bytes(path.read_bytes() + b"\x10\0\0\0abc")
    found = read_build(built)
    assert found is not None
    assert found.inputs == tuple(sorted([header, built / "main.cpp"]))


def test_nothing_outside_the_folder_is_touched(tmp_path: Path, built: Path) -> None:
    outside = write(tmp_path / "outside")
    os.utime(outside, ns=(BEFORE, BEFORE))
    log = built / ".ninja_log"
    names = [str(outside), os.path.relpath(outside, built)]
    log.write_text(log.read_text() + "".join(f"0\t1\t{BUILT}\t{name}\tabc\n" for name in names))
    make_current(built, built, BUILT + 1)
    assert outside.stat().st_mtime_ns == BEFORE
    assert "outside" not in log.read_text()


def test_the_log_tells_how_long_it_took(tmp_path: Path, built: Path) -> None:
    assert build_seconds(built) == 2.0
    assert build_seconds(tmp_path) == 0.0
