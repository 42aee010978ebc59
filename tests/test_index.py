from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from packaging.version import Version

from archpatch.builder.download import download
from archpatch.builder.index import Candidate, FoundSdist, choose_sdist, find_sdist
from archpatch.builder.pip_settings import IndexSettings
from archpatch.builder.requirement import IndexRequirement, parse_requirement
from archpatch.builder.sdist_store import split_sdist_name, stored_sdist
from archpatch.errors import ArchpatchError, FetchFailed, HashMismatch, NoSources, ToolchainError, UnknownPackage

A, B = "a" * 64, "b" * 64


def sdist(version: str, *, sha256: str | None = A, yanked: str | None = None, python: str | None = None) -> Candidate:
    name = f"p-{version}.tar.gz"
    return Candidate(
        version=Version(version),
        filename=name,
        url=f"https://h/{name}",
        sha256=sha256,
        yanked=yanked,
        requires_python=python,
    )


def wheel(version: str) -> Candidate:
    name = f"p-{version}-py3-none-any.whl"
    return Candidate(version=Version(version), filename=name, url=f"https://h/{name}")


def requirement(text: str, sha256: str | None = None) -> IndexRequirement:
    parsed = parse_requirement(text, sha256=sha256)
    assert isinstance(parsed, IndexRequirement)
    return parsed


def choose(text: str, *candidates: Candidate, sha256: str | None = None) -> FoundSdist:
    return choose_sdist(requirement(text, sha256), candidates, python_version="3.11.7", where="https://h")


@pytest.mark.parametrize(
    ("text", "candidates", "version"),
    [
        ("p", (sdist("1.0"), sdist("1.10"), sdist("1.9")), "1.10"),
        ("p<1.10", (sdist("1.0"), sdist("1.10"), sdist("1.9")), "1.9"),
        ("p", (sdist("1.0"), wheel("2.0")), "1.0"),
        ("p", (sdist("1.0"), sdist("2.0rc1")), "1.0"),
        ("p", (sdist("2.0rc1"), sdist("2.0b1")), "2.0rc1"),
        ("p>=2.0b1", (sdist("1.0"), sdist("2.0rc1")), "2.0rc1"),
        ("p==2.0rc1", (sdist("1.0"), sdist("2.0rc1")), "2.0rc1"),
        ("p", (sdist("1.0"), sdist("2.0", yanked="broken")), "1.0"),
        ("p==2.0", (sdist("2.0", yanked="broken"),), "2.0"),
        ("p", (sdist("1.0"), sdist("2.0", python=">=3.12")), "1.0"),
        ("p", (sdist("1.0"), sdist("2.0", python=">=3.11.5,<4")), "2.0"),
        ("p", (sdist("1.0", python="nonsense"),), "1.0"),
        ("p==1.0", (sdist("1.0.post1"), sdist("1.0")), "1.0"),
    ],
)
def test_the_newest_that_pip_would_take(text: str, candidates: tuple[Candidate, ...], version: str) -> None:
    assert choose(text, *candidates).version == Version(version)


def test_a_file_that_is_not_yanked_beats_one_that_is() -> None:
    found = choose("p==1", sdist("1", sha256=A, yanked=""), sdist("1", sha256=B))
    assert (found.sha256, found.yanked) == (B, None)


@pytest.mark.parametrize(
    ("candidates", "sha256", "version"),
    [
        ((sdist("1", sha256=A), sdist("2", sha256=B)), A, "1"),
        ((sdist("1", sha256=B), sdist("1", sha256=A)), A, "1"),
        ((sdist("1", sha256=B), sdist("1", sha256=None)), A, "1"),
    ],
)
def test_a_pinned_hash_selects(candidates: tuple[Candidate, ...], sha256: str, version: str) -> None:
    found = choose("p", *candidates, sha256=sha256)
    assert found.version == Version(version)
    assert found.sha256 in (sha256, None)


@pytest.mark.parametrize(
    ("text", "candidates", "kind", "part"),
    [
        ("p", (), UnknownPackage, "p is unknown at https://h"),
        ("p==1.5", tuple(sdist(f"1.{n}") for n in (0, 3, 4, 6, 7, 8, 9)), UnknownPackage, "1.3, 1.4, 1.6, 1.7, 1.8"),
        ("p>5", tuple(sdist(f"1.{n}") for n in range(9)), UnknownPackage, "Near it are 1.6, 1.7, 1.8;"),
        ("p", (wheel("1.0"),), NoSources, "only wheels of 1.0"),
        ("p==1.0", (wheel("1.0"), sdist("0.9")), NoSources, "git+https://host/p@v1.0"),
        ("p==2", (sdist("2", python=">=3.13"), sdist("1")), ToolchainError, "needs Python >=3.13, this is 3.11.7"),
        ("p>=2", (sdist("2", yanked="bad kernels"),), UnknownPackage, "yanked): bad kernels"),
    ],
)
def test_why_there_is_none(text: str, candidates: tuple[Candidate, ...], kind: type[ArchpatchError], part: str) -> None:
    with pytest.raises(kind) as caught:
        choose(text, *candidates)
    assert part in str(caught.value)
    assert caught.value.remedy


def test_another_hash_is_no_unknown_package() -> None:
    with pytest.raises(HashMismatch, match=B):
        choose("p==1", sdist("1", sha256=A), sha256=B)


@pytest.mark.parametrize(
    ("filename", "expected"),
    [
        ("mamba_ssm-2.3.1.tar.gz", ("mamba-ssm", Version("2.3.1"))),
        ("a-b-1.0.post8.zip", ("a-b", Version("1.0.post8"))),
        ("a-1.0.linux-x86_64.tar.gz", None),
        ("a-1.0-py3-none-any.whl", None),
        ("-1.0.tar.gz", None),
        ("a.tar.gz", None),
    ],
)
def test_sdist_names(filename: str, expected: tuple[str, Version] | None) -> None:
    assert split_sdist_name(filename) == expected


