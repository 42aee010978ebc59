"""Atomic writes: what a reader sees, what is left behind, and which error a full or closed disk becomes."""

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from archpatch.errors import DiskFull, MissingFile, UsageError
from archpatch.storage.atomic import (
    check_writable,
    disk_errors,
    sha256_of,
    staging_folder,
    sync_folder,
    write_bytes,
    write_text,
)


@pytest.mark.parametrize(
    ("write", "content", "expected"),
    [
        (write_bytes, b"\0\xff\r\n", b"\0\xff\r\n"),
        (write_text, "größer\r\n", "größer\r\n".encode()),
    ],
)
def test_the_file_holds_what_was_given_and_nothing_is_left_beside_it(
    tmp_path: Path, write: Callable[[Path, Any], None], content: object, expected: bytes
) -> None:
    for _ in range(2):
        write(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == expected
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_an_existing_files_mode_is_kept(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "setup.py"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_bytes(path, b"new")
    assert path.stat().st_mode & 0o7777 == mode


def test_a_new_files_mode_is_the_umasks(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_bytes(tmp_path / "new", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_reader_that_has_the_old_file_open_still_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        write_bytes(path, b"new")
        assert reader.read() == b"old"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(UsageError, match=f"{path} may not be written: Is a directory"):
        write_bytes(path, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"none/file has no folder"):
        write_bytes(tmp_path / "none" / "file", b"")


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder that even root may not write")
@pytest.mark.parametrize("folder", ["/sys/kernel"])
def test_a_folder_that_may_not_be_written_is_named(folder: str) -> None:
    with pytest.raises(UsageError, match=f"{folder}/file may not be written"):
        write_bytes(Path(folder, "file"), b"")


def test_a_file_that_a_file_system_does_not_make_has_a_folder() -> None:
    with pytest.raises(UsageError, match="/proc/file may not be written: No such file"):
        write_bytes(Path("/proc/file"), b"")


def test_what_could_not_be_written_shows_before(tmp_path: Path) -> None:
    check_writable(tmp_path / "file")
    (tmp_path / "file").touch()
    check_writable(tmp_path / "file")
    with pytest.raises(MissingFile, match="none/file has no folder"):
        check_writable(tmp_path / "none" / "file")
    with pytest.raises(MissingFile, match="file/file has no folder"):
        check_writable(tmp_path / "file" / "file")
    with pytest.raises(UsageError, match=f"{tmp_path} is a folder"):
        check_writable(tmp_path)
    with pytest.raises(UsageError, match="/sys/kernel/file may not be written"):
        check_writable(Path("/sys/kernel/file"))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, UsageError),
        (errno.EACCES, UsageError),
        (errno.EPERM, UsageError),
        (errno.ENOENT, MissingFile),
        (errno.ENOTDIR, MissingFile),
        (errno.EIO, OSError),
    ],
)
def test_the_systems_errors_become_ours(number: int, expected: type[Exception]) -> None:
    with pytest.raises(expected) as raised, disk_errors(Path("wheelhouse/x.whl")):
        raise OSError(number, os.strerror(number))
    assert raised.type is expected
    assert expected is OSError or "wheelhouse/x.whl" in str(raised.value)


def test_a_full_disk_is_seen_at_the_write_itself() -> None:
    with pytest.raises(DiskFull), disk_errors(Path("/dev/full")), Path("/dev/full").open("wb", buffering=0) as file:
        file.write(b"x")


def test_what_was_renamed_out_of_a_staging_folder_stays(tmp_path: Path) -> None:
    target = tmp_path / "x.whl"
    with staging_folder(target) as folder:
        assert (folder.parent, folder.name[0]) == (tmp_path, ".")
        (folder / "x.whl").write_bytes(b"wheel")
        (folder / "rest").write_bytes(b"")
        (folder / "x.whl").replace(target)
    assert [path.name for path in tmp_path.iterdir()] == ["x.whl"]


def test_a_staging_folder_that_was_itself_renamed_stays(tmp_path: Path) -> None:
    with staging_folder(tmp_path / "tree") as folder:
        (folder / "file").write_bytes(b"")
        folder.rename(tmp_path / "tree")
    assert (tmp_path / "tree" / "file").is_file()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, FileNotFoundError])
def test_a_failure_removes_the_staging_folder_and_passes_on(tmp_path: Path, error: type[BaseException]) -> None:
    def fail_halfway() -> None:
        with staging_folder(tmp_path / "x.whl") as folder:
            (folder / "half").write_bytes(b"")
            raise error

    with pytest.raises(error):
        fail_halfway()
    assert not list(tmp_path.iterdir())


def test_two_staging_folders_for_one_target_do_not_meet(tmp_path: Path) -> None:
    with staging_folder(tmp_path / "x") as one, staging_folder(tmp_path / "x") as two:
        assert one != two


def test_a_staging_folder_needs_a_folder_to_be_in(tmp_path: Path) -> None:
    with pytest.raises(MissingFile), staging_folder(tmp_path / "none" / "x"):
        pass


def test_syncing_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "none")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system without a sync")
def test_a_file_system_that_cannot_sync_folders_is_no_error() -> None:
    sync_folder(Path("/proc/self"))


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 1])
def test_sha256_is_of_the_whole_file(tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "file").write_bytes(content[:size])
    assert sha256_of(tmp_path / "file") == hashlib.sha256(content[:size]).hexdigest()


def test_a_pipe_takes_what_is_written_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    check_writable(pipe)
    write_text(pipe, "content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
