"""Wheels, libraries and folders: which files are read, and what a GPU makes of them."""

import errno
import os
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import libraries
import pytest

from archpatch.arch.arch import DeviceCode
from archpatch.arch.coverage import Verdict
from archpatch.arch.gpu import find_gpu
from archpatch.errors import DiskFull, MissingFile, UnknownPackage, UnreadableBinary
from archpatch.wheels.elf import Binary, Needs
from archpatch.wheels.inspection import Inspection, inspect_installed, inspect_path, installed_files
from archpatch.wheels.scratch import full_disk


def library(*codes: str) -> bytes:
    """Lay out an ELF file whose only content is a `.nv_fatbin` with the code named `sm_90`, `compute_90`."""
    entries = b"".join(
        struct.pack("<HHIQIIHHIIIQQQ", 1 + (kind == "sm"), 0x0101, 64, 0, 0, 0, 0, 0, int(arch), 0, 0, 0, 0, 0)
        for kind, arch in (code.split("_") for code in codes)
    )
    content = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries
    names = b"\0.nv_fatbin\0.shstrtab\0"
    sections = [(0, 0, b""), (1, 1, content), (12, 3, names)]
    body, headers = b"", b""
    for name, kind, data in sections:
        headers += struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0)
        body += data
    head = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(sections), 2)
    return b"\x7fELF\x02\x01\x01" + b"\0" * 9 + head + body + headers


def wheel(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def inspection(*files: list[str]) -> Inspection:
    return Inspection(
        files=tuple(
            Binary(
                path=f"{number}.so",
                machine="cuda" if "bare" in codes else "x86_64",
                cubins=tuple(DeviceCode.parse(code) for code in codes if code.startswith("sm")),
                ptx=tuple(DeviceCode.parse(code) for code in codes if code.startswith("compute")),
                loadable=tuple(DeviceCode.parse(code) for code in codes if "_" in code),
            )
            for number, codes in enumerate(files)
        )
    )


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wheel_lists_its_elf_files_by_magic_sorted(tmp_path: Path, compression: int) -> None:
    members = {
        "z/no_suffix": library("sm_80"),
        "a/_C.so": library("sm_90", "compute_90"),
        "a/text.so": b"no ELF file in spite of its name",
        "a/empty.so": b"",
        "a/": b"",
        "a/__init__.py": b"import a._C",
    }
    found = inspect_path(wheel(tmp_path / "a.whl", members, compression))
    assert [file.path for file in found.files] == ["a/_C.so", "z/no_suffix"]
    assert [str(code) for code in found.cubins] == ["sm_80", "sm_90"]
    assert [str(code) for code in found.ptx] == ["compute_90"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_zeros_of_any_number_are_unpacked(tmp_path: Path, place: int) -> None:
    data = library("sm_90")
    padded = [bytes(3 << 20), data + bytes(5 << 20), data + bytes(1 << 20) + b"end"][place]
    found = inspect_path(wheel(tmp_path / "a.whl", {"a/_C.so": padded, "a/_D.so": data}))
    assert [file.path for file in found.files] == (["a/_D.so"] if place == 0 else ["a/_C.so", "a/_D.so"])
    assert {str(code) for file in found.files for code in file.cubins} == {"sm_90"}


def test_a_library_alone_has_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "_C.so").write_bytes(library("sm_120"))
    assert [(file.path, *map(str, file.cubins)) for file in inspect_path(tmp_path / "_C.so").files] == [
        ("_C.so", "sm_120")
    ]


def test_a_library_with_a_zip_at_its_end_is_a_library(tmp_path: Path) -> None:
    archive = wheel(tmp_path / "a.whl", {"inner.so": library("sm_80")})
    (tmp_path / "_C.so").write_bytes(library("sm_90") + archive.read_bytes())
    assert [file.path for file in inspect_path(tmp_path / "_C.so").files] == ["_C.so"]


def test_a_folder_is_read_to_the_bottom_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "pkg" / "deep").mkdir(parents=True)
    (tmp_path / "pkg" / "deep" / "_C.so").write_bytes(library("sm_90"))
    (tmp_path / "pkg" / "link.so").symlink_to("deep/_C.so")
    (tmp_path / "pkg" / "loop").symlink_to(tmp_path / "pkg")
    (tmp_path / "pkg" / "broken").symlink_to("nowhere")
    (tmp_path / "pkg" / "empty").touch()
    os.mkfifo(tmp_path / "pkg" / "pipe")
    assert [file.path for file in inspect_path(tmp_path).files] == ["pkg/deep/_C.so"]


