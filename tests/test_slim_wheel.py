"""A wheel slimmed: its names, its RECORD, the files that stay as they are, and the same bytes each time."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from libraries import CUDA, container, library, write_wheel

from archpatch.arch.arch import ArchRequest
from archpatch.arch.selection import Policy
from archpatch.builder.working_folder import working_folder
from archpatch.errors import DeviceCodeMismatch, MissingFile, NoMatchingArch, SlimRefused, UnreadableBinary, UsageError
from archpatch.wheels.inspection import inspect_path
from archpatch.wheels.metadata import read_metadata, verify_record
from archpatch.wheels.slim_choice import Wanted
from archpatch.wheels.slim_wheel import Slimmed, slim_library, slim_wheel

NAME = "pkg-1.0-cp311-cp311-linux_x86_64.whl"
WIDE = library(container("sm_80", "sm_90", "compute_90"), container("sm_80", "sm_90")).data
SINGLE = library(container("sm_90")).data
HOST = library().data
FILES = {
    "pkg/__init__.py": b"import pkg._C\n",
    "pkg/_C.so": WIDE,
    "pkg/single.so": SINGLE,
    "pkg/host.so": HOST,
    "pkg-1.0.data/platlib/pkg/extra.so": WIDE,
    "pkg/data, with a comma": b"x" * 1000,
}


@pytest.fixture(autouse=True)
def _no_epoch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    (tmp_path / "new").mkdir()


def wanted(text: str = "9.0") -> Wanted:
    return Wanted(request=ArchRequest.parse(text), policy=Policy())


def slim(wheel: Path, text: str = "9.0", into: str = "new") -> Slimmed:
    folder = wheel.parent / into
    folder.mkdir(exist_ok=True)
    return slimmed_into(folder, wheel, text)


def slimmed_into(folder: Path, wheel: Path, text: str = "9.0") -> Slimmed:
    with working_folder() as scratch:
        return slim_wheel(wheel, wanted(text), folder, scratch=scratch)


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_says_what_is_inside_and_agrees_with_itself(tmp_path: Path) -> None:
    slimmed = slim(write_wheel(tmp_path / NAME, FILES))
    assert slimmed.path == tmp_path / "new" / "pkg-1.0+sm90-cp311-cp311-linux_x86_64.whl"
    assert str(read_metadata(slimmed.path).version) == "1.0+sm90"
    verify_record(slimmed.path)
    assert [str(code) for code in slimmed.device_code] == ["sm_90"]
    assert [str(code) for code in inspect_path(slimmed.path).cubins] == ["sm_90"]
    assert [(file.path, len(file.cuts)) for file in slimmed.files] == [
        ("pkg-1.0.data/platlib/pkg/extra.so", 2),
        ("pkg/_C.so", 2),
        ("pkg/single.so", 0),
    ]


def test_other_files_keep_their_bytes_and_all_their_permissions(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / NAME, FILES)
    after = contents(slim(wheel).path)
    assert {name: after[name] for name in FILES if not name.endswith(("_C.so", "extra.so"))} == {
        name: content for name, content in FILES.items() if not name.endswith(("_C.so", "extra.so"))
    }
    assert after["pkg/_C.so"] == after["pkg-1.0+sm90.data/platlib/pkg/extra.so"] != WIDE
    assert len(after["pkg/_C.so"]) == len(WIDE)
    with zipfile.ZipFile(tmp_path / "new" / "pkg-1.0+sm90-cp311-cp311-linux_x86_64.whl") as archive:
        modes = {member.filename: oct(member.external_attr >> 16) for member in archive.infolist()}
    assert (modes["pkg/_C.so"], modes["pkg/host.so"], modes["pkg/__init__.py"]) == ("0o100751", "0o100751", "0o100640")


def test_the_same_wheel_gives_the_same_bytes_and_so_does_the_slimmed_one(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / NAME, FILES)
    first, second = slim(wheel).path, slim(wheel, into="again").path
    assert first.read_bytes() == second.read_bytes()
    third = slimmed_into(tmp_path / "again", first).path
    assert (third.name, third.read_bytes()) == (first.name, first.read_bytes())


def test_a_stored_wheel_is_compressed_and_gives_the_same(tmp_path: Path) -> None:
    stored = slim(write_wheel(tmp_path / NAME, FILES, compression=zipfile.ZIP_STORED)).path
    with zipfile.ZipFile(stored) as archive:
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_DEFLATED}
    again = slimmed_into(tmp_path, stored)
    assert again.path.read_bytes() == stored.read_bytes()


@pytest.mark.parametrize(
    ("version", "asked", "label"),
    [
        ("1.0", "9.0", "sm90"),
        ("1.0", "9.0+PTX", "sm90.ptx90"),
        ("1.0", "8.0;9.0", "sm80.sm90"),
        ("1.0+cu130", "9.0", "cu130.sm90"),
        ("1.0+cu130.sm75.sm80a.ptx90", "9.0", "cu130.sm90"),
        ("1.0+cu130torch2.14.1sm75.sm80.sm90", "9.0", "cu130torch2.14.1sm90"),
        ("1.0+sm80.sm90", "9.0", "sm90"),
        ("1.0+sm80.local", "9.0", "sm80.local.sm90"),
        ("1.0+prism90", "9.0", "prism90.sm90"),
    ],
)
def test_the_local_version_ends_in_what_is_inside(tmp_path: Path, version: str, asked: str, label: str) -> None:
    wheel = write_wheel(tmp_path / NAME.replace("1.0", version), {"pkg/_C.so": WIDE})
    assert read_metadata(slim(wheel, asked).path).version.local == label


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    slimmed = slim(write_wheel(tmp_path / NAME, FILES))
    assert list((tmp_path / "new").iterdir()) == [slimmed.path]
    assert list((tmp_path / "scratch").iterdir()) == []


BAD = library(container("sm_90", "lto_90")).data
RELOCATABLE = library(container("sm_80", "sm_90"), relocatable=[container("sm_80", "sm_90")]).data
INFO = "pkg-1.0.dist-info"


@pytest.mark.parametrize(
    ("files", "error", "says"),
    [
        (FILES | {"pkg/z.so": BAD}, SlimRefused, r"pkg/z\.so: section \.nv_fatbin at offset 0xb0: lto_90 is neither"),
        (FILES | {"pkg/z.so": RELOCATABLE}, SlimRefused, r"pkg/z\.so: it holds relocatable"),
        (FILES | {"pkg/z.so": library(container("sm_80")).data}, NoMatchingArch, r"pkg/z\.so: no matching arch for 9"),
        (FILES | {"pkg/z.so": WIDE[:-1]}, UnreadableBinary, r"pkg/z\.so is no ELF file, or a damaged one"),
        (FILES | {f"{INFO}/RECORD.jws": b"{}"}, SlimRefused, r"it is signed \(pkg-1\.0\.dist-info/RECORD\.jws\)"),
        ({"pkg/__init__.py": b"", "pkg/host.so": HOST}, NoMatchingArch, "holds no device code"),
    ],
)
def test_one_file_that_is_refused_refuses_the_wheel(
    tmp_path: Path, files: dict[str, bytes], error: type[Exception], says: str
) -> None:
    wheel = write_wheel(tmp_path / NAME, files)
    if f"{INFO}/RECORD.jws" in files:
        unrecorded(wheel, f"{INFO}/RECORD.jws")
    with pytest.raises(error, match=says):
        slim(wheel)
    assert list((tmp_path / "new").iterdir()) == []
    assert list((tmp_path / "scratch").iterdir()) == []


def unrecorded(wheel: Path, name: str) -> None:
    """Take a file out of RECORD, where a signature has no place."""
    files = contents(wheel)
    lines = files[f"{INFO}/RECORD"].decode().splitlines()
    files[f"{INFO}/RECORD"] = "\n".join(line for line in lines if not line.startswith(name)).encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)


def test_a_damaged_wheel_is_not_made_to_look_whole(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / NAME, FILES)
    files = contents(wheel)
    files["pkg/host.so"] = library(container("sm_90")).data
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    with pytest.raises(UnreadableBinary, match=r"pkg/host\.so is not what RECORD says"):
        slim(wheel)
    assert list((tmp_path / "new").iterdir()) == []


def test_a_result_that_reads_back_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archpatch.wheels.slimming.Slimming.apply", lambda *_: None)
    with pytest.raises(DeviceCodeMismatch, match=r"_C\.so would hold sm_80, sm_90, compute_90 instead of sm_90"):
        slim(write_wheel(tmp_path / NAME, {"pkg/_C.so": WIDE}))
    assert list((tmp_path / "new").iterdir()) == []


def test_bare_cubins_stay_and_are_told_of(tmp_path: Path) -> None:
    bare = library(machine=CUDA).data
    slimmed = slim(write_wheel(tmp_path / NAME, {"pkg/_C.so": WIDE, "pkg/kernel.cubin": bare}))
    assert slimmed.warnings == ("pkg/kernel.cubin is a cubin that a program loads by its name: it stays as it is.",)
    assert contents(slimmed.path)["pkg/kernel.cubin"] == bare


def test_warnings_of_all_files_are_handed_on(tmp_path: Path) -> None:
    slimmed = slim(write_wheel(tmp_path / NAME, FILES), "9.0;12.0")
    assert len(slimmed.warnings) == 3
    assert "pkg/_C.so: 12.0 was asked for, but it does not hold sm_120: left out." in slimmed.warnings


def test_the_wide_wheel_is_never_written_over(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / NAME.replace("1.0", "1.0+sm90"), FILES)
    before = wheel.read_bytes()
    with pytest.raises(UsageError, match="would be written over"):
        slimmed_into(tmp_path, wheel)
    assert wheel.read_bytes() == before


def test_a_folder_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="nowhere is no folder"):
        slimmed_into(tmp_path / "nowhere", write_wheel(tmp_path / NAME, FILES))


# --- one library ---


def test_a_library_alone_keeps_name_and_permissions(tmp_path: Path) -> None:
    (tmp_path / "_C.so").write_bytes(WIDE)
    (tmp_path / "_C.so").chmod(0o751)
    slimmed = slim_library(tmp_path / "_C.so", wanted(), tmp_path / "new")
    assert slimmed.path == tmp_path / "new" / "_C.so"
    assert [str(code) for code in inspect_path(slimmed.path).cubins] == ["sm_90"]
    assert oct(slimmed.path.stat().st_mode & 0o777) == "0o751"
    assert (tmp_path / "_C.so").read_bytes() == WIDE


@pytest.mark.parametrize(
    ("data", "error"),
    [(HOST, NoMatchingArch), (BAD, SlimRefused), (b"no ELF file", UnreadableBinary), (b"", UnreadableBinary)],
)
def test_a_library_that_is_refused_leaves_nothing(tmp_path: Path, data: bytes, error: type[Exception]) -> None:
    (tmp_path / "_C.so").write_bytes(data)
    with pytest.raises(error):
        slim_library(tmp_path / "_C.so", wanted(), tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_library_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "_C.so").write_bytes(WIDE)
    with pytest.raises(UsageError, match="would be written over"):
        slim_library(tmp_path / "_C.so", wanted(), tmp_path)
