from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kernels import (
    LANE,
    LIMIT,
    age,
    compiler,
    elf,
    folder,
    graphs,
    hide,
    inductor_graph,
    key,
    listing,
    named_by,
    triton_kernel,
    write,
)

from archpatch.cli.main import run
from archpatch.errors import MissingFile
from archpatch.kernel_cache.compilers import COMPILERS, Compiler
from archpatch.kernel_cache.place import merge_timings
from archpatch.kernel_cache.restore import restore
from archpatch.kernel_cache.save import save
from archpatch.kernel_cache.share import fetch, publish
from archpatch.kernel_cache.snapshot import Snapshot
from archpatch.kernel_cache.soundness import group_members
from archpatch.kernel_cache.store import Store


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "mnt" / "shared"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    top = tmp_path / "node"
    triton_kernel(top, "add", digest="A")
    inductor_graph(top)
    return top


def members(root: Path, digest: str) -> dict[str, str]:
    (group,) = (folder(root, "triton") / digest).glob("__grp__*")
    return group_members(group.read_bytes())


def test_what_is_published_can_be_used_there_and_fetched_elsewhere(root: Path, shared: Path, tmp_path: Path) -> None:
    done = publish(root, shared, lane=LANE)
    assert (len(done.brought), done.present, done.left_out) == (4, (), ())
    other = tmp_path / "other node"
    assert len(fetch(other, shared, lane=LANE).brought) == 4
    assert listing(root).keys() == listing(shared).keys() == listing(other).keys()
    for place in (shared, other):
        assert {Path(path).parent for path in members(place, "A").values()} == {folder(place, "triton") / "A"}
        (graph,) = graphs(place)
        assert {Path(path).parent for path in named_by(graph.read_bytes()).values()} == {
            folder(place, "inductor") / "ab"
        }
        assert [path.name for path in (place / ".archpatch").iterdir()] == ([] if place == shared else [_note(place)])


def _note(root: Path) -> str:
    (path,) = (root / ".archpatch").glob("*.json")
    return path.name


def test_the_second_time_nothing_is_written(root: Path, shared: Path) -> None:
    publish(root, shared, lane=LANE)
    before = {path: path.stat().st_ino for path in shared.rglob("*") if path.is_file()}
    done = publish(root, shared, lane=LANE)
    assert (done.brought, len(done.present)) == ((), 4)
    assert {path: path.stat().st_ino for path in shared.rglob("*") if path.is_file()} == before


def test_only_what_is_new_is_brought(root: Path, shared: Path) -> None:
    publish(root, shared, lane=LANE)
    triton_kernel(root, "mul", digest="M")
    assert publish(root, shared, lane=LANE).brought == ("triton/M",)


def test_what_is_torn_is_not_brought_and_what_is_torn_there_is_mended(root: Path, shared: Path) -> None:
    torn = triton_kernel(shared, "add", digest="A")
    os.truncate(torn / "__grp__add.json", 5)
    (torn / "add.cubin").unlink()
    os.truncate(triton_kernel(root, "mul", digest="M") / "mul.cubin", 9)
    done = publish(root, shared, lane=LANE)
    assert "triton/A" in done.brought
    assert set(members(shared, "A")) <= {path.name for path in torn.iterdir()}
    assert {why for _, why in done.left_out} == {"it is cut off", "its kernel is not complete"}
    assert not (folder(shared, "triton") / "M").exists()


def test_measured_times_of_both_are_kept(root: Path, shared: Path, tmp_path: Path) -> None:
    publish(root, shared, lane=LANE)
    table = folder(root, "inductor") / "cache" / "system"
    other = tmp_path / "other"
    write(folder(other, "inductor") / "cache" / "system", json.dumps({"cache": {"mm": {"b": 2}}}))
    assert publish(other, shared, lane=LANE).brought == ("inductor/cache/system",)
    assert fetch(root, shared, lane=LANE).brought == ("inductor/cache/system",)
    assert json.loads(table.read_bytes()) == {"cache": {"mm": {"fgraph": 1.5, "b": 2}}}


