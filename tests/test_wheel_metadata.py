"""Wheel names, RECORD, and relabelling: what changes, what must not, and the same bytes each time."""

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.version import Version

from archpatch.errors import ConfigError, MissingFile, UnreadableBinary, UsageError
from archpatch.wheels.metadata import read_metadata, relabel, verify_record

NAME = "mamba_ssm-2.3.2.post1-cp311-cp311-linux_x86_64.whl"
INFO = "mamba_ssm-2.3.2.post1.dist-info"
METADATA = (
    b"Metadata-Version: 2.1\r\nName: mamba-ssm\r\nVersion: 2.3.2.post1\r\n\r\nVersion: 9 is not ours.\nBody \xff\n"
)
LABEL = "cu130torch2.14.1sm90"


@pytest.fixture(autouse=True)
def _no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)


def hashed(content: bytes, algorithm: str = "sha256") -> str:
    digest = hashlib.new(algorithm, content).digest()
    return f"{algorithm}={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def members() -> dict[str, bytes]:
    return {
        "mamba_ssm/__init__.py": b"__version__ = '2.3.2.post1'\n",
        "mamba_ssm/_C.so": b"\x7fELF" + bytes(range(256)) * 40,
        "mamba_ssm/a, b.txt": b"a comma",
        "mamba_ssm-2.3.2.post1.data/scripts/tool": b"#!python\n",
        f"{INFO}/METADATA": METADATA,
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n",
    }


def wheel(
    folder: Path,
    content: dict[str, bytes] | None = None,
    *,
    name: str = NAME,
    record: str | None = None,
    order: int = 1,
    algorithm: str = "sha256",
) -> Path:
    """Write a wheel with a RECORD of all its members, executables first made so."""
    content = members() if content is None else content
    if record is None:
        rows = [(path, hashed(data, algorithm), str(len(data))) for path, data in content.items()]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, (f"{INFO}/RECORD", "", "")])
        record = text.getvalue()
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, data in list((content | {f"{INFO}/RECORD": record.encode()}).items())[::order]:
            entry = zipfile.ZipInfo(path, (2026, 1, 2, 3, 4, 6 if order > 0 else 8))
            entry.external_attr = (0o100750 if path.endswith((".so", "tool")) else 0o100640) << 16
            archive.writestr(entry, data)
    return folder / name


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_name_version_and_tags_are_read(tmp_path: Path) -> None:
    found = read_metadata(wheel(tmp_path))
    assert (found.name, found.version, found.build) == ("mamba-ssm", Version("2.3.2.post1"), "")
    assert found.tags == ("cp311-cp311-linux_x86_64",)
    assert found.requires_python is None


def test_the_pythons_that_metadata_requires_are_read_as_they_stand(tmp_path: Path) -> None:
    stated = METADATA.replace(b"\r\n\r\n", b"\r\nRequires-Python: >=3.10,  !=3.12.*\r\n\r\n")
    content = members() | {f"{INFO}/METADATA": stated}
    assert read_metadata(wheel(tmp_path, content)).requires_python == ">=3.10,  !=3.12.*"


def test_compressed_tags_and_a_build_number_are_read(tmp_path: Path) -> None:
    found = read_metadata(wheel(tmp_path, name="mamba_ssm-2.3.2.post1-7b-py2.py3-none-any.whl"))
    assert (found.build, found.tags) == ("7b", ("py2-none-any", "py3-none-any"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mamba_ssm-2.3.2-cp311-cp311-linux_x86_64.whl", "METADATA says mamba-ssm 2.3.2.post1, the file name"),
        ("mamba-2.3.2.post1-cp311-cp311-linux_x86_64.whl", "METADATA says mamba-ssm"),
        ("mamba_ssm.whl", "has no wheel's name"),
        ("mamba_ssm-x.y-cp311-cp311-linux_x86_64.whl", "has no wheel's name"),
    ],
)
def test_a_name_that_does_not_fit_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UnreadableBinary, match=message):
        read_metadata(wheel(tmp_path, name=name))


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        (f"{INFO}/METADATA", None, r"there is no mamba_ssm-2\.3\.2\.post1\.dist-info/METADATA"),
        (f"{INFO}/METADATA", b"Name: mamba-ssm\n\n", "METADATA says mamba-ssm "),
        (f"{INFO}/METADATA", b"Name: mamba-ssm\nVersion: x.y\n\n", "METADATA says mamba-ssm x.y"),
        ("other-1.0.dist-info/METADATA", METADATA, r"one \.dist-info folder is expected, found: mamba_ssm.*, other"),
    ],
)
def test_metadata_that_is_missing_or_wrong_is_refused(
    tmp_path: Path, path: str, content: bytes | None, message: str
) -> None:
    edited = {name: data for name, data in (members() | {path: content}).items() if data is not None}
    with pytest.raises(UnreadableBinary, match=message):
        read_metadata(wheel(tmp_path, edited))


