from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernels import (
    LANE,
    LIMIT,
    STAGES,
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
    use,
    write,
)

from archpatch.cli.main import run
from archpatch.kernel_cache import restore as restore_module
from archpatch.kernel_cache.archive import PER_FILE
from archpatch.kernel_cache.restore import Restored
from archpatch.kernel_cache.restore import restore as restore_
from archpatch.kernel_cache.save import Saved
from archpatch.kernel_cache.save import save as save_
from archpatch.kernel_cache.snapshot import Snapshot
from archpatch.kernel_cache.soundness import group_members
from archpatch.kernel_cache.store import Store
from archpatch.storage.key import Key


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with two kernels and a graph."""
    top = tmp_path / "here" / "root"
    triton_kernel(top, "add", digest="A")
    triton_kernel(top, "mul", digest="M")
    inductor_graph(top)
    return top


def save(store: Path, root: Path, to: Key | None = None, limit: int = LIMIT) -> Saved:
    return save_(Store(store), root, lane=LANE, key=to or key(), limit=limit)


def restore(store: Path, root: Path, to: Key | None = None, limit: int = LIMIT) -> Restored:
    return restore_(Store(store), root, lane=LANE, key=to or key(), limit=limit)


def groups(root: Path) -> list[Path]:
    return sorted(folder(root, "triton").rglob("__grp__*"))


def test_what_was_saved_comes_back_at_another_place(store: Path, root: Path, tmp_path: Path) -> None:
    saved = save(store, root)
    assert saved.archive == store / f"{key()}.tar.zst"
    assert (len(saved.plan.entries), saved.plan.left_out) == (5, ())
    other = tmp_path / "there" / "deeper"
    restored = restore(store, other)
    assert (restored.key, restored.exact, restored.entries, restored.left_out) == (str(key()), True, 5, ())
    before, after = listing(root), listing(other)
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} == {
        str(path.relative_to(root)) for path in [*groups(root), *graphs(root)]
    }
    (graph,) = graphs(other)
    assert {Path(path).parent for path in named_by(graph.read_bytes()).values()} == {folder(other, "inductor") / "ab"}
    for group in groups(other):
        members = group_members(group.read_bytes())
        assert {Path(path) for path in members.values()} == {group.parent / name for name in members}
        assert all(Path(path).is_file() for path in members.values())


def test_the_same_content_gives_the_same_bytes(store: Path, root: Path, tmp_path: Path) -> None:
    first = save(store, root).archive
    other = Path(shutil.copytree(root, tmp_path / "other"))
    shutil.rmtree(folder(other, "triton") / "A")
    triton_kernel(other, "add", digest="A")  # its paths name this root
    shutil.rmtree(folder(other, "inductor"))
    inductor_graph(other)
    age(other, 12345)
    before = os.umask(0o077)
    second = save(tmp_path / "store2", other).archive
    os.umask(before)
    assert first is not None
    assert second is not None
    assert first.read_bytes() == second.read_bytes()


def test_programs_stay_programs_and_nothing_else_of_a_mode_is_kept(store: Path, root: Path, tmp_path: Path) -> None:
    write(folder(root, "deep-gemm") / "cache" / "k" / "tool").chmod(0o4755)
    write(folder(root, "deep-gemm") / "cache" / "k" / "data").chmod(0o600)
    save(store, root)
    restore(store, tmp_path / "r")
    place = folder(tmp_path / "r", "deep-gemm") / "cache" / "k"
    assert [stat.S_IMODE((place / name).stat().st_mode) for name in ("tool", "data")] == [0o755, 0o644]


def test_nothing_is_saved_twice(store: Path, root: Path, tmp_path: Path) -> None:
    save(store, root)
    assert save(store, root).archive is None
    restore(store, tmp_path / "r")
    assert save(tmp_path / "other", tmp_path / "r").reason.endswith("is there already")  # an archive of a CI's
    triton_kernel(tmp_path / "r", "new")
    assert save(store, tmp_path / "r").archive is None


def test_another_week_restores_the_last_and_saves_only_what_is_new(store: Path, root: Path, tmp_path: Path) -> None:
    save(store, root)
    other = tmp_path / "r"
    restored = restore(store, other, key(week=49))
    assert (restored.key, restored.exact) == (str(key()), False)
    assert save(store, other, key(week=49)).reason == "nothing is new"
    triton_kernel(other, "new")
    saved = save(store, other, key(week=49))
    assert (saved.plan.new, len(saved.plan.entries)) == (1, 6)
    assert restore(store, tmp_path / "r2", key(week=49)).entries == 6


def test_touching_is_no_news_and_rewriting_is(store: Path, root: Path, tmp_path: Path) -> None:
    write(folder(root, "deep-gemm") / "cache" / "k" / ".committed")
    save(store, root)
    other = tmp_path / "r"
    restore(store, other, key(week=49))
    marker = folder(other, "deep-gemm") / "cache" / "k" / ".committed"
    os.utime(marker)  # DeepGEMM does so with what it uses
    assert save(store, other, key(week=49)).reason == "nothing is new"
    for placed in (*groups(other), *graphs(other)):  # they name this root now
        os.utime(placed)
    assert save(store, other, key(week=49)).reason == "nothing is new"
    marker.write_bytes(b"y")
    assert save(store, other, key(week=49)).plan.new == 1


def test_what_an_archive_holds_in_another_form_is_news(store: Path, tmp_path: Path) -> None:
    for root, content in (("a", b"old"), ("r", b"new")):
        write(folder(tmp_path / root, "numba") / "mine" / "f.nbi", content)
    save(store, tmp_path / "a")
    assert restore(store, tmp_path / "r", key(week=49)).left_out == (("numba/mine", "it is there already"),)
    assert save(store, tmp_path / "r", key(week=49)).plan.new == 1
    restore(store, tmp_path / "r", key(week=50))
    assert save(store, tmp_path / "r", key(week=50)).reason == "nothing is new"


def test_what_was_refused_is_replaced(store: Path, root: Path, tmp_path: Path) -> None:
    save(store, root, key(week=47))
    archive = save(store, root).archive
    assert archive is not None
    os.truncate(archive, 50)
    restored = restore(store, tmp_path / "r")
    assert (restored.key, len(restored.refused)) == (str(key(week=47)), 1)
    saved = save(store, tmp_path / "r")
    assert (saved.archive, saved.reason) == (archive, "the one that was there was refused")
    assert restore(store, tmp_path / "r2").exact
    assert save(store, tmp_path / "r2").archive is None


def test_what_another_job_saved_during_a_restore_was_not_refused(
    store: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = restore_module._first

    def look_too_early(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever it takes
        found = first(*arguments, **options)
        assert save(store, root).archive is not None
        return found

    monkeypatch.setattr(restore_module, "_first", look_too_early)
    assert restore(store, tmp_path / "r").key is None
    triton_kernel(tmp_path / "r", "sub", digest="S")
    assert save(store, tmp_path / "r").archive is None
    monkeypatch.undo()
    assert restore(store, tmp_path / "r2").entries == 5


def test_what_another_user_hides_is_left_out(store: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "add.ptx")
    saved = save(store, root)
    assert ("triton/A/add.ptx", "it cannot be read: Permission denied") in saved.plan.left_out
    assert {checked.entry.name for checked in saved.plan.entries if checked.entry.compiler.name == "triton"} == {
        "triton/M"
    }
    assert saved.archive is not None


def test_the_newest_of_the_lane_is_taken(store: Path, root: Path, tmp_path: Path) -> None:
    for week in (46, 47):
        archive = save(store, root, key(week=week)).archive
        assert archive is not None
        age(archive, 1000 - week)
    age(store / f"{key(week=46)}.tar.zst", -5000)
    save(store, root, key(name="other"))
    save(store, root, key(lane=replace(LANE, gpu="h100")))
    assert restore(store, tmp_path / "r").key == str(key(week=46))
    assert restore(store, tmp_path / "r2", key(name="third")).key is None


def test_within_a_budget_what_was_idle_the_longest_goes_first(store: Path, root: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder(root, "inductor"))
    cost = save(store, root).plan.size // 2 + len(STAGES) * PER_FILE + PER_FILE
    roots = [root]
    for week in (49, 50):
        roots.append(tmp_path / str(week))
        restore(store, roots[-1], key(week=week))
        use(folder(roots[-1], "triton") / "M")
        triton_kernel(roots[-1], f"w{week}", digest=f"W{week}")
        save(store, roots[-1], key(week=week))
    last = tmp_path / "last"
    restore(store, last, key(week=51))
    use(folder(last, "triton") / "W49")
    triton_kernel(last, "new", digest="N")
    saved = save(store, last, key(week=51), limit=4 * cost + 300)
    assert saved.plan.left_out == (("triton/A", "the budget is used up"),)
    assert dict(saved.plan.idle) == {"triton/M": 1, "triton/N": 0, "triton/W49": 0, "triton/W50": 1}


def test_what_a_budget_lets_in_it_lets_out(store: Path, tmp_path: Path) -> None:
    for number in range(300):
        write(folder(tmp_path / "root", "cupy") / ("x" * 150 + str(number)), b"x" * 513)
    limit = 300 * (513 + PER_FILE)
    saved = save(store, tmp_path / "root", limit=limit)
    assert (len(saved.plan.entries), saved.plan.left_out) == (300, ())
    assert restore(store, tmp_path / "r", limit=limit).entries == 300
    assert len(save(tmp_path / "other", tmp_path / "root", limit=limit - 1).plan.left_out) == 1


def test_what_is_unsound_is_left_out_on_both_ways(store: Path, root: Path, tmp_path: Path) -> None:
    place = folder(root, "triton")
    (place / "A" / "add.cubin").unlink()
    write(place / "A" / "lock")
    write(place / "M" / "tmp.pid_1_x" / "mul.ptx")
    saved = save(store, root)
    assert {why for _, why in saved.plan.left_out} == {"its kernel is not complete"}
    assert all(name.startswith("triton/A/") for name, _ in saved.plan.left_out)
    restore(store, tmp_path / "r")
    assert sorted(path.name for path in folder(tmp_path / "r", "triton").iterdir()) == ["M"]


def test_what_lies_there_stays_and_what_is_torn_is_mended(store: Path, root: Path, tmp_path: Path) -> None:
    save(store, root)
    other = tmp_path / "r"
    torn = triton_kernel(other, "add", digest="A")
    os.truncate(torn / "__grp__add.json", 20)
    (torn / "add.ptx").unlink()
    mine = write(folder(other, "triton") / "M" / "mul.ttir", b"mine")
    write(folder(other, "inductor") / "cache" / "system", json.dumps({"cache": {"mm": {"mine": 2}, "bmm": {}}}))
    restore(store, other)
    assert group_members((torn / "__grp__add.json").read_bytes()).keys() <= {path.name for path in torn.iterdir()}
    assert (torn / "add.ptx").read_bytes() == b"ir"
    assert mine.read_bytes() == b"ir"  # without its group it was of no use
    timings = json.loads((folder(other, "inductor") / "cache" / "system").read_bytes())
    assert timings == {"cache": {"mm": {"mine": 2, "fgraph": 1.5}, "bmm": {}}}


def test_a_folder_that_is_no_ones_content_is_not_mixed(store: Path, root: Path, tmp_path: Path) -> None:
    assert not compiler("vllm").addressed
    name = "torch_compile_cache/abc/rank_0_0"
    write(folder(root, "vllm") / name / "artifact", b"theirs")
    write(folder(root, "vllm") / name / "more", b"theirs")
    save(store, root)
    write(folder(tmp_path / "r", "vllm") / name / "artifact", b"mine")
    restored = restore(store, tmp_path / "r")
    assert (f"vllm/{name}", "it is there already") in restored.left_out
    assert listing(folder(tmp_path / "r", "vllm")) == {f"{name}/artifact": b"mine"}


def test_files_of_one_entry_are_not_mixed_either(store: Path, tmp_path: Path) -> None:
    for name in ("k.mlir", "k.o"):
        write(folder(tmp_path / "a", "cute-dsl") / name, elf())
    save(store, tmp_path / "a")
    write(folder(tmp_path / "r", "cute-dsl") / "k.mlir", b"mine")
    assert restore(store, tmp_path / "r").left_out == (("cute-dsl/k", "it is there already"),)
    assert listing(folder(tmp_path / "r", "cute-dsl")) == {"k.mlir": b"mine"}


@pytest.mark.parametrize("name", ["jax", "numba"])
def test_a_folder_and_files_of_one_name_all_come(store: Path, tmp_path: Path, name: str) -> None:
    for below in ("x/file", "x.one"):
        write(folder(tmp_path / "a", name) / below)
    save(store, tmp_path / "a")
    restore(store, tmp_path / "r")
    assert listing(tmp_path / "r") == listing(tmp_path / "a")


def test_old_locks_that_nobody_holds_are_removed(store: Path, root: Path) -> None:
    orphan, young = (write(folder(root, "extensions") / name / "lock") for name in ("old", "young"))
    age(orphan.parent, 7200)
    age(write(root / ".archpatch" / ".restore.1.staging" / "x").parent, 7200)
    assert restore(store, root).locks == 1
    assert (orphan.exists(), young.exists()) == (False, True)
    assert [path.suffix for path in (root / ".archpatch").iterdir()] == [".json"]


def test_a_lock_that_was_made_anew_meanwhile_stays(store: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = write(folder(root, "extensions") / "old" / "lock")
    age(lock.parent, 7200)
    unlock = restore_module._unlock

    def unlock_too_late(path: Path) -> bool:
        path.unlink()
        write(path)
        return unlock(path)

    monkeypatch.setattr(restore_module, "_unlock", unlock_too_late)
    assert restore(store, root).locks == 0
    assert lock.exists()


def test_the_lock_of_a_build_that_still_writes_stays(store: Path, root: Path) -> None:
    lock = write(folder(root, "extensions") / "long" / "lock")
    age(lock, 7200)
    write(lock.parent / "a.o")
    assert restore(store, root).locks == 0
    assert lock.exists()


def test_a_restore_of_nothing_notes_what_is_there(store: Path, root: Path) -> None:
    assert restore(store, root) == Restored()
    snapshot = Snapshot.read(root, LANE)
    assert snapshot is not None
    assert snapshot.key is None
    assert set(snapshot.entries) == {
        *("triton/A", "triton/M", "inductor/ab/cfgraph", "inductor/cache/system", "inductor/fxgraph/ab/fgraph")
    }
    assert save(store, root).plan.new == 5


def test_an_archive_of_a_cis_own_cache(root: Path, tmp_path: Path) -> None:
    archive = tmp_path / "cache" / "kernels.tar.zst"
    assert restore(archive, root).key is None
    assert save(archive, root).archive == archive
    restored = restore(archive, tmp_path / "r", key(week=49))
    assert (restored.key, restored.exact, restored.archive) == (str(key()), False, archive)
    assert save(archive, tmp_path / "r", key(week=49)).archive is None
    triton_kernel(tmp_path / "r", "new")
    assert save(archive, tmp_path / "r", key(week=49)).archive == archive
    assert restore(archive, tmp_path / "r2", key(week=49)).exact


OPTIONS = ["--lane", "unit", "--gpu", "h200", "--torch", "2.14.1+cu130", "--triton", "3.8.0"]


def test_to_save_from_no_root_is_a_mistake(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--root", str(tmp_path / "typo"), "--store", str(store), *OPTIONS]
    assert run(["cache", "save", *options]) == 2
    assert "typo is no folder" in capsys.readouterr().err
    assert not store.exists()


def test_the_commands(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(command: str, root: str, *more: str) -> str:
        options = ["--root", str(tmp_path / root), "--store", str(store), *OPTIONS, *more]
        assert run(["cache", command, *options]) == 0
        return capsys.readouterr().out

    assert told("restore", "a") == "nothing was restored\n"
    assert told("restore", "a", "--format", "github") == "hit=none\nkey=\nentries=0\n"
    assert json.loads(told("save", "a", "--json"))["reason"] == "nothing is new"
    assert run(["cache", "env", "--root", str(tmp_path / "a"), *OPTIONS[2:], "--json"]) == 0
    place = Path(json.loads(capsys.readouterr().out)["environment"]["TRITON_CACHE_DIR"])
    for stage, content in (("json", b"{}"), ("ttir", b"ir"), ("cubin", elf())):
        write(place / "K" / f"add.{stage}", content)
    paths = {name: str(place / "K" / name) for name in ("add.json", "add.ttir", "add.cubin")}
    write(place / "K" / "__grp__add.json", json.dumps({"child_paths": paths}))
    write(place / "K2" / "__grp__add.json", "{")
    saved = told("save", "a", "--format", "github").splitlines()
    assert (saved[0], saved[3]) == ("saved=true", "reason=1 entries are new")
    assert Path(saved[2].removeprefix("archive=")).is_file()
    assert told("save", "a", "--format", "github").splitlines()[3].endswith(" is there already")
    restored = json.loads(told("restore", "b", "--json"))
    assert (restored["schema"], restored["hit"], restored["entries"]) == ("archpatch.cache-restore/1", "exact", 1)
    assert told("restore", "c").startswith("restored 1 entries, 0.0 MB, from archpatch-kernels-unit-h200-sm90-")