def test_tables_are_merged_and_the_first_wins() -> None:
    one, two = {"a": {"x": 1, "y": {"z": 1}}, "s": 1}, {"a": {"x": 2, "y": 3, "w": 4}, "s": {"t": 1}}
    merged = json.loads(merge_timings(json.dumps(one).encode(), json.dumps(two).encode()))
    assert merged == {"a": {"x": 1, "y": {"z": 1}, "w": 4}, "s": 1}


def entry_file(root: Path, compiler: Compiler, name: str) -> Path:
    """Return where a file of one and the same entry of a compiler lies."""
    return folder(root, compiler.name).joinpath(*(f"d{level}" for level in range(compiler.depth)), name)


@pytest.mark.parametrize("compiler", COMPILERS, ids=lambda compiler: compiler.name)
def test_what_any_compiler_adds_to_an_entry_is_shared(compiler: Compiler, shared: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for name in ("a", "b"):
        write(entry_file(one, compiler, name), name)
        assert len(publish(one, shared, lane=LANE).brought) == 1
        assert len(publish(one, shared, lane=LANE).present) == 1
        assert len(fetch(two, shared, lane=LANE).brought) == 1
    assert listing(one) == listing(shared) == listing(two)
    assert len(publish(two, shared, lane=LANE).present) == 1


def test_a_folder_is_replaced_as_one(shared: Path, tmp_path: Path) -> None:
    first = write(entry_file(tmp_path / "one", compiler("vllm"), "index"), "1")
    age(first, 60)
    publish(tmp_path / "one", shared, lane=LANE)
    index = entry_file(shared, compiler("vllm"), "index")
    inode = index.parent.stat().st_ino
    write(first, "12")
    write(first.with_name("2"))
    write(folder(tmp_path / "one", "vllm") / "plain")
    with index.open() as running:
        assert publish(tmp_path / "one", shared, lane=LANE).brought == ("vllm/d0/d1/d2", "vllm/plain")
        assert running.read() == "1"
    assert index.read_text() == "12"
    assert index.parent.stat().st_ino != inode
    assert not list((shared / ".archpatch").iterdir())


def test_what_has_less_does_not_replace_what_has_more_and_the_newer_wins(shared: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for name in ("a", "b"):
        age(write(entry_file(one, compiler("numba"), name), "1"), 60)
    publish(one, shared, lane=LANE)
    write(entry_file(two, compiler("numba"), "a"), "2")
    assert publish(two, shared, lane=LANE).left_out == (("numba/d0", "it lacks files of the one that is there"),)
    assert listing(shared) == listing(one)
    write(entry_file(two, compiler("numba"), "b"), "2")
    assert publish(two, shared, lane=LANE).brought == ("numba/d0",)
    assert publish(one, shared, lane=LANE).present == ("numba/d0",)
    assert listing(shared) == listing(two)


def test_a_torn_entry_of_any_compiler_is_mended(shared: Path, tmp_path: Path) -> None:
    write(entry_file(tmp_path / "one", compiler("tvm-ffi"), "k.so"), elf())
    torn = write(entry_file(shared, compiler("tvm-ffi"), "k.so"), elf()[:100])
    assert publish(tmp_path / "one", shared, lane=LANE).brought == ("tvm-ffi/d0",)
    assert torn.read_bytes() == elf()


@pytest.mark.parametrize(
    ("written", "left_out"),
    [
        ("one/index", ("vllm/d0/d1/d2/index", "it is being written")),
        ("one/more", ("vllm/d0/d1/d2", "it is being written")),
        ("mnt/shared/index", ("vllm/d0/d1/d2", "another machine is publishing it")),
        ("mnt/shared/more", ("vllm/d0/d1/d2", "another machine is publishing it")),
    ],
)
@pytest.mark.parametrize("published", [0, 1])
def test_what_is_being_written_waits(
    written: str, left_out: tuple[str, str], published: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, shared = tmp_path / "one", tmp_path / "mnt" / "shared"
    write(entry_file(one, compiler("vllm"), "index"), "1")
    for _ in range(published):
        publish(one, shared, lane=LANE)
    write(entry_file(one, compiler("vllm"), "artifact"))
    place, name = written.rsplit("/", 1)

    def read(path: Path) -> bytes:
        content = path.read_bytes()
        write(entry_file(tmp_path / place, compiler("vllm"), name), "22")
        return content

    monkeypatch.setattr("archpatch.kernel_cache.share.read_quietly", read)
    done = publish(one, shared, lane=LANE)
    assert (done.brought, done.left_out) == ((), (left_out,))
    assert not entry_file(shared, compiler("vllm"), "artifact").exists()


def test_nobody_fetches_a_part_while_others_publish(shared: Path, tmp_path: Path) -> None:
    shared.mkdir(parents=True)
    over = threading.Event()

    def publish_more(name: str) -> None:
        for count in range(1, 13):
            for number in range(count):
                write(entry_file(tmp_path / name, compiler("vllm"), f"artifact{number}.json"), "{}")
            write(entry_file(tmp_path / name, compiler("vllm"), "index.json"), json.dumps(count))
            publish(tmp_path / name, shared, lane=LANE)

    def fetch_often() -> set[int]:
        found = {0}
        while not over.is_set():
            shutil.rmtree(tmp_path / "reader", ignore_errors=True)
            fetch(tmp_path / "reader", shared, lane=LANE)
            index = entry_file(tmp_path / "reader", compiler("vllm"), "index.json")
            if index.exists():
                found.add(json.loads(index.read_text()))
                assert len(list(index.parent.iterdir())) == json.loads(index.read_text()) + 1
        return found

    with ThreadPoolExecutor() as pool:
        reading = pool.submit(fetch_often)
        list(pool.map(publish_more, ("one", "two", "three")))
        over.set()
        assert len(reading.result()) > 1
    index = entry_file(shared, compiler("vllm"), "index.json")
    assert len(list(index.parent.iterdir())) == json.loads(index.read_text()) + 1 == 13


def test_what_another_user_hides_is_left_out(root: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(entry_file(root, compiler("vllm"), "hidden.txt"))
    write(entry_file(root, compiler("numba"), "open"))
    hide(monkeypatch, "hidden.txt", "add.ptx")
    done = publish(root, shared, lane=LANE)
    assert dict(done.left_out).items() >= {
        ("vllm/d0/d1/d2/hidden.txt", "it cannot be read: Permission denied"),
        ("triton/A/add.ptx", "it cannot be read: Permission denied"),
        ("triton/A/__grp__add.json", "its kernel is not complete"),
    }
    assert "numba/d0" in done.brought
    assert not {"triton/A", "vllm/d0/d1/d2"} & {*done.brought}


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.ESTALE, "it is being written"),
        (errno.ENOENT, "it is being written"),
        (errno.EIO, "it cannot be read: Input/output error"),
    ],
)
def test_a_file_that_cannot_be_had_ends_no_sync(
    number: int, why: str, root: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(entry_file(root, compiler("vllm"), "a"))

    def read(path: Path) -> bytes:
        if path.name == "a":
            raise OSError(number, os.strerror(number))
        return path.read_bytes()

    monkeypatch.setattr("archpatch.kernel_cache.share.read_quietly", read)
    done = publish(root, shared, lane=LANE)
    assert (len(done.brought), done.left_out) == (4, (("vllm/d0/d1/d2/a", why),))


def test_what_may_not_be_replaced_there_is_left_out(root: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = entry_file(shared, compiler("vllm"), "a").parent
    write(entry_file(root, compiler("vllm"), "a"))
    rename = Path.rename

    def guarded(self: Path, to: Path) -> Path:
        if to == target:
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", guarded)
    done = publish(root, shared, lane=LANE)
    assert done.left_out == (("vllm/d0/d1/d2", "it may not be written there: Permission denied"),)
    assert len(done.brought) == 4


def test_a_table_that_vanishes_is_brought_again(root: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(root, shared, lane=LANE)

    def read(path: Path) -> bytes:
        if path.is_relative_to(shared):
            path.unlink()
        return path.read_bytes()

    monkeypatch.setattr("archpatch.kernel_cache.share.read_quietly", read)
    assert publish(root, shared, lane=LANE).brought == ("inductor/cache/system",)
    assert listing(root).keys() == listing(shared).keys()


def test_what_ninja_built_stays(root: Path, shared: Path) -> None:
    write(folder(root, "extensions") / "mine" / ".ninja_log")
    assert ("extensions/mine", "what ninja built moves by save and restore alone") in (
        publish(root, shared, lane=LANE).left_out
    )


def test_a_fetch_notes_what_there_was(root: Path, shared: Path) -> None:
    publish(root, shared, lane=LANE)
    shutil.rmtree(folder(root, "triton"))
    triton_kernel(root, "mine", digest="M")
    fetch(root, shared, lane=LANE)
    snapshot = Snapshot.read(root, LANE)
    assert snapshot is not None
    assert {name for name, known in snapshot.entries.items() if known.restored} == {"triton/A"}
    assert "triton/M" in snapshot.entries


def test_what_lay_there_was_had_though_it_is_shared(root: Path, shared: Path) -> None:
    publish(root, shared, lane=LANE)
    fetch(root, shared, lane=LANE)
    snapshot = Snapshot.read(root, LANE)
    assert snapshot is not None
    assert not any(known.restored for known in snapshot.entries.values())


def test_what_was_fetched_is_saved(root: Path, shared: Path, tmp_path: Path) -> None:
    publish(root, shared, lane=LANE)
    fetch(tmp_path / "other", shared, lane=LANE)
    assert save(Store(tmp_path / "store"), tmp_path / "other", lane=LANE, key=key(), limit=LIMIT).plan.new == 4


def test_a_fetch_keeps_what_a_restore_noted(root: Path, shared: Path, tmp_path: Path) -> None:
    archive, other = Store(tmp_path / "kernels.tar.zst"), tmp_path / "other"
    save(archive, root, lane=LANE, key=key(), limit=LIMIT)
    restore(archive, other, lane=LANE, key=key(), limit=LIMIT)
    triton_kernel(shared, "mul", digest="M")
    fetch(other, shared, lane=LANE)
    assert save(archive, other, lane=LANE, key=key(), limit=LIMIT).reason.endswith("is there already")
    saved = save(archive, other, lane=LANE, key=key(week=49), limit=LIMIT)
    assert (saved.plan.new, len(saved.plan.entries)) == (1, 5)
    snapshot = Snapshot.read(other, LANE)
    assert snapshot is not None
    assert all(known.restored for known in snapshot.entries.values())


def test_leftovers_of_killed_processes_go_after_a_while(root: Path, shared: Path) -> None:
    old, young = (write(shared / ".archpatch" / f".sync.{name}.staging" / "x").parent for name in ("old", "young"))
    age(old, 7200)
    publish(root, shared, lane=LANE)
    assert [path.name for path in (shared / ".archpatch").iterdir()] == [young.name]


OPTIONS = ["--gpu", "h200", "--torch", "2.14.1+cu130", "--triton", "3.8.0"]


def test_the_command(root: Path, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["cache", "sync", "--root", str(root), *OPTIONS]
    for wrong in ([], ["--from", "x", "--to", "y"]):
        assert run([*command, *wrong]) == 2
        assert "one way at a time" in capsys.readouterr().err
    assert run([*command, "--from", str(shared)]) == 2
    assert run([*command, "--to", str(shared), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "archpatch.cache-sync/1"
    assert run([*command, "--from", str(shared)]) == 0
    assert capsys.readouterr().out.startswith("0 entries brought")


def test_a_folder_that_is_not_mounted_is_named(root: Path, shared: Path) -> None:
    with pytest.raises(MissingFile, match="shared is no folder"):
        fetch(root, shared, lane=LANE)
