from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from archpatch.errors import ArchpatchError, DiskFull, FetchFailed
from archpatch.storage.archives import unpack

Member = tuple[tarfile.TarInfo, bytes]


def entry(
    name: str, content: bytes = b"", *, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.size = kind, link, mode, len(content)
    return info, content


def make_tar(path: Path, *members: Member, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return path


def make_zip(path: Path, *members: tuple[str, bytes, int]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return path


HONEST = (
    entry(".", kind=tarfile.DIRTYPE),
    entry("p-1", kind=tarfile.DIRTYPE, mode=0o555),
    entry("p-1/setup.py", b"setup()\n"),
    entry("p-1/run.sh", b"#!/bin/sh\n", mode=0o6777),
    entry("p-1/csrc/deep/a.cu", b"kernel"),
    entry("p-1/csrc/b.cu", kind=tarfile.SYMTYPE, link="deep/a.cu"),
    entry("p-1/csrc/deep/up", kind=tarfile.SYMTYPE, link="../../setup.py"),
    entry("p-1/hard.py", kind=tarfile.LNKTYPE, link="p-1/setup.py"),
)


@pytest.mark.parametrize(("name", "mode"), [("x.tar.gz", "w:gz"), ("x.TGZ", "w:gz"), ("x.tar.bz2", "w:bz2")])
def test_an_honest_tar(name: str, mode: str, tmp_path: Path) -> None:
    unpack(make_tar(tmp_path / name, *HONEST, mode=mode), tmp_path / "out")
    top = tmp_path / "out" / "p-1"
    assert (top / "setup.py").read_bytes() == (top / "hard.py").read_bytes() == b"setup()\n"
    assert (top / "csrc" / "b.cu").read_bytes() == b"kernel"
    assert (top / "csrc" / "deep" / "up").readlink() == Path("../../setup.py")
    assert stat.S_IMODE((top / "run.sh").stat().st_mode) == 0o755


def test_an_honest_zip(tmp_path: Path) -> None:
    archive = make_zip(
        tmp_path / "x.zip",
        ("p-1/", b"", stat.S_IFDIR | 0o755),
        ("p-1/setup.py", b"setup()\n", stat.S_IFREG | 0o644),
        ("p-1/run.sh", b"#!/bin/sh\n", stat.S_IFREG | 0o4755),
        ("p-1/csrc/link", b"../setup.py", stat.S_IFLNK | 0o777),
        ("p-1/plain", b"from another system", 0),
    )
    unpack(archive, tmp_path / "out")
    top = tmp_path / "out" / "p-1"
    assert (top / "csrc" / "link").read_bytes() == b"setup()\n"
    assert stat.S_IMODE((top / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((top / "plain").stat().st_mode) == 0o644


def symlink(name: str, link: str) -> Member:
    return entry(name, kind=tarfile.SYMTYPE, link=link)


HOSTILE_TARS: dict[str, tuple[Member, ...]] = {
    "absolute": (entry("/abs", b"x"),),
    "parent": (entry("../evil", b"x"),),
    "parent in the middle": (entry("p/../../evil", b"x"),),
    "absolute link": (symlink("p/a", "/etc/passwd"),),
    "link out of the folder": (symlink("p/a", "../../evil"),),
    "link out of the top-level folder": (symlink("p/a", "../other/x"),),
    "link up from the top": (symlink("a", ".."),),
    "empty link": (symlink("p/a", ""),),
    "dots after a name": (symlink("p/d", "."), symlink("p/e", "d/d/d/../../..")),
    "through a link": (symlink("p/d", "e"), entry("p/d/x", b"x")),
    "onto a link": (entry("p/t", b"x"), symlink("p/d", "t"), entry("p/d", b"y")),
    "hard link outside": (entry("p/a", kind=tarfile.LNKTYPE, link="/etc/passwd"),),
    "hard link up": (entry("p/a", kind=tarfile.LNKTYPE, link="../evil"),),
    "hard link to nothing": (entry("p/a", kind=tarfile.LNKTYPE, link="p/b"),),
    "hard link to a link": (symlink("p/b", "c"), entry("p/a", kind=tarfile.LNKTYPE, link="p/b")),
    "device": (entry("p/null", kind=tarfile.CHRTYPE),),
    "block device": (entry("p/sda", kind=tarfile.BLKTYPE),),
    "pipe": (entry("p/fifo", kind=tarfile.FIFOTYPE),),
    "sparse": (entry("p/holes", bytes(512), kind=tarfile.GNUTYPE_SPARSE),),
    "too many members": tuple(entry(f"p/{number}") for number in range(60)),
    "too many bytes": (entry("p/zeros", bytes(300_000)),),
}


@pytest.mark.parametrize("case", HOSTILE_TARS)
def test_a_hostile_tar_leaves_nothing(case: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    archive = make_tar(tmp_path / "x.tar.gz", entry("p/first", b"x"), *HOSTILE_TARS[case])
    with pytest.raises(FetchFailed, match="not safe to unpack") as caught:
        unpack(archive, home / "out", max_bytes=200_000, max_members=50)
    assert str(archive) in caught.value.message
    assert caught.value.remedy
    assert sorted(tmp_path.rglob("*")) == sorted([home, archive])


HOSTILE_ZIPS: dict[str, tuple[tuple[str, bytes, int], ...]] = {
    "absolute": (("/abs", b"x", 0),),
    "parent": (("../evil", b"x", 0),),
    "folder up": (("../evil/", b"", 0),),
    "link out": (("p/a", b"../../evil", stat.S_IFLNK),),
    "absolute link": (("p/a", b"/etc/passwd", stat.S_IFLNK),),
    "endless link": (("p/a", b"a" * 5000, stat.S_IFLNK),),
    "through a link": (("p/a", b"b", stat.S_IFLNK), ("p/a/x", b"x", 0)),
    "pipe": (("p/fifo", b"", stat.S_IFIFO),),
    "too many members": tuple((f"p/{number}", b"", 0) for number in range(60)),
    "too many bytes": (("p/zeros", bytes(300_000), 0),),
}


@pytest.mark.parametrize("case", HOSTILE_ZIPS)
def test_a_hostile_zip_leaves_nothing(case: str, tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "x.zip", ("p/first", b"x", 0), *HOSTILE_ZIPS[case])
    with pytest.raises(FetchFailed, match="not safe to unpack"):
        unpack(archive, tmp_path / "home" / "out", max_bytes=200_000, max_members=50)
    assert not list((tmp_path / "home").iterdir())
    assert not (tmp_path / "evil").exists()


def truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


def damage_header(data: bytes) -> bytes:
    """Damage the checksum of the second member's header, with the compression around it intact."""
    plain = bytearray(gzip.decompress(data))
    plain[1024 + 150] ^= 0xFF
    return gzip.compress(bytes(plain))


def lie_about_size(data: bytes) -> bytes:
    """Give the first member a size far beyond the archive's end."""
    info = tarfile.TarInfo("p/big")
    info.size = 10**6
    return gzip.compress(info.tobuf() + gzip.decompress(data)[512:])


def giant_header(_: bytes) -> bytes:
    """Announce an extended header of 64 MiB, which a reader would take into memory."""
    info = tarfile.TarInfo("p/pax")
    info.type, info.size = tarfile.XHDTYPE, 64 * 2**20
    return gzip.compress(info.tobuf(tarfile.USTAR_FORMAT) + bytes(64 * 2**20), compresslevel=1)


def negative_size(data: bytes) -> bytes:
    """Give the second member a size that leads back to it, for ever."""
    first = tarfile.TarInfo("p/first").tobuf()
    info = tarfile.TarInfo("p/back")
    info.size = -512
    # tarfile copies the size modulo its buffer of 16 KiB, and then looks for the next header before this one.
    return gzip.compress(first + info.tobuf(tarfile.GNU_FORMAT) + gzip.decompress(data) + bytes(2**15))


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        flip,
        damage_header,
        lie_about_size,
        giant_header,
        negative_size,
        lambda _: b"",
        lambda _: b"<html>not found</html>",
    ],
)
@pytest.mark.parametrize("seed", [b"", os.urandom(3000)], ids=["small", "large"])
def test_a_damaged_tar_is_named(damage: Callable[[bytes], bytes], seed: bytes, tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "x.tar.gz", entry("p/a", b"x"), entry("p/b", seed))
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(FetchFailed) as caught:
        unpack(archive, tmp_path / "out")
    assert str(archive) in caught.value.message
    assert caught.value.remedy
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", [truncate, flip, lambda _: b""])
def test_a_damaged_zip_is_named(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "x.zip", ("p/a", os.urandom(3000), 0))
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(FetchFailed, match="damaged"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_zip_of_another_compression(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("p/a", b"x" * 100)
    with pytest.raises(FetchFailed, match="method 12"):
        unpack(tmp_path / "x.zip", tmp_path / "out")


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "x.tar.gz", entry("p/a", b"x"), entry("p/a/b", b"x"))
    with pytest.raises(FetchFailed, match="cannot be unpacked"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["x.tar.xz", "x.whl", "x"])
def test_another_form_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(FetchFailed, match="it is none of"):
        unpack(tmp_path / name, tmp_path / "out")


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "x.tar.gz", *HONEST)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(FileExistsError):
        unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "mine").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_not_taken_for_damage(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def extract(*_: object, **__: object) -> None:
        raise OSError(code, "full")

    monkeypatch.setattr(tarfile.TarFile, "extract", extract)
    with pytest.raises(DiskFull):
        unpack(make_tar(tmp_path / "x.tar.gz", *HONEST), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_python_without_the_filter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(ArchpatchError, match="Update Python"):
        unpack(make_tar(tmp_path / "x.tar.gz", *HONEST), tmp_path / "out")
