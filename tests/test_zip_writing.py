"""Archives that are compressed in pieces: any reader reads them, and threads change nothing in the bytes."""

from __future__ import annotations

import io
import random
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from archpatch.wheels import zip_writing
from archpatch.wheels.zip_writing import ZipWriter

MIB = 1 << 20
RANDOM = random.Random(7).randbytes(3 * MIB // 2)  # noqa: S311 - the same each time
CONTENTS = {
    "empty": b"",
    "short": b"short",
    "one piece": b"a" * MIB,
    "random": RANDOM,
    "zeros": bytes(5 * MIB),
    "zeros and more": bytes(2 * MIB) + RANDOM + bytes(3 * MIB) + b"end",
    "repeats across pieces": RANDOM[: MIB - 100] + RANDOM[: MIB - 100],
    "n\u00e4me": b"a name that is not ASCII",
}


def entry(name: str) -> zipfile.ZipInfo:
    found = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    found.external_attr = 0o100640 << 16
    return found


def write(path: Path, contents: dict[str, bytes], *, threads: int = 2) -> Path:
    with ThreadPoolExecutor(threads) as pool, ZipWriter.to(path, pool) as archive:
        for name, content in contents.items():
            archive.add(entry(name), io.BytesIO(content), size=len(content))
    return path


def test_zipfile_reads_what_was_written(tmp_path: Path) -> None:
    with zipfile.ZipFile(write(tmp_path / "a.zip", CONTENTS)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == CONTENTS
        assert {member.file_size for member in archive.infolist()} == set(map(len, CONTENTS.values()))
        assert {member.external_attr >> 16 for member in archive.infolist()} == {0o100640}


def test_the_bytes_are_the_same_on_any_number_of_threads(tmp_path: Path) -> None:
    one, four = (write(tmp_path / f"{count}.zip", CONTENTS, threads=count) for count in (1, 4))
    assert one.read_bytes() == four.read_bytes()


def test_zeros_and_repeats_take_next_to_nothing(tmp_path: Path) -> None:
    with zipfile.ZipFile(write(tmp_path / "a.zip", CONTENTS)) as archive:
        packed = {member.filename: member.compress_size for member in archive.infolist()}
    assert packed["zeros"] < 30_000
    assert packed["repeats across pieces"] < 1.1 * MIB * 2


def test_no_more_than_a_window_is_held_while_it_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(zip_writing, "_MOST_WAITING", 2)
    content = random.Random(8).randbytes(6 * MIB)  # noqa: S311 - the same each time
    with zipfile.ZipFile(write(tmp_path / "a.zip", {"a": content})) as archive:
        assert archive.read("a") == content


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_a_member_is_taken_over_as_it_is(tmp_path: Path, compression: int) -> None:
    with zipfile.ZipFile(tmp_path / "old.zip", "w", compression, compresslevel=9) as old:
        for name, content in CONTENTS.items():
            old.writestr(name, content)
    with (
        zipfile.ZipFile(tmp_path / "old.zip") as old,
        ThreadPoolExecutor(1) as pool,
        ZipWriter.to(tmp_path / "new.zip", pool) as new,
    ):
        for member in old.infolist():
            new.copy(entry(f"new/{member.filename}"), member, old)
        sizes = [member.compress_size for member in old.infolist()]
    with zipfile.ZipFile(tmp_path / "new.zip") as archive:
        assert archive.testzip() is None
        assert {name.removeprefix("new/"): archive.read(name) for name in archive.namelist()} == CONTENTS
        assert [member.compress_size for member in archive.infolist()] == sizes
        assert {member.compress_type for member in archive.infolist()} == {compression}


def test_members_are_those_of_the_archive_that_was_opened(tmp_path: Path) -> None:
    for name, content in (("old", b"what was checked"), ("other", b"something else, and longer")):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            archive.writestr("member", content)
    with (
        zipfile.ZipFile(tmp_path / "old.zip") as old,
        ThreadPoolExecutor(1) as pool,
        ZipWriter.to(tmp_path / "new.zip", pool) as new,
    ):
        (tmp_path / "other.zip").replace(tmp_path / "old.zip")
        new.copy(entry("member"), old.getinfo("member"), old)
    with zipfile.ZipFile(tmp_path / "new.zip") as archive:
        assert archive.read("member") == b"what was checked"


def test_a_member_that_may_pass_two_gigabytes_has_room_for_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_writing, "ZIP64_LIMIT", 4)
    with zipfile.ZipFile(write(tmp_path / "a.zip", {"large": b"12345", "small": b"123"})) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"large": b"12345", "small": b"123"}
    assert b"large\x01\x00\x10\x00" in (tmp_path / "a.zip").read_bytes()  # the extra field with 64-bit sizes
    assert b"small\x01\x00\x10\x00" not in (tmp_path / "a.zip").read_bytes()
