from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from archpatch.builder.commands import Output
from archpatch.builder.pip_settings import IndexSettings
from archpatch.builder.requirement import (
    ArchiveRequirement,
    FolderRequirement,
    GitRequirement,
    IndexRequirement,
    parse_requirement,
)
from archpatch.builder.source import SourceTree, pin, prepare, project_name
from archpatch.builder.tree_copy import copy_tree
from archpatch.errors import ArchpatchError, DiskFull, FetchFailed, HashMismatch, NoSources, ToolchainError
from archpatch.storage import archives

SETUP = b"raise SystemExit('this must not run')\n"


def make_sdist(folder: Path, name: str = "p_q-1.0.tar.gz", files: Mapping[str, bytes] | None = None) -> Path:
    files = {"p_q-1.0/setup.py": SETUP, "p_q-1.0/csrc/a.cu": b"x"} if files is None else files
    path = folder / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            for inner, content in files.items():
                archive.writestr(inner, content)
        return path
    with tarfile.open(path, "w:gz") as tar:
        for inner, content in files.items():
            info = tarfile.TarInfo(inner)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def make_project(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


# --- archives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p_q-1.0.tar.gz", "p_q-1.0.zip"])
def test_the_top_level_folder_is_stripped(name: str, tmp_path: Path) -> None:
    archive = make_sdist(tmp_path, name)
    tree = prepare(ArchiveRequirement(path=archive), tmp_path / "work" / "tree")
    assert tree.path == tmp_path / "work" / "tree"
    assert (tree.path / "csrc" / "a.cu").read_bytes() == b"x"
    assert (tree.name, tree.version, tree.origin) == ("p-q", "1.0", str(archive))
    assert os.listdir(tmp_path / "work") == ["tree"]  # noqa: PTH208 - hidden files count


def test_a_flat_archive(tmp_path: Path) -> None:
    archive = make_sdist(tmp_path, files={"setup.py": SETUP, "csrc/a.cu": b"x"})
    assert (prepare(ArchiveRequirement(path=archive), tmp_path / "tree").path / "setup.py").is_file()


def test_pkg_info_beats_the_file_name(tmp_path: Path) -> None:
    info = b"Metadata-Version: 2.1\nName: Real_Name\nVersion: 1.0+cu\n\nName: not this\n"
    archive = make_sdist(tmp_path, "main.zip", {"p-main/setup.py": SETUP, "p-main/PKG-INFO": info})
    tree = prepare(ArchiveRequirement(path=archive), tmp_path / "tree")
    assert (tree.name, tree.version) == ("Real_Name", "1.0+cu")


def test_an_archive_is_checked_against_its_pin(tmp_path: Path) -> None:
    archive = make_sdist(tmp_path)
    digest = prepare(ArchiveRequirement(path=archive), tmp_path / "a").digest
    assert prepare(ArchiveRequirement(path=archive, sha256=digest), tmp_path / "b").digest == digest
    with pytest.raises(HashMismatch, match=digest):
        prepare(ArchiveRequirement(path=archive, sha256="0" * 64), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_an_archive_that_is_replaced_while_it_is_unpacked_is_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, unpack = make_sdist(tmp_path), archives.unpack

    def unpack_too_late(path: Path, into: Path) -> None:
        make_sdist(tmp_path, files={"p_q-1.0/setup.py": SETUP, "p_q-1.0/csrc/a.cu": b"another"})
        unpack(path, into)

    monkeypatch.setattr(archives, "unpack", unpack_too_late)
    with pytest.raises(FetchFailed, match="was replaced while"):
        prepare(ArchiveRequirement(path=archive), tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize(
    ("pyproject", "part"),
    [
        (b'[build-system]\nbuild-backend = "hatchling.build"\n', "built by hatchling.build"),
        (b"[project]\n", "no backend that it names"),
        (b"build-system = 1\n", "no backend that it names"),
    ],
)
def test_an_archive_without_setup_py(pyproject: bytes, part: str, tmp_path: Path) -> None:
    archive = make_sdist(tmp_path, files={"p-1/pyproject.toml": pyproject})
    with pytest.raises(NoSources, match=part) as caught:
        prepare(ArchiveRequirement(path=archive), tmp_path / "work" / "tree")
    assert caught.value.remedy
    assert os.listdir(tmp_path / "work") == []  # noqa: PTH208 - hidden files count


# --- the index, as a folder --------------------------------------------------------------------


def from_folder(folder: Path) -> IndexSettings:
    return IndexSettings(no_index=True, find_links=(str(folder),))


def test_a_package_of_an_index(tmp_path: Path) -> None:
    environ = {"ARCHPATCH_CACHE": str(tmp_path / "cache")}
    archive = make_sdist(tmp_path)
    tree = prepare(parse_requirement("p-q"), tmp_path / "tree", settings=from_folder(tmp_path), environ=environ)
    assert (tree.name, tree.version) == ("p-q", "1.0")
    assert tree.origin == f"p_q-1.0.tar.gz from {archive.as_uri()}"
    assert (tmp_path / "cache" / "sdists" / tree.digest / "p_q-1.0.tar.gz").is_file()


@pytest.mark.parametrize(
    "info", [b"Name: other\nVersion: 1.0\n", b"Name: p_q\nVersion: 2.0\n", b"Name: p_q\nVersion: x\n"]
)
def test_an_sdist_that_says_it_is_another(info: bytes, tmp_path: Path) -> None:
    environ = {"ARCHPATCH_CACHE": str(tmp_path / "cache")}
    make_sdist(tmp_path, files={"p_q-1.0/setup.py": SETUP, "p_q-1.0/PKG-INFO": info})
    with pytest.raises(FetchFailed, match="says inside that it is"):
        prepare(parse_requirement("p_q"), tmp_path / "tree", settings=from_folder(tmp_path), environ=environ)
    assert not (tmp_path / "tree").exists()


# --- folders -----------------------------------------------------------------------------------

STALE = (
    "build/lib/a.o",
    "dist/p.whl",
    "p.egg-info/PKG-INFO",
    "p/__pycache__/a.pyc",
    "p/_C.cpython-311-x86_64-linux-gnu.so",
    ".git/HEAD",
    ".venv/x",
)
KEPT = ("setup.py", "csrc/a.cu", "csrc/build/tool.py", "csrc/dist/b.h", "p/__init__.py", "p/so.py")


def test_a_folder_is_copied_without_what_builds_left(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p", dict.fromkeys((*STALE, *KEPT, "wheelhouse/sm90/p.whl", ".nox/y"), "x"))
    before = sorted(project.rglob("*"))
    tree = prepare(FolderRequirement(project), tmp_path / "tree", leave_out=[project / "wheelhouse"])
    copied = {str(path.relative_to(tree.path)) for path in tree.path.rglob("*") if path.is_file()}
    assert copied == set(KEPT)
    assert sorted(project.rglob("*")) == before


def test_a_copy_inside_the_folder_does_not_copy_itself(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p", {"setup.py": SETUP})
    tree = prepare(FolderRequirement(project), project / "tmp" / "tree")
    assert {str(path.relative_to(tree.path)) for path in tree.path.rglob("*")} == {"tmp", "setup.py"}


def digest_of(project: Path, into: Path) -> str:
    return copy_tree(project, into)


def test_the_digest_is_of_names_modes_and_contents(tmp_path: Path) -> None:
    files = {"setup.py": "a", "csrc/b.cu": "b"}
    first = digest_of(make_project(tmp_path / "1", files), tmp_path / "c1")
    assert first == digest_of(make_project(tmp_path / "2", dict.fromkeys(STALE, "x") | files), tmp_path / "c2")
    others = [
        make_project(tmp_path / "3", {"setup.py": "a", "csrc/b.cu": "c"}),
        make_project(tmp_path / "4", {"setup.py": "a", "csrc/c.cu": "b"}),
        make_project(tmp_path / "5", {**files, "more": ""}),
        make_project(tmp_path / "6", files),
        make_project(tmp_path / "7", files),
    ]
    (others[3] / "setup.py").chmod(0o755)
    (others[4] / "link").symlink_to("setup.py")
    digests = [digest_of(other, tmp_path / f"d{number}") for number, other in enumerate(others)]
    assert len({first, *digests}) == 6


def test_times_and_other_bits_do_not_count(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p", {"setup.py": "a"})
    first = digest_of(project, tmp_path / "c1")
    (project / "setup.py").chmod(0o600)
    os.utime(project / "setup.py", (1, 1))
    (project / "empty").mkdir()
    assert digest_of(project, tmp_path / "c2") == first


def test_links_of_a_folder(tmp_path: Path) -> None:
    shared = make_project(tmp_path / "shared", {"a.h": "shared", "deep/b.h": "b"})
    project = make_project(tmp_path / "p", {"setup.py": SETUP, "csrc/a.cu": "x"})
    (project / "inside").symlink_to("csrc/a.cu")
    (project / "csrc" / "absolute").symlink_to(project / "setup.py")
    (project / "outside").symlink_to("../shared")
    (project / "file.h").symlink_to(shared / "a.h")
    (project / "dangling").symlink_to("nowhere")
    (project / "itself").symlink_to("itself")
    os.mkfifo(project / "pipe")
    copy_tree(project, tmp_path / "copy")
    copy = tmp_path / "copy"
    assert (copy / "inside").readlink() == Path("csrc/a.cu")
    assert (copy / "csrc" / "absolute").readlink() == Path("../setup.py")
    assert (copy / "outside" / "deep" / "b.h").read_text() == "b"
    assert not (copy / "outside").is_symlink()
    assert not (copy / "file.h").is_symlink()
    assert (copy / "dangling").is_symlink()
    assert (copy / "itself").is_symlink()
    assert not (copy / "pipe").exists()


def test_a_link_to_a_folder_above(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p", {"setup.py": SETUP})
    (project / "up").symlink_to("..")
    with pytest.raises(FetchFailed, match="folder above"):
        copy_tree(project, tmp_path / "elsewhere" / "copy")
    assert not (tmp_path / "elsewhere" / "copy").exists()


@pytest.mark.parametrize(
    ("files", "name", "version"),
    [
        ({}, "project", None),
        ({"pyproject.toml": '[project]\nname = "a"\nversion = "1"\n'}, "a", "1"),
        ({"pyproject.toml": '[project]\nname = "a"\ndynamic = ["version"]\n'}, "a", None),
        ({"setup.cfg": "[metadata]\nname = b\nversion = 2\n"}, "b", "2"),
        ({"setup.cfg": "[metadata]\nname = b\nversion = attr: b.__version__\n"}, "b", None),
        ({"setup.cfg": "[metadata]\nname = b\nversion = file: VERSION\n"}, "b", None),
        ({"setup.cfg": "[tool:pytest]\nx = %(y)s\n"}, "project", None),
        ({"pyproject.toml": "[tool.black]\n", "setup.cfg": "[metadata]\nname=b\n"}, "b", None),
        ({"pyproject.toml": 'project = "x"\n'}, "project", None),
        ({"PKG-INFO": "Name: c\nVersion: 3\n", "setup.cfg": "[metadata]\nname = b\n"}, "c", "3"),
        ({"PKG-INFO": "Name: UNKNOWN\nVersion: 0.0.0\n"}, "project", "0.0.0"),
    ],
)
def test_name_and_version_as_far_as_written(
    files: Mapping[str, str], name: str, version: str | None, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "project", {"setup.py": SETUP, **files})
    tree = prepare(FolderRequirement(project), tmp_path / "tree")
    assert (tree.name, tree.version) == (name, version)
    assert tree.digest.startswith("tree:")


@pytest.mark.parametrize("files", [{"pyproject.toml": "= ="}, {"setup.cfg": "no section\n"}, {"setup.cfg": b"\xff"}])
def test_broken_metadata_is_named(files: Mapping[str, str | bytes], tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", {"setup.py": SETUP, **files})
    with pytest.raises(FetchFailed, match=next(iter(files)).replace(".", r"\.")):
        prepare(FolderRequirement(project), tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_a_folder_without_setup_py(tmp_path: Path) -> None:
    with pytest.raises(NoSources, match=r"has no setup\.py"):
        prepare(FolderRequirement(make_project(tmp_path / "p", {"a.py": ""})), tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    project = make_project(tmp_path / "p", {"setup.py": SETUP})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(FetchFailed, match=r"p/setup\.py cannot be read"):
            copy_tree(project, tmp_path / "copy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", refuse)
        with pytest.raises(FetchFailed, match="p cannot be read"):
            copy_tree(project, tmp_path / "copy")


def test_project_names(tmp_path: Path) -> None:
    project = make_project(tmp_path / "folder", {"setup.cfg": "[metadata]\nname = b\n"})
    archive = make_sdist(tmp_path)
    odd = make_sdist(tmp_path, "main.zip")
    written = {
        "Mamba_ssm==1": "Mamba_ssm",
        str(project): "b",
        str(archive): "p-q",
        str(odd): "main",
        "git+https://host/a/repo.git@v1": "repo",
        "x @ git+https://host/a/repo.git@v1": "x",
    }
    assert {text: project_name(parse_requirement(text)) for text in written} == written
    assert project_name(project) == "b"
    assert project_name(tmp_path) == tmp_path.name


def test_pinning_asks_for_the_version(tmp_path: Path) -> None:
    make_sdist(tmp_path)
    make_sdist(tmp_path, "p_q-0.9.tar.gz")
    environ = {"ARCHPATCH_CACHE": str(tmp_path / "cache")}
    for text, pinned in {"p-q": "p-q==1.0", "p_q<1": "p_q==0.9"}.items():
        requirement = parse_requirement(text)
        assert isinstance(requirement, IndexRequirement)
        assert pin(requirement, settings=from_folder(tmp_path), environ=environ) == parse_requirement(pinned)


# --- git, without git --------------------------------------------------------------------------


class FakeGit:
    """Answers `git ARGUMENTS` by the subcommand; all others succeed and print nothing."""

    def __init__(self, answers: Mapping[str, Output]) -> None:
        self.answers = answers
        self.environment: Mapping[str, str] = {}

    def __call__(self, command: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> Output:
        self.environment = environment
        (cwd / "setup.py").write_bytes(SETUP)
        return self.answers.get(command[1], Output(status=0))


def fetch_git(run: FakeGit, into: Path) -> SourceTree:
    return prepare(GitRequirement(url="https://me:pw@host/repo", ref="v1"), into, run=run)


def test_git_is_run_without_prompts_and_local_files(tmp_path: Path) -> None:
    tags = Output(status=0, stdout="1234\trefs/tags/v1\n")
    git = FakeGit({"ls-remote": tags, "rev-parse": Output(status=0, stdout="c" * 40 + "\n")})
    requirement = GitRequirement(url="https://me:pw@host/repo.git", ref="v1")
    tree = prepare(requirement, tmp_path / "tree", run=git, environ={"GIT_DIR": "/hook/.git", "HOME": "/h"})
    assert (tree.name, tree.version, tree.digest) == ("repo", None, f"git:{'c' * 40}")
    assert "pw" not in tree.origin
    assert git.environment["GIT_TERMINAL_PROMPT"] == "0"
    assert git.environment["GIT_ALLOW_PROTOCOL"] == "https:http:ssh"
    assert git.environment["HOME"] == "/h"
    assert "GIT_DIR" not in git.environment


@pytest.mark.parametrize(
    ("answers", "kind", "part"),
    [
        (
            {"ls-remote": Output(status=128, stderr="fatal: unable to access 'https://me:pw@host/repo'")},
            FetchFailed,
            "unable",
        ),
        ({"ls-remote": Output(status=0, stdout="1\trefs/tags/v1.0\n1\trefs/tags/v9\n")}, FetchFailed, "v1.0"),
        ({"init": Output(status=128, stderr="fatal: write error: No space left on device")}, DiskFull, "no space"),
    ],
)
def test_git_failures(answers: Mapping[str, Output], kind: type[ArchpatchError], part: str, tmp_path: Path) -> None:
    with pytest.raises(kind) as caught:
        fetch_git(FakeGit(answers), tmp_path / "tree")
    assert part in str(caught.value)
    assert "pw" not in str(caught.value)
    assert not (tmp_path / "tree").exists()


def test_a_server_that_gives_no_single_commit_of_a_submodule(tmp_path: Path) -> None:
    ran: list[str] = []

    def run(command: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> Output:
        assert environment["GIT_TERMINAL_PROMPT"] == "0"
        (cwd / "setup.py").write_bytes(SETUP)
        (cwd / ".gitmodules").touch()
        ran.append(" ".join(command[1:]))
        return Output(status=1 if "--depth=1" in command and "submodule" in command else 0)

    prepare(GitRequirement(url="https://host/repo"), tmp_path / "tree", run=run)
    whole = "submodule --quiet update --init --recursive"
    assert [command for command in ran if command.startswith("submodule")] == [f"{whole} --depth=1", whole]


def test_without_git(tmp_path: Path) -> None:
    def missing(command: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> Output:
        raise FileNotFoundError(command[0], cwd, environment)

    with pytest.raises(ToolchainError, match="needs git"):
        prepare(GitRequirement(url="https://host/repo"), tmp_path / "tree", run=missing)
    assert not (tmp_path / "tree").exists()


def test_offline_fetches_no_repository(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="--offline"):
        prepare(GitRequirement(url="https://host/repo"), tmp_path / "tree", offline=True)