def test_a_link_to_a_wheel_is_followed(tmp_path: Path) -> None:
    wheel(tmp_path / "a.whl", {"_C.so": library("sm_90")})
    (tmp_path / "link.whl").symlink_to("a.whl")
    assert inspect_path(tmp_path / "link.whl") == inspect_path(tmp_path / "a.whl")


def damage_directory(data: bytes) -> bytes:
    return data[:-40]


def damage_content(data: bytes) -> bytes:
    return data[:60] + bytes(byte ^ 0xFF for byte in data[60:90]) + data[90:]


@pytest.mark.parametrize("damage", [damage_directory, damage_content])
def test_a_damaged_wheel_is_unreadable(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = wheel(tmp_path / "a.whl", {"_C.so": library("sm_90") + os.urandom(64)})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UnreadableBinary, match=r"a\.whl"):
        inspect_path(path)


def test_an_encrypted_wheel_is_unreadable(tmp_path: Path) -> None:
    path = wheel(tmp_path / "a.whl", {"_C.so": library("sm_90")})
    data = bytearray(path.read_bytes())
    for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(magic) + flags] |= 1
    path.write_bytes(data)
    with pytest.raises(UnreadableBinary, match=r"cannot be unpacked: .*encrypted"):
        inspect_path(path)


@pytest.mark.parametrize("content", [b"", b"just text", b"\x7fEL"])
def test_a_file_of_another_kind_is_unreadable(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UnreadableBinary, match="is no wheel and no ELF file"):
        inspect_path(tmp_path / "file")


def test_what_does_not_exist_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"none\.whl does not exist"):
        inspect_path(tmp_path / "none.whl")


@pytest.mark.parametrize(
    ("files", "gpu", "verdict", "via"),
    [
        ([["sm_90"]], "h200", Verdict.NATIVE, ["sm_90"]),
        ([["sm_90", "sm_90a"]], "h200", Verdict.NATIVE, ["sm_90", "sm_90a"]),
        ([["sm_80"]], "l4", Verdict.COMPATIBLE, ["sm_80"]),
        ([["sm_80", "compute_80"]], "h200", Verdict.JIT, ["compute_80"]),
        ([["sm_80"]], "h200", Verdict.NO, []),
        ([["sm_90"], ["sm_80", "compute_80"]], "h200", Verdict.JIT, ["compute_80", "sm_90"]),
        ([["sm_90"], ["sm_80"]], "h200", Verdict.NO, []),
        ([["sm_90"], []], "h200", Verdict.NATIVE, ["sm_90"]),
        ([[]], "h200", Verdict.NO, []),
        ([], "h200", Verdict.NO, []),
        ([["bare", "sm_80"], ["bare", "sm_90"]], "h200", Verdict.NATIVE, ["sm_90"]),
        ([["bare", "sm_80"], ["sm_90"]], "h200", Verdict.NO, []),
        ([["bare"], ["sm_90"]], "h200", Verdict.NATIVE, ["sm_90"]),
    ],
)
def test_a_gpu_must_run_every_file_with_device_code(
    files: list[list[str]], gpu: str, verdict: Verdict, via: list[str]
) -> None:
    found = inspection(*files).runs_on(find_gpu(gpu))
    assert (found.verdict, sorted(map(str, found.via))) == (verdict, via)


def test_code_that_cannot_be_loaded_does_not_run() -> None:
    left_over = Binary(
        path="_C.so",
        machine="x86_64",
        cubins=(DeviceCode.parse("sm_80"),),
        ptx=(DeviceCode.parse("compute_80"),),
        loadable=(DeviceCode.parse("sm_80"),),
    )
    assert Inspection(files=(left_over,)).runs_on(find_gpu("h200")).verdict is Verdict.NO


