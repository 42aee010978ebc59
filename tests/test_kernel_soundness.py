from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from kernels import LANE, elf, folder, inductor_graph, listing, triton_kernel, write

from archpatch.kernel_cache.soundness import check, group_members, kernel_of
from archpatch.kernel_cache.tree import Entry, Tree, is_passing, read_quietly


def entries(root: Path) -> dict[str, Entry]:
    return {entry.name: entry for entry in Tree.of(root, LANE).entries()}


def faults(root: Path) -> dict[str, str]:
    return {name: why for entry in entries(root).values() for name, why in check(entry).faults}


def test_what_belongs_together_is_one_entry(tmp_path: Path) -> None:
    triton_kernel(tmp_path, "add", digest="K1")
    inductor_graph(tmp_path)
    write(folder(tmp_path, "inductor") / "ab" / "cfgraph.so", elf())
    write(folder(tmp_path, "cuda") / "a" / "0" / "kernel")
    write(folder(tmp_path, "cuda") / "index")
    write(folder(tmp_path, "extensions") / "mine" / "mine.so", elf())
    for rank in ("rank_0_0", "rank_1_0"):
        write(folder(tmp_path, "sglang") / "torch_compile_cache" / "abc" / rank / "backbone" / "index.py")
    found = entries(tmp_path)
    assert set(found) == {
        *("triton/K1", "inductor/cache/system", "inductor/ab/cfgraph", "inductor/fxgraph/ab/fgraph"),
        *("cuda/", "extensions/mine"),
        *("sglang/torch_compile_cache/abc/rank_0_0", "sglang/torch_compile_cache/abc/rank_1_0"),
    }
    assert [file.name for file in found["inductor/ab/cfgraph"].files] == ["ab/cfgraph.py", "ab/cfgraph.so"]
    assert len(found["cuda/"].files) == 2
    assert found["triton/K1"].size == sum(path.stat().st_size for path in folder(tmp_path, "triton").rglob("*.*"))


@pytest.mark.parametrize(
    "name",
    [
        "lock",
        "x.lock",
        "locks",
        "tmp",
        "tmp.pid_12_abc",
        "tmp.abc",
        ".1.2.tmp",
        ".staging",
        ".ninja_lock",
        ".archpatch",
    ],
)
def test_what_passes_is_no_entry(name: str, tmp_path: Path) -> None:
    place = triton_kernel(tmp_path)
    before = entries(tmp_path)
    write(place / name)
    write(folder(tmp_path, "vllm") / name / "deep" / "x")
    assert entries(tmp_path) == before
    assert not is_passing("block.json")


def test_links_pipes_and_odd_names_are_told_and_not_followed(tmp_path: Path) -> None:
    place = triton_kernel(tmp_path)
    before = entries(tmp_path)
    (place / "out").symlink_to("/etc")
    (place / "link.json").symlink_to(place / "add.json")
    os.mkfifo(place / "pipe")
    write(Path(os.fsdecode(os.fsencode(place) + b"/\xff")))
    tree = Tree.of(tmp_path, LANE)
    assert {entry.name: entry for entry in tree.entries()} == before
    assert len(tree.skipped) == 4


def test_a_whole_entry_has_no_fault(tmp_path: Path) -> None:
    triton_kernel(tmp_path, "add")
    triton_kernel(tmp_path, "mul")
    inductor_graph(tmp_path)
    place = folder(tmp_path, "triton")
    write(place / "TUNED" / "add.autotune.json", "{}")
    write(place / "LAUNCHER" / "__triton_launcher.so", elf())
    write(folder(tmp_path, "cupy") / "kernel.cubin", b"sha1 and a cubin")
    assert faults(tmp_path) == {}


def test_two_kernels_in_one_folder_fail_alone(tmp_path: Path) -> None:
    triton_kernel(tmp_path, "one", digest="K")
    place = triton_kernel(tmp_path, "two", digest="K")
    (place / "two.ptx").unlink()
    assert {Path(name).name.split(".")[0].removeprefix("__grp__") for name in faults(tmp_path)} == {"two"}