def test_a_zip_without_dist_info_is_no_wheel(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        archive.writestr("file", b"")
    with pytest.raises(UnreadableBinary, match="found: none"):
        read_metadata(tmp_path / NAME)


def test_a_file_that_is_no_zip_and_one_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"not a zip")
    with pytest.raises(UnreadableBinary, match="cannot be unpacked"):
        read_metadata(tmp_path / NAME)
    with pytest.raises(MissingFile):
        read_metadata(tmp_path / "none" / NAME)


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_a_whole_wheel_verifies(tmp_path: Path, algorithm: str) -> None:
    verify_record(wheel(tmp_path, algorithm=algorithm))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda record: record.replace("mamba_ssm/_C.so,sha256=", "mamba_ssm/_C.so,sha256=x"), "_C.so is not what"),
        (lambda record: record.replace("mamba_ssm/_C.so,sha256=", "mamba_ssm/_C.so,md5="), "no sha256 for .*_C.so"),
        (lambda record: record.replace("mamba_ssm/_C.so,", "mamba_ssm/_D.so,"), r"differ in .*_C\.so, .*_D\.so"),
        (lambda record: record.replace("mamba_ssm/__init__.py,", "mamba_ssm/_C.so,"), r"differ in .*__init__\.py"),
        (lambda _: "mamba_ssm/_C.so\n", "differ in"),
        (lambda _: "", "differ in"),
    ],
)
def test_a_record_that_differs_is_refused(tmp_path: Path, edit: Callable[[str], str], message: str) -> None:
    record = contents(wheel(tmp_path))[f"{INFO}/RECORD"].decode()
    with pytest.raises(UnreadableBinary, match=message):
        verify_record(wheel(tmp_path, record=edit(record)))


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("mamba_ssm/_C.so", members()["mamba_ssm/_C.so"])
    with pytest.raises(UnreadableBinary, match=r"differ in mamba_ssm/_C\.so"):
        verify_record(path)


def test_a_wheel_without_record_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        archive.writestr(f"{INFO}/METADATA", METADATA)
    with pytest.raises(UnreadableBinary, match=r"there is no .*RECORD"):
        verify_record(tmp_path / NAME)


def test_relabelling_changes_the_version_everywhere_and_nothing_else(tmp_path: Path) -> None:
    old = wheel(tmp_path / "old")
    new = relabel(old, LABEL, tmp_path)
    assert new == tmp_path / f"mamba_ssm-2.3.2.post1+{LABEL}-cp311-cp311-linux_x86_64.whl"
    verify_record(new)
    assert read_metadata(new).version == Version(f"2.3.2.post1+{LABEL}")
    before, after = contents(old), contents(new)
    stem = f"mamba_ssm-2.3.2.post1+{LABEL}"
    assert after.pop(f"{stem}.dist-info/METADATA") == METADATA.replace(
        b"\nVersion: 2.3.2.post1", f"\nVersion: 2.3.2.post1+{LABEL}".encode()
    )
    assert after.pop(f"{stem}.data/scripts/tool") == before["mamba_ssm-2.3.2.post1.data/scripts/tool"]
    assert after.pop(f"{stem}.dist-info/WHEEL") == before[f"{INFO}/WHEEL"]
    assert f"{stem}.dist-info/RECORD,,\n" in after.pop(f"{stem}.dist-info/RECORD").decode()
    assert after == {name: data for name, data in before.items() if name.startswith("mamba_ssm/")}


