from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from kernels import LANE, LIMIT, elf, folder, inductor_graph, key, triton_kernel, use, write

from archpatch.cli.main import run
from archpatch.errors import UsageError
from archpatch.kernel_cache.report import Counts, Report
from archpatch.kernel_cache.report import report as report_
from archpatch.kernel_cache.restore import restore
from archpatch.kernel_cache.save import save
from archpatch.kernel_cache.store import Store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root into which two kernels and a graph were restored, and which had one kernel before."""
    triton_kernel(tmp_path / "first", "add", digest="A")
    triton_kernel(tmp_path / "first", "mul", digest="M")
    inductor_graph(tmp_path / "first")
    save(Store(tmp_path / "store"), tmp_path / "first", lane=LANE, key=key(), limit=LIMIT)
    triton_kernel(tmp_path / "root", "mine", digest="H")
    restore(Store(tmp_path / "store"), tmp_path / "root", lane=LANE, key=key(week=49), limit=LIMIT)
    return tmp_path / "root"


def report(root: Path, home: Path | None = None) -> Report:
    return report_(root, LANE, limit=LIMIT, environ={"HOME": str(home or root / "home")})


def row(found: Report, name: str) -> Counts:
    (counts,) = (counts for counts in (*found.compilers, *found.kernels) if counts.name == name)
    return counts


def test_a_job_that_did_nothing(root: Path) -> None:
    found = report(root)
    assert row(found, "triton") == Counts(name="triton", had=1, restored=2)
    assert row(found, "inductor") == Counts(name="inductor", restored=3)
    assert [counts.name for counts in found.kernels] == ["add", "mine", "mul"]
    assert (found.key, found.outside, found.tells_hits) == (str(key()), (), True)
    assert (found.plan.new, len(found.plan.entries)) == (1, 6)  # the archive lacks the kernel that was there


def test_what_was_used_added_and_compiled_again(root: Path) -> None:
    place = folder(root, "triton")
    use(place / "A")
    use(place / "H")
    added = triton_kernel(root, "new", digest="N")
    started = time.time_ns()
    os.utime(added / "new.source", ns=(started - 3 * 10**9, started - 3 * 10**9))
    os.utime(added / "__grp__new.json", ns=(started, started))
    triton_kernel(root, "mul", digest="M")  # as Triton does where it found no hit
    found = report(root)
    counts = row(found, "triton")
    assert (counts.had, counts.restored, counts.hit, counts.missed, counts.added) == (1, 2, 2, 2, 1)
    assert 2.9 < row(found, "new").seconds < 3.1
    assert (row(found, "add").hit, row(found, "add").missed) == (1, 0)
    assert (row(found, "mul").hit, row(found, "mul").missed, row(found, "mul").added) == (0, 1, 0)


def test_a_report_leaves_no_trace(root: Path) -> None:
    use(folder(root, "triton") / "A")
    assert report(root) == report(root)
    assert not list((root / ".archpatch").glob(".probe*"))


def test_ninja_tells_its_seconds(root: Path) -> None:
    place = folder(root, "extensions") / "mine"
    write(place / "mine.o", elf())
    write(place / ".ninja_log", "# ninja log v7\n0\t1500\t1\tmine.o\tabc\n")
    assert row(report(root), "extensions") == Counts(name="extensions", missed=1, added=1, seconds=1.5)


def test_what_was_written_elsewhere_is_told(root: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    old = write(home / ".cache" / "flashinfer" / "old")
    os.utime(old, (1, 1))
    write(home / ".triton" / "cache" / "K" / "add.ptx", b"12345")
    (outside,) = report(root, home).outside
    assert (outside.path, outside.files, outside.size) == (str(home / ".triton" / "cache"), 1, 5)


def test_without_a_snapshot_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="archpatch cache restore"):
        report(tmp_path)
    write(tmp_path / ".archpatch" / "_".join(str(LANE).split("/")), b"{")
    with pytest.raises(UsageError):
        report(tmp_path)


OPTIONS = ["--gpu", "h200", "--torch", "2.14.1+cu130", "--triton", "3.8.0"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = ["--root", str(tmp_path / "root"), *OPTIONS]
    assert run(["cache", "report", *root]) == 2
    assert run(["cache", "restore", *root, "--lane", "unit", "--store", str(tmp_path / "store")]) == 0
    assert run(["cache", "env", *root, "--json"]) == 0
    capsys.readouterr()
    write(tmp_path / "home" / ".triton" / "cache" / "x")
    assert run(["cache", "report", *root, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "archpatch.cache-report/1"
    assert told["save"] == {"entries": 0, "new": 0, "size": 0, "left_out": 0}
    assert len(told["outside"]) == 1
    assert run(["cache", "report", *root]) == 0
    assert "written outside the root: " in capsys.readouterr().out


def test_both_forms_hold_the_same_numbers(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from archpatch.cli.cache import _print_markdown, _print_report  # noqa: PLC0415 - the commands would ask for a GPU

    found = report(root)
    _print_markdown(found)
    markdown = capsys.readouterr().out
    assert "| triton | 1 | 2 | 0 | 0 | 0 | - |" in markdown
    assert markdown.startswith(f"### Kernels, restored from {key()}\n")
    _print_report(found)
    assert "triton    1    2         0    0       0      -" in capsys.readouterr().out


def test_a_kernels_name_is_no_markdown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from archpatch.cli.cache import _print_markdown  # noqa: PLC0415 - as above

    for name in ("a|<b>[c](d)", "x\n::error::forged"):
        triton_kernel(root, name, digest=f"K{len(name)}")
    _print_markdown(report(root))
    lines = capsys.readouterr().out.splitlines()
    assert r"| a\|\<b\>\[c\](d) | 0 | 0 | 0 | 1 | 1 | - |" in [line.replace(" 0.0 |", " - |") for line in lines]
    assert not [line for line in lines if line.startswith("::")]
