from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from archpatch.builder.requirement import (
    ArchiveRequirement,
    FolderRequirement,
    GitRequirement,
    IndexRequirement,
    parse_requirement,
    redact_url,
)
from archpatch.errors import MissingFile, UsageError

DIGEST = "3202758494eaa7b597ce1c282dfa188889506bfcb92cad3c407d26736bfcd32b"


@pytest.mark.parametrize(
    ("text", "name", "specifier", "version", "sha256"),
    [
        ("mamba_ssm", "mamba_ssm", "", None, None),
        ("  Mamba.SSM ", "Mamba.SSM", "", None, None),
        ("mamba-ssm==2.3.1", "mamba-ssm", "==2.3.1", "2.3.1", None),
        ("mamba_ssm == 2.3.2.post1", "mamba_ssm", "==2.3.2.post1", "2.3.2.post1", None),
        ("mamba_ssm===2.3.1", "mamba_ssm", "===2.3.1", "2.3.1", None),
        ("mamba_ssm===latest", "mamba_ssm", "===latest", None, None),
        ("mamba_ssm>=2,<3", "mamba_ssm", "<3,>=2", None, None),
        ("mamba_ssm==2.*", "mamba_ssm", "==2.*", None, None),
        ("mamba_ssm==2.3.1,!=2.3.0", "mamba_ssm", "!=2.3.0,==2.3.1", "2.3.1", None),
        (f"mamba_ssm==2.3.1 --hash=sha256:{DIGEST}", "mamba_ssm", "==2.3.1", "2.3.1", DIGEST),
        (f"mamba_ssm==2.3.1 --hash sha256:{DIGEST.upper()}", "mamba_ssm", "==2.3.1", "2.3.1", DIGEST),
        (f"mamba_ssm==2.3.1#sha256={DIGEST}", "mamba_ssm", "==2.3.1", "2.3.1", DIGEST),
    ],
)
def test_a_name_is_the_index_package(
    text: str, name: str, specifier: str, version: str | None, sha256: str | None
) -> None:
    parsed = parse_requirement(text)
    assert isinstance(parsed, IndexRequirement)
    assert (parsed.name, str(parsed.specifier), parsed.sha256) == (name, specifier, sha256)
    assert parsed.version == (Version(version) if version else None)
    assert parsed.normalized == "mamba-ssm"


def test_the_hash_can_be_an_option_of_its_own() -> None:
    assert parse_requirement("x==1", sha256=DIGEST.upper()) == parse_requirement(f"x==1 --hash=sha256:{DIGEST}")
    assert parse_requirement(f"x==1#sha256={DIGEST}", sha256=DIGEST) == parse_requirement("x==1", sha256=DIGEST)


@pytest.mark.parametrize(
    ("text", "url", "ref", "name"),
    [
        ("git+https://github.com/a/b@v1.0", "https://github.com/a/b", "v1.0", None),
        ("git+https://github.com/a/b.git", "https://github.com/a/b.git", None, None),
        ("git+https://me:pw@host/a/b@feature/x", "https://me:pw@host/a/b", "feature/x", None),
        ("git+https://me@host/a/b", "https://me@host/a/b", None, None),
        ("git+ssh://git@github.com/a/b@1234abc", "ssh://git@github.com/a/b", "1234abc", None),
        ("git+file:///x/repo@v1", "file:///x/repo", "v1", None),
        ("git+https://host/b@refs/pull/1/head#egg=mamba_ssm", "https://host/b", "refs/pull/1/head", "mamba_ssm"),
        ("mamba_ssm @ git+https://host/b@v2.3.1", "https://host/b", "v2.3.1", "mamba_ssm"),
        ("mamba_ssm@git+https://host/b@v2.3.1", "https://host/b", "v2.3.1", "mamba_ssm"),
    ],
)
def test_a_git_reference(text: str, url: str, ref: str | None, name: str | None) -> None:
    assert parse_requirement(text) == GitRequirement(url=url, ref=ref, name=name)


def test_a_folder_is_written_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mamba_ssm").mkdir()
    folder = FolderRequirement(tmp_path / "mamba_ssm")
    for text in ("./mamba_ssm", "mamba_ssm/", str(folder.path), folder.path.as_uri(), f"x @ {folder.path.as_uri()}"):
        assert parse_requirement(text) == folder
    assert parse_requirement(".") == FolderRequirement(tmp_path)
    assert isinstance(parse_requirement("mamba_ssm"), IndexRequirement)