def test_the_wheel_given_is_left_as_it_is_and_nothing_lies_beside_the_result(tmp_path: Path) -> None:
    old = wheel(tmp_path / "old")
    before = old.read_bytes()
    (tmp_path / "new").mkdir()
    new = relabel(old, LABEL, tmp_path / "new")
    assert old.read_bytes() == before
    assert list(new.parent.iterdir()) == [new]


def test_the_same_wheel_gives_the_same_bytes_whatever_its_order_and_dates(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = relabel(wheel(tmp_path / "old"), LABEL, tmp_path / "one")
    two = relabel(wheel(tmp_path / "old", order=-1), LABEL, tmp_path / "two")
    assert one.read_bytes() == two.read_bytes()


def test_a_label_taken_off_gives_what_the_plain_wheel_gives(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "back").mkdir()
    old = wheel(tmp_path / "old")
    plain = relabel(old, None, tmp_path / "plain")
    back = relabel(relabel(old, LABEL, tmp_path), None, tmp_path / "back")
    assert (plain.name, plain.read_bytes()) == (back.name, back.read_bytes())
    assert plain.name == NAME


def test_a_label_is_replaced_not_added_to(tmp_path: Path) -> None:
    once = relabel(wheel(tmp_path / "old"), "old.label", tmp_path)
    assert read_metadata(relabel(once, LABEL, tmp_path)).version == Version(f"2.3.2.post1+{LABEL}")


def test_a_wheel_can_be_relabelled_in_place(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    assert relabel(path, None, tmp_path) == path
    verify_record(path)


def test_members_end_in_record_and_keep_their_executable_bits(tmp_path: Path) -> None:
    with zipfile.ZipFile(relabel(wheel(tmp_path / "old"), LABEL, tmp_path)) as archive:
        entries = archive.infolist()
    names = [entry.filename for entry in entries]
    assert names[-1].endswith("/RECORD")
    assert [".dist-info/" in name for name in names] == [False] * 4 + [True] * 3
    modes = {entry.filename.rpartition("/")[2]: oct(entry.external_attr >> 16) for entry in entries}
    assert (modes["_C.so"], modes["tool"], modes["__init__.py"]) == ("0o100755", "0o100755", "0o100644")
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_DEFLATED}


@pytest.mark.parametrize(
    ("epoch", "date"),
    [
        (None, (1980, 1, 1, 0, 0, 0)),
        ("", (1980, 1, 1, 0, 0, 0)),
        ("0", (1980, 1, 1, 0, 0, 0)),
        ("1767323046", (2026, 1, 2, 3, 4, 6)),
    ],
)
def test_dates_are_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: str | None, date: tuple[int, ...]
) -> None:
    if epoch is not None:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    with zipfile.ZipFile(relabel(wheel(tmp_path / "old"), LABEL, tmp_path)) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {date}


def test_an_epoch_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(ConfigError, match="SOURCE_DATE_EPOCH is 'yesterday'"):
        relabel(wheel(tmp_path / "old"), LABEL, tmp_path)


@pytest.mark.parametrize("local", ["", "a b", "+", "a..b", "ü"])
def test_a_label_that_pep_440_does_not_allow_is_refused(tmp_path: Path, local: str) -> None:
    with pytest.raises(UsageError, match="is no local version"):
        relabel(wheel(tmp_path / "old"), local, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_damaged_wheel_is_not_made_to_look_whole(tmp_path: Path) -> None:
    edited = members() | {"mamba_ssm/_C.so": b"something else"}
    record = contents(wheel(tmp_path / "old"))[f"{INFO}/RECORD"].decode()
    with pytest.raises(UnreadableBinary, match=r"_C\.so is not what RECORD says"):
        relabel(wheel(tmp_path / "old", edited, record=record), LABEL, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_target_that_is_no_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="none is no folder"):
        relabel(wheel(tmp_path / "old"), LABEL, tmp_path / "none")


def test_signatures_and_folder_entries_are_left_out(tmp_path: Path) -> None:
    content = members() | {f"{INFO}/RECORD.jws": b"{}", "mamba_ssm/": b""}
    rows = "".join(f'"{name}",{hashed(data)},{len(data)}\n' for name, data in members().items())
    old = wheel(tmp_path / "old", content, record=rows)
    verify_record(old)
    names = contents(relabel(old, LABEL, tmp_path))
    assert len(names) == len(members()) + 1
    assert not [name for name in names if name.endswith(("/", ".jws"))]
