"""Archives of kernels that are not what they should be: a few of each kind here, thousands under tests/fuzz."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

sys.path.insert(0, str(Path(__file__).parent))

from fuzz.archives import KINDS, Bench, judge
from kernels import LANE, LIMIT, age, key, listing, triton_kernel, write

from archpatch.cli.main import run
from archpatch.errors import CacheRefused, ToolchainError
from archpatch.kernel_cache.archive import Content, opened, write_archive
from archpatch.kernel_cache.lane import Lane, Wanted, find_lane
from archpatch.kernel_cache.manifest import Manifest
from archpatch.kernel_cache.restore import Restored, restore
from archpatch.kernel_cache.save import save
from archpatch.kernel_cache.store import Store


def test_mutated_archives(tmp_path: Path) -> None:
    bench = Bench.build(tmp_path)
    verdicts = [judge(bench, 10_000, number) for number in range(120)]
    assert [verdict for verdict in verdicts if verdict[2]] == []
    assert {outcome for _, outcome, _ in verdicts} == {"refused", "restored"}
    assert {kind for kind, _, _ in verdicts} >= set(KINDS) - {"bomb"}


WRONG: dict[str, Callable[[Path], object]] = {
    "the canary is dead": lambda box: (box / "canary").write_bytes(b"dead"),
    "a file outside": lambda box: (box / "evil").touch(),
    "a link": lambda box: (box / "root" / "link").symlink_to("/"),
    "a mode": lambda box: (box / "root" / ".archpatch").chmod(0o777),
    "other content": lambda box: next((box / "root").rglob("*.ptx")).write_bytes(b"x"),
    "a leftover": lambda box: (box / "root" / ".archpatch" / "left").touch(),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_after_a_restore_is_found(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench.build(tmp_path)
    restore_right = Bench.restore

    def restore_and(bench: Bench, _: bytes) -> Restored:
        restored = restore_right(bench, bench.honest)
        WRONG[wrong](bench.box)
        return restored

    monkeypatch.setattr(Bench, "restore", restore_and)
    assert judge(bench, 10_000, 0)[2]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    triton_kernel(tmp_path / "root")
    saved = save(Store(tmp_path / "store"), tmp_path / "root", lane=LANE, key=key(), limit=LIMIT)
    assert saved.archive is not None
    return saved.archive


@pytest.mark.parametrize(
    ("field", "value"),
    [("arch", "sm121"), ("gpu", "h100"), ("triton", "3.7.0"), ("torch", "2.13.0+cu130"), ("cuda", "12.9")],
)
def test_another_lanes_archive_is_refused(field: str, value: str, archive: Path, tmp_path: Path) -> None:
    other: Lane = replace(LANE, **{field: value})
    restored = restore(Store(archive), tmp_path / "r", lane=other, key=key(lane=other), limit=LIMIT)
    assert restored.key is None
    assert f"{field} is {getattr(LANE, field)}, not {value}" in restored.refused[0]
    assert listing(tmp_path / "r") == {}


def test_a_lane_that_an_archive_tells_stays_on_its_line(tmp_path: Path) -> None:
    forged = replace(LANE, gpu="h100\r\n::error::forged\x1b[2J")
    triton_kernel(tmp_path / "root", lane=forged)
    archive = save(Store(tmp_path / "forged.tar.zst"), tmp_path / "root", lane=forged, key=key(), limit=LIMIT).archive
    assert archive is not None
    (refusal,) = restore(Store(archive), tmp_path / "r", lane=LANE, key=key(), limit=LIMIT).refused
    assert refusal.endswith(r"gpu is h100\r\n::error::forged\x1b[2J, not h200")


def test_what_is_refused_is_passed_over_for_the_next(archive: Path, tmp_path: Path) -> None:
    (archive.parent / f"{key(week=49)}.tar.zst").write_bytes(b"torn")
    restored = restore(Store(archive.parent), tmp_path / "r", lane=LANE, key=key(week=49), limit=LIMIT)
    assert (restored.key, len(restored.refused)) == (str(key()), 1)


def test_the_command_says_why_and_exits_5(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive.write_bytes(archive.read_bytes()[:-200])
    lane = ["--lane", "unit", "--gpu", "h200", "--torch", "2.14.1+cu130", "--triton", "3.8.0"]
    assert run(["cache", "restore", "--root", str(tmp_path / "r"), "--store", str(archive), *lane]) == 5
    captured = capsys.readouterr()
    assert captured.out == "nothing was restored\n"
    assert str(archive) in captured.err


def test_a_reason_that_an_archive_tells_stays_on_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lane = find_lane(Wanted(gpu="h200", torch="2.14.1+cu130", triton="3.8.0"))
    builds = {"extensions/mine": ("/x\r\n::error::forged\u2028\x1b[2J", "0")}
    fields = {"key": str(key()), "lane": lane, "inputs": {}, "idle": {}, "builds": builds}
    log = Content(name="extensions/mine/.ninja_log", data=b"", executable=False)
    write_archive(tmp_path / "x.tar.zst", iter([log]), fields)
    options = ["--lane", "unit", "--gpu", "h200", "--torch", "2.14.1+cu130", "--triton", "3.8.0"]
    root = ["--root", str(tmp_path / "r"), "--store", str(tmp_path / "x.tar.zst")]
    assert run(["cache", "restore", *root, *options]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert r"/x\r\n::error::forged\u2028\x1b[2J" in line


@pytest.mark.parametrize("limit", [100, LIMIT])
def test_the_limit_holds_whatever_the_headers_say(limit: int, archive: Path, tmp_path: Path) -> None:
    triton_kernel(tmp_path / "root", "large", size=2 << 20)
    save(Store(archive), tmp_path / "root", lane=LANE, key=key(), limit=LIMIT)
    (tmp_path / "beside").mkdir()
    if limit == LIMIT:
        with opened(archive, LANE, beside=tmp_path / "beside", limit=limit) as (manifest, folder):
            assert set(manifest.files) == set(listing(folder))
    else:
        with pytest.raises(CacheRefused, match="unpacks to more"):  # noqa: SIM117 - the outer one is the check
            with opened(archive, LANE, beside=tmp_path / "beside", limit=limit):
                pytest.fail("it was opened")
    assert list((tmp_path / "beside").iterdir()) == []


def repacked(archive: Path, change: Callable[[tarfile.TarFile], None]) -> None:
    """Write the archive anew, with the manifest as it was and something more."""
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(archive.read_bytes())
    data = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(plain)) as old, tarfile.open(fileobj=data, mode="w") as new:
        for info in old:
            new.addfile(info, old.extractfile(info))
        change(new)
    archive.write_bytes(zstandard.compress(data.getvalue()))


def _file(tar: tarfile.TarFile) -> None:
    tar.addfile(tarfile.TarInfo("triton/more"))


def _link(tar: tarfile.TarFile) -> None:
    info = tarfile.TarInfo("triton/A/more.ptx")
    info.type, info.linkname = tarfile.SYMTYPE, "add.ptx"
    tar.addfile(info)


def test_numbers_without_end_are_refused(archive: Path, tmp_path: Path) -> None:
    with opened(archive, LANE, beside=tmp_path, limit=LIMIT) as (manifest, _):
        forged = replace(manifest, idle={"triton/A": 1}).to_json().replace(b'"triton/A": 1\n', b'"triton/A": 1e999\n')
    assert b"1e999" in forged
    (tmp_path / "manifest.json").write_bytes(forged)
    with pytest.raises(CacheRefused, match="no manifest that can be read: OverflowError"):
        Manifest.read(tmp_path / "manifest.json")


def test_a_manifest_without_end_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.touch()
    os.truncate(path, (1 << 28) + 1)
    with pytest.raises(CacheRefused, match="longer than 256 MiB"):
        Manifest.read(path)


def test_a_save_removes_what_a_killed_one_left(archive: Path, tmp_path: Path) -> None:
    left, other, busy = (
        write(archive.parent / f".{name}.staging" / "x").parent
        for name in ("a.tar.zst.01234567", "others", "b.tar.zst.89abcdef")
    )
    for folder in (left, other, busy):
        age(folder, 7200)
    (busy / "x").touch()
    triton_kernel(tmp_path / "root", "new")
    save(Store(archive.parent), tmp_path / "root", lane=LANE, key=key(week=49), limit=LIMIT)
    assert (left.exists(), other.exists(), busy.exists()) == (False, True, True)


@pytest.mark.parametrize("name", ["", "a\nsaved=true", "k\x1b[2J", "x" * 501])
def test_a_key_that_would_say_more_than_a_key_is_refused(name: str, archive: Path, tmp_path: Path) -> None:
    with opened(archive, LANE, beside=tmp_path, limit=LIMIT) as (manifest, _):
        forged = replace(manifest, key=name).to_json()
    (tmp_path / "manifest.json").write_bytes(forged)
    with pytest.raises(CacheRefused, match="no manifest that can be read"):
        Manifest.read(tmp_path / "manifest.json")


def _hard_link(tar: tarfile.TarFile) -> None:
    info = tarfile.TarInfo("triton/more")
    info.type, info.linkname = tarfile.LNKTYPE, tar.getnames()[0]
    tar.addfile(info)


@pytest.mark.parametrize(
    ("change", "says"),
    [(_file, "not what the manifest says"), (_link, "it holds a link"), (_hard_link, "it holds a hard link")],
)
def test_more_than_the_manifest_says_is_refused(
    change: Callable[[tarfile.TarFile], None], says: str, archive: Path, tmp_path: Path
) -> None:
    repacked(archive, change)
    restored = restore(Store(archive), tmp_path / "r", lane=LANE, key=key(), limit=LIMIT)
    assert says in restored.refused[0]


def test_without_the_extra_it_says_what_to_install(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    # Also where there is nothing to restore yet: the save at the end of the job would say so too late.
    for store in (archive, tmp_path / "empty"):
        with pytest.raises(ToolchainError, match=r"archpatch\[cache\]"):
            restore(Store(store), tmp_path / "r", lane=LANE, key=key(), limit=LIMIT)
    with pytest.raises(ToolchainError, match=r"archpatch\[cache\]"):
        save(Store(tmp_path / "other"), tmp_path / "root", lane=LANE, key=key(), limit=LIMIT)
    assert list((tmp_path / "other").iterdir()) == []


def test_a_window_that_needs_much_memory_is_refused(archive: Path, tmp_path: Path) -> None:
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(archive.read_bytes())
    wide = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    archive.write_bytes(compressor.compress(plain) + compressor.flush())
    restored = restore(Store(archive), tmp_path / "r", lane=LANE, key=key(), limit=LIMIT)
    assert "requires too much memory" in restored.refused[0]