def test_json_is_exactly_what_the_design_says() -> None:
    code = DeviceCode.parse("sm_90a")
    ptx = DeviceCode.parse("compute_90")
    found = Inspection(
        files=(
            Binary(
                path="pkg/_C.so",
                machine="x86_64",
                cubins=(code,),
                ptx=(ptx,),
                other=("lto_90",),
                loadable=(code, ptx),
                needs=Needs(glibc="2.34"),
            ),
        )
    )
    expected = {
        "files": [
            {
                "path": "pkg/_C.so",
                "cubins": ["sm_90a"],
                "ptx": ["compute_90"],
                "other": ["lto_90"],
                "needs": {"glibc": "2.34", "glibcxx": None},
            }
        ],
        "cubins": ["sm_90a"],
        "ptx": ["compute_90"],
        "runs_on": None,
    }
    assert found.to_json() == expected
    verdict = {"gpu": "h200", "arch": "9.0", "verdict": "native", "via": ["sm_90a"]}
    assert found.to_json(found.runs_on(find_gpu("H200"))) == expected | {"runs_on": verdict}


@pytest.fixture
def _site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay out an installed package with a library, a script outside site-packages, and a file since deleted."""
    site = tmp_path / "lib" / "site"
    (site / "fake_cuda").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (site / "fake_cuda" / "_C.so").write_bytes(library("sm_90"))
    (tmp_path / "bin" / "tool").write_bytes(library("sm_80"))
    for name, record in (("fake_cuda", "fake_cuda/_C.so,,\n../../bin/tool,,\nfake_cuda/gone.so,,\n"), ("bare", None)):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        if record is not None:
            (info / "RECORD").write_text(record)
    monkeypatch.setattr(sys, "path", [str(site)])


@pytest.mark.usefixtures("_site")
def test_an_installed_package_is_found_by_its_files() -> None:
    assert [(file.path, *map(str, file.cubins)) for file in inspect_installed("Fake-CUDA").files] == [
        ("../../bin/tool", "sm_80"),
        ("fake_cuda/_C.so", "sm_90"),
    ]
    assert {path.name for path in installed_files("fake_cuda")} >= {"_C.so", "tool"}


@pytest.mark.usefixtures("_site")
@pytest.mark.parametrize(("name", "message"), [("none-such", "not installed here"), ("bare", "without a list")])
def test_a_package_that_is_not_there_is_unknown(name: str, message: str) -> None:
    for look in (inspect_installed, installed_files):
        with pytest.raises(UnknownPackage, match=message):
            look(name)


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, OSError)]
)
def test_a_full_disk_is_told_from_other_errors(number: int, expected: type[Exception]) -> None:
    with pytest.raises(expected) as raised, full_disk(Path("/scratch")):
        raise OSError(number, "")
    assert raised.type is expected


def test_what_the_host_needs_is_the_newest_of_all_files() -> None:
    def needs(glibc: str | None, glibcxx: str | None) -> Binary:
        return Binary(path="x.so", machine="x86_64", needs=Needs(glibc=glibc, glibcxx=glibcxx))

    files = (needs("2.9", "3.4.30"), needs("2.17", None), needs(None, "3.4.9"))
    assert Inspection(files=files).needs == Needs(glibc="2.17", glibcxx="3.4.30")
    assert Inspection(files=()).needs.to_json() == {"glibc": None, "glibcxx": None}


def test_a_wheel_that_goes_while_it_is_read_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = libraries.write_wheel(tmp_path / "pkg-1.0-py3-none-any.whl", {"pkg/__init__.py": b""})
    is_file = Path.is_file

    def there_and_gone(path: Path) -> bool:
        there = is_file(path)
        path.unlink()
        return there

    monkeypatch.setattr(Path, "is_file", there_and_gone)
    with pytest.raises(MissingFile, match="does not exist"):
        inspect_path(wheel)


def test_a_file_that_goes_while_its_folder_is_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_C.so").write_bytes(libraries.library(libraries.container("sm_90")).data)
    (tmp_path / "passing").touch()
    is_file = Path.is_file

    def there_and_gone(path: Path) -> bool:
        there = is_file(path)
        if path.name == "passing":
            path.unlink()
        return there

    monkeypatch.setattr(Path, "is_file", there_and_gone)
    assert [file.path for file in inspect_path(tmp_path).files] == ["_C.so"]
