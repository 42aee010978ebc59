from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from kernels import LANE, age, folder, graphs, inductor_graph, listing, named_by, triton_kernel, write

from archpatch.cli.main import run
from archpatch.errors import MissingFile
from archpatch.kernel_cache.place import merge_timings
from archpatch.kernel_cache.share import fetch, publish
from archpatch.kernel_cache.snapshot import Snapshot
from archpatch.kernel_cache.soundness import group_members


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
    assert {name for name, known in snapshot.entries.items() if not known.restored} == {"triton/M"}


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