@pytest.mark.parametrize("name", ["x-1.tar.gz", "x-1.tgz", "x-1.tar.bz2", "x-1.ZIP", "a b-1.zip"])
def test_an_archive(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).touch()
    assert parse_requirement(name) == ArchiveRequirement(path=tmp_path / name)
    assert parse_requirement(f"./{name}", sha256=DIGEST) == ArchiveRequirement(path=tmp_path / name, sha256=DIGEST)
    assert parse_requirement((tmp_path / name).as_uri()) == ArchiveRequirement(path=tmp_path / name)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "names no package"),
        ("   ", "names no package"),
        ("--index-url=x", "names no package"),
        ("mamba_ssm=2.3.1", "is no requirement"),
        ("mamba ssm", "is no requirement"),
        ("mamba_ssm[dev]", "extras"),
        ("mamba_ssm; python_version > '3'", "marker"),
        ("mamba_ssm==1 --hash=md5:0123", "a sha256"),
        ("mamba_ssm==1 --hash=sha256:0123", "64 hexadecimal digits"),
        (f"mamba_ssm==1 --hash=sha256:{DIGEST} --hash=sha256:{DIGEST}", "more than one hash"),
        (f"git+https://host/a@v1#sha256={DIGEST}", "belongs to an archive"),
        ("https://host/a.tar.gz", "can be named by URL"),
        ("a @ https://host/a.whl", "can be named by URL"),
        ("ftp://host/a", "can be named by URL"),
        ("git+git://host/a", "'git' is not supported"),
        ("git+ext::sh -c id", "is not supported"),
        ("git+git@github.com:a/b", "is not supported"),
        ("git+ssh://-oProxyCommand=id/a", "no valid host"),
        ("git+https:///a", "no valid host"),
        ("git+https://host/", "names no repository"),
        ("git+https://host/a@-x", "is no name of a tag"),
        ("git+https://host/a@", "is no name of a tag"),
        ("git+https://host/a@a..b", "is no name of a tag"),
        ("git+https://host/a@a:b", "is no name of a tag"),
        ("git+https://host/a?x=1", "has no query"),
        ("git+https://host/a#subdirectory=b", "is not understood"),
        ("file://elsewhere/a", "another machine"),
    ],
)
def test_what_is_refused_says_why_and_what_to_write(text: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_requirement(text)
    assert part in caught.value.message
    assert caught.value.remedy


def test_two_different_hashes_are_refused() -> None:
    with pytest.raises(UsageError, match="two different hashes"):
        parse_requirement(f"x==1#sha256={DIGEST}", sha256="0" * 64)


@pytest.mark.parametrize(
    "text", ["./nothing", "/no/such/folder", "nothing-1.0.tar.gz", "file:///no/such", "~nobody_x/y"]
)
def test_a_path_that_is_not_there(text: str) -> None:
    with pytest.raises(MissingFile) as caught:
        parse_requirement(text)
    assert caught.value.remedy


def test_a_file_that_is_no_source_archive(tmp_path: Path) -> None:
    (tmp_path / "x.whl").touch()
    with pytest.raises(UsageError, match="no source archive"):
        parse_requirement(str(tmp_path / "x.whl"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@host/simple", "https://***@host/simple"),
        ("https://token@host/simple", "https://***@host/simple"),
        ("https://me:se@cret@host/x", "https://***@host/x"),
        ("ssh://git@host/a", "ssh://git@host/a"),
        ("ssh://git:pw@host/a", "ssh://***@host/a"),
        ("https://host/a?token=secret#sha256=1", "https://host/a#sha256=1"),
        ("fatal: 'https://a:b@host/x' and http://c:d@other/", "fatal: 'https://***@host/x' and http://***@other/"),
        ("https://host/a@v1", "https://host/a@v1"),
    ],
)
def test_secrets_are_not_shown(text: str, shown: str) -> None:
    assert redact_url(text) == shown


@pytest.mark.parametrize(
    "text", ["a @ https://me:secret@host/x", "git+https://me:secret@host/a@-x", "x[a] @ https://u:secret@h"]
)
def test_errors_show_no_secrets(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_requirement(text)
    assert "secret" not in str(caught.value)


def test_requirements_print_as_they_are_written() -> None:
    assert str(parse_requirement("mamba_ssm==2.3.1")) == "mamba_ssm==2.3.1"
    assert str(parse_requirement("git+https://me:pw@host/a@v1")) == "git+https://***@host/a@v1"