WRONG = {
    "a file is missing": lambda place: (place / "add.ptx").unlink(),
    "the group is missing": lambda place: (place / "__grp__add.json").unlink(),
    "the group is cut off": lambda place: os.truncate(place / "__grp__add.json", 40),
    "the group is empty": lambda place: os.truncate(place / "__grp__add.json", 0),
    "the group names nothing": lambda place: write(place / "__grp__add.json", '{"child_paths": {}}'),
    "the group is another thing": lambda place: write(place / "__grp__add.json", "[1]"),
    "the group leads out": lambda place: write(place / "__grp__add.json", '{"child_paths": {"../x": "/x"}}'),
    "the group is a bomb": lambda place: write(place / "__grp__add.json", "[" * 200_000),
    "the metadata is cut off": lambda place: os.truncate(place / "add.json", 3),
    "the cubin is cut off": lambda place: os.truncate(place / "add.cubin", 100),
    "the cubin has no header": lambda place: os.truncate(place / "add.cubin", 20),
    "the cubin is empty": lambda place: os.truncate(place / "add.cubin", 0),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_kernel_that_is_not_whole_is_left_out_whole(wrong: str, tmp_path: Path) -> None:
    place = triton_kernel(tmp_path)
    write(place / "launcher.so", elf())
    WRONG[wrong](place)
    (entry,) = entries(tmp_path).values()
    checked = check(entry)
    assert [Path(file.name).name for file in checked.sound] == ["launcher.so"]
    assert len(checked.faults) == len(listing(place)) - 1


@pytest.mark.parametrize(
    ("compiler", "name"), [("inductor", "cache/system"), ("inductor", "ab/x.best_config"), ("tilelang", "1/k/h/x.json")]
)
def test_json_that_is_cut_off_is_left_out(compiler: str, name: str, tmp_path: Path) -> None:
    path = write(folder(tmp_path, compiler) / name, json.dumps({"a": [1, 2]}))
    assert faults(tmp_path) == {}
    os.truncate(path, 6)
    assert faults(tmp_path) == {name: "it is no JSON"}


def test_libraries_are_judged_by_their_sections(tmp_path: Path) -> None:
    place = folder(tmp_path, "extensions")
    write(place / "whole" / "whole.so", elf(300))
    write(place / "short" / "short.so", elf(300)[:-1])
    write(place / "other" / "script.so", b"/* a linker script */")
    assert faults(tmp_path) == {"short/short.so": "it is cut off"}


def test_cubins_are_judged_by_their_segments_too(tmp_path: Path) -> None:
    """The table of segments of ptxas's cubins is at their end, behind that of the sections."""
    head = bytearray(elf(300) + bytes(112))
    struct.pack_into("<Q", head, 32, 300)
    struct.pack_into("<HH", head, 54, 56, 2)
    place = folder(tmp_path, "cute-dsl")
    write(place / "whole.cubin", bytes(head))
    write(place / "short.cubin", bytes(head[:-1]))
    assert faults(tmp_path) == {"short.cubin": "it is cut off"}


def test_a_kernels_name_stays_on_its_line(tmp_path: Path) -> None:
    triton_kernel(tmp_path, "x\n::error::forged")
    assert set(faults(tmp_path).values()) == {"its kernel is not complete"}
    assert kernel_of("triton/K/__grp__x\n::error::forged.json") is None


def test_groups_are_read() -> None:
    assert group_members(b'{"child_paths": {"a.json": "/k/a.json"}}') == {"a.json": "/k/a.json"}
    assert kernel_of("triton/K/__grp__add.json") == "add"
    assert kernel_of("triton/K/add.json") is None


def test_a_quiet_read_leaves_the_access_time(tmp_path: Path) -> None:
    path = write(tmp_path / "x", b"content")
    os.utime(path, ns=(10**18, 2 * 10**18))
    assert read_quietly(path) == b"content"
    assert read_quietly(path, 3) == b"con"
    assert path.stat().st_atime_ns == 10**18
    path.read_bytes()
    assert path.stat().st_atime_ns > 10**18
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        read_quietly(tmp_path / "link")