# --- folders and files: no server --------------------------------------------------------------


@pytest.fixture
def links(tmp_path: Path) -> Path:
    folder = tmp_path / "links"
    folder.mkdir()
    for version in ("1.0", "2.0"):
        (folder / f"p_q-{version}.tar.gz").write_bytes(f"sdist {version}".encode())
    (folder / "p_q-3.0-py3-none-any.whl").touch()
    (folder / "other-9.tar.gz").touch()
    return folder


def local(folder: Path) -> IndexSettings:
    return IndexSettings(no_index=True, find_links=(str(folder),), retries=0)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_find_links_folder(links: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    found = find_sdist(requirement("P.q"), local(links), store=store)
    assert (found.name, found.version, found.filename) == ("P.q", Version("2.0"), "p_q-2.0.tar.gz")
    path = download(found, local(links), store=store)
    assert path == store / digest(b"sdist 2.0") / "p_q-2.0.tar.gz"
    assert path.read_bytes() == b"sdist 2.0"
    assert [entry.name for entry in store.iterdir()] == [digest(b"sdist 2.0")]


def test_a_static_index_in_a_folder(links: Path, tmp_path: Path) -> None:
    page = tmp_path / "simple" / "p-q" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../{links.name}/p_q-1.0.tar.gz#sha256={digest(b"sdist 1.0")}">p_q-1.0.tar.gz</a>')
    settings = IndexSettings(index_url=(tmp_path / "simple").as_uri(), find_links=("/no/such/folder",))
    found = find_sdist(requirement("p_q"), settings, store=tmp_path / "store")
    assert found.sha256 == digest(b"sdist 1.0")
    assert Path(download(found, settings, store=tmp_path / "store")).read_bytes() == b"sdist 1.0"
    with pytest.raises(UnknownPackage):
        find_sdist(requirement("nothing"), settings, store=tmp_path / "store")


def test_nowhere_to_look(tmp_path: Path) -> None:
    with pytest.raises(UnknownPackage):
        find_sdist(requirement("p_q"), IndexSettings(no_index=True), store=tmp_path)


def test_an_index_that_is_no_url(tmp_path: Path) -> None:
    with pytest.raises(ArchpatchError, match="neither a URL nor a folder"):
        find_sdist(requirement("p_q"), IndexSettings(index_url="pypi"), store=tmp_path)


def test_plain_http_to_an_untrusted_host(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="not encrypted") as caught:
        find_sdist(requirement("p_q"), IndexSettings(index_url="http://me:pw@index.invalid/simple"), store=tmp_path)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("pin", [True, False])
def test_a_wrong_hash_leaves_nothing(pin: bool, links: Path, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    store = tmp_path / "store"
    url = (links / "p_q-1.0.tar.gz").as_uri()
    found = FoundSdist(name="p_q", version=Version("1"), filename="p_q-1.0.tar.gz", url=url, sha256=None if pin else A)
    with pytest.raises(HashMismatch, match=digest(b"sdist 1.0")):
        download(found, local(links), sha256=A if pin else None, store=store)
    assert list(store.iterdir()) == []


def test_the_pin_and_the_index_must_agree(tmp_path: Path) -> None:
    found = FoundSdist(name="p", version=Version("1"), filename="p-1.tar.gz", url="https://h/p-1.tar.gz", sha256=B)
    with pytest.raises(HashMismatch):
        download(found, IndexSettings(), sha256=A, store=tmp_path / "store")


def test_what_is_pinned_is_taken_from_the_store(links: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    path = download(find_sdist(requirement("p_q==1.0"), local(links), store=store), local(links), store=store)
    unreachable = IndexSettings(index_url="http://not.trusted.invalid")
    found = find_sdist(requirement("p-q==1.0", digest(b"sdist 1.0")), unreachable, store=store)
    assert download(found, unreachable, store=store) == path
    with pytest.raises(FetchFailed):
        find_sdist(requirement("p-q==1.0"), unreachable, store=store)


def test_offline_takes_the_store_and_local_folders(links: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    remote = IndexSettings(index_url="http://not.trusted.invalid")
    with pytest.raises(FetchFailed, match="--offline"):
        find_sdist(requirement("p_q"), remote, offline=True, store=store)
    download(find_sdist(requirement("p_q==1.0"), local(links), store=store), local(links), store=store)
    assert find_sdist(requirement("p_q"), remote, offline=True, store=store).version == Version("1.0")
    assert find_sdist(requirement("p_q"), local(links), offline=True, store=store).version == Version("2.0")


def test_a_damaged_file_of_the_store_is_dropped(links: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    found = find_sdist(requirement("p_q==1.0"), local(links), store=store)
    path = download(found, local(links), store=store)
    path.write_bytes(b"rotten")
    assert stored_sdist(store, path.parent.name, path.name) is None
    assert not path.exists()
    assert download(found, local(links), store=store).read_bytes() == b"sdist 1.0"


def test_a_store_that_cannot_be_written_to(links: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = find_sdist(requirement("p_q"), local(links), store=tmp_path / "none")
    with pytest.raises(FetchFailed, match="ARCHPATCH_CACHE"):
        download(found, local(links), store=tmp_path / "file")


def test_a_source_that_is_gone(links: Path, tmp_path: Path) -> None:
    found = find_sdist(requirement("p_q"), local(links), store=tmp_path / "store")
    (links / found.filename).unlink()
    with pytest.raises(FetchFailed, match="cannot be read"):
        download(found, local(links), store=tmp_path / "store")
    assert os.listdir(tmp_path / "store") == []  # noqa: PTH208 - hidden files count
