"""Fetch a tag, branch or commit of a git repository with the `git` program, without its history."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from archpatch.builder.commands import Runner, run_command
from archpatch.builder.requirement import GitRequirement, redact_url
from archpatch.errors import ArchpatchError, DiskFull, FetchFailed, ToolchainError
from archpatch.storage.atomic import disk_errors

__all__ = ["clone"]

_COMMIT = re.compile(r"[0-9a-f]{7,64}", re.IGNORECASE)
_FULL_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.IGNORECASE)

#: What a git hook, or a session started by one, sets: git would take it for the repository to work on
#: (`git rev-parse --local-env-vars`).
_LOCAL_VARIABLES: Final = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
)

_NEAR_TAGS = 5


def clone(
    requirement: GitRequirement,
    folder: Path,
    *,
    run: Runner = run_command,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Check out what `requirement` names, submodules too, in the new folder `folder`; return the commit in full.

    A tag wins over a branch of the same name, as in git. Nobody is asked for a password. Raises `ToolchainError`
    without git, `FetchFailed` for a repository that cannot be reached or has no such ref, and `DiskFull`; then
    `folder` is not left.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True)
    git = _Git(requirement, folder, run, _environment(requirement, environ))
    try:
        return _check_out(requirement, git)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@dataclass(frozen=True, slots=True)
class _Git:
    """git in one folder, for one requirement."""

    requirement: GitRequirement
    folder: Path
    run: Runner
    environment: Mapping[str, str]

    def __call__(self, *arguments: str) -> str:
        """Return what `git ARGUMENTS` prints; raises for any failure."""
        status, printed = self.attempt(*arguments)
        if status != 0:
            raise self._failure(arguments, printed)
        return printed

    def attempt(self, *arguments: str) -> tuple[int, str]:
        """Return git's exit status, and what it prints: the errors, where it failed."""
        try:
            output = self.run(("git", *arguments), cwd=self.folder, environment=self.environment)
        except FileNotFoundError:
            raise ToolchainError(
                f"{self.requirement} needs git, which is not on PATH",
                remedy="Install it (apt-get install git, dnf install git), or name an sdist or a folder.",
            ) from None
        return output.status, output.stdout if output.status == 0 else output.stderr

    def _failure(self, arguments: Sequence[str], printed: str) -> ArchpatchError:
        if "No space left on device" in printed or "Disk quota exceeded" in printed:
            return DiskFull(
                f"no space is left in {self.folder} for {self.requirement}",
                remedy="Free some, or point TMPDIR elsewhere.",
            )
        lines = [line.strip() for line in redact_url(printed).splitlines() if line.strip()]
        said = "; ".join(lines[-3:]) or "it says nothing"
        return FetchFailed(
            f"{self.requirement}: git {arguments[0]} failed: {said}",
            remedy=f"Check the URL and your access to it: git ls-remote {redact_url(self.requirement.url)}",
        )


def _environment(requirement: GitRequirement, environ: Mapping[str, str]) -> dict[str, str]:
    environment = {name: value for name, value in environ.items() if name not in _LOCAL_VARIABLES}
    # A submodule of a repository of the network must not read this machine's files (CVE-2022-39253).
    local = ":file" if requirement.url.startswith("file:") else ""
    environment.update(
        GIT_TERMINAL_PROMPT="0", SSH_ASKPASS_REQUIRE="never", GIT_ALLOW_PROTOCOL=f"https:http:ssh{local}", LC_ALL="C"
    )
    # A server that has stopped sending ends the fetch after a minute, as an index would.
    environment.setdefault("GIT_HTTP_LOW_SPEED_LIMIT", "1000")
    environment.setdefault("GIT_HTTP_LOW_SPEED_TIME", "60")
    return environment


def _check_out(requirement: GitRequirement, git: _Git) -> str:
    git("init", "--quiet")
    git("remote", "add", "origin", requirement.url)
    tags, heads = _list_refs(git)
    if requirement.ref is None:
        git("fetch", "--quiet", "--depth=1", "origin", "HEAD")
        wanted = "FETCH_HEAD"
    else:
        wanted = _fetch_ref(git, requirement.ref, tags=tags, heads=heads)
    git("checkout", "--quiet", "--detach", wanted)
    if (git.folder / ".gitmodules").is_file():
        _update_submodules(git)
    return git("rev-parse", "HEAD").strip()


def _list_refs(git: _Git) -> tuple[set[str], set[str]]:
    """Return the names of the repository's tags and branches."""
    names = [line.partition("\t")[2] for line in git("ls-remote", "--refs", "--tags", "--heads", "origin").splitlines()]
    tags = {name.removeprefix("refs/tags/") for name in names if name.startswith("refs/tags/")}
    return tags, {name.removeprefix("refs/heads/") for name in names if name.startswith("refs/heads/")}


def _fetch_ref(git: _Git, ref: str, *, tags: set[str], heads: set[str]) -> str:
    """Fetch `ref` and return the name by which it can be checked out."""
    if ref in tags:
        # Under its own name: setuptools_scm reads the version from it.
        git("fetch", "--quiet", "--depth=1", "origin", f"+refs/tags/{ref}:refs/tags/{ref}")
        return f"refs/tags/{ref}"
    if ref in heads or ref.startswith("refs/"):
        git("fetch", "--quiet", "--depth=1", "origin", f"refs/heads/{ref}" if ref in heads else ref)
        return "FETCH_HEAD"
    if _COMMIT.fullmatch(ref) and _fetch_commit(git, ref):
        return ref
    near = get_close_matches(ref, tags, n=_NEAR_TAGS, cutoff=0.5)
    raise FetchFailed(
        f"{git.requirement}: the repository has no tag, branch or commit {ref!r}",
        remedy=f"Its nearest tags are {', '.join(near)}." if near else f"It has {len(tags)} tags, none like it.",
    )


def _fetch_commit(git: _Git, commit: str) -> bool:
    """Fetch a commit, alone where the server allows it and the name is whole, else with all there is."""
    if _FULL_COMMIT.fullmatch(commit) and git.attempt("fetch", "--quiet", "--depth=1", "origin", commit)[0] == 0:
        return True
    git("fetch", "--quiet", "--tags", "origin", "+refs/heads/*:refs/remotes/origin/*")
    return git.attempt("rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}")[0] == 0


def _update_submodules(git: _Git) -> None:
    update = ("submodule", "--quiet", "update", "--init", "--recursive")
    # Some servers give no commit that is not the head of a branch; then the whole history has to come.
    if git.attempt(*update, "--depth=1")[0] != 0:
        git(*update)
