"""The key of a CI's cache: told without torch, network or source, and what made it change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commandline import CommandLine

from archpatch.builder.interpreter import probe

pytestmark = pytest.mark.integration

MAMBA, CONV = "mamba_ssm==2.3.2.post1", "causal_conv1d==1.7.0"


def key(line: CommandLine, *arguments: object) -> str:
    answer = line("key", "wheelhouse", *arguments)
    assert answer.status == 0, answer.stderr
    return answer.stdout.strip()


def test_it_starts_with_what_a_person_reads(archpatch: CommandLine) -> None:
    told = key(archpatch, MAMBA, CONV, "--gpu", "h200", "--torch", "2.14.1+cu130")
    assert re.fullmatch(r"archpatch-wheelhouse-h200-torch2\.14\.1-cu130-cp\d+-[0-9a-f]{16}", told)
    listed = key(archpatch, MAMBA, "--arch", "8.0;9.0+PTX", "--torch", "2.14.1+cu130")
    assert listed.startswith("archpatch-wheelhouse-sm80-sm90-ptx90-torch2.14.1-cu130-cp")
    assert key(archpatch, CONV, MAMBA, "--gpu", "h200", "--torch", "2.14.1+cu130") == told


def test_the_installed_torch_and_the_one_named_give_the_same(archpatch: CommandLine) -> None:
    torch = probe().torch
    assert torch is not None
    told = key(archpatch, MAMBA, "--gpu", "h200")
    assert key(archpatch, MAMBA, "--gpu", "h200", "--torch", torch.version) == told


def test_a_ci_gets_lines_for_its_outputs(archpatch: CommandLine) -> None:
    told = key(archpatch, MAMBA, "--gpu", "l4")
    assert key(archpatch, MAMBA, "--gpu", "l4", "--format", "github").splitlines() == [
        f"key={told}",
        "restore-keys<<END",
        told[:-16],
        "END",
    ]


def test_each_input_is_listed_and_a_miss_explained(archpatch: CommandLine) -> None:
    extra = archpatch.folder / "noxfile.py"
    extra.write_text("one\n")
    options = (MAMBA, "--gpu", "h200", "--extra", "image=sha256:1", "--extra-file", extra)
    before = archpatch("key", "wheelhouse", *options, "--json")
    assert before.json["inputs"]["mamba-ssm.version"] == "2.3.2.post1"
    assert before.json["inputs"]["extra.image"] == "sha256:1"
    assert before.json["restore_prefixes"] == [before.json["key"][:-16]]
    old = archpatch.folder / "old.json"
    old.write_text(before.stdout)
    assert "the inputs are those of" in archpatch("key", "wheelhouse", *options, "--against", old).stderr
    extra.write_text("two\n")
    after = archpatch("key", "wheelhouse", *options, "--strict", "--against", old, "--json")
    assert sorted(after.json["changes"]) == ["extra.file.noxfile.py", "strict"]
    assert after.json["changes"]["strict"] == {"before": "False", "after": "True"}
    assert "archpatch: strict was False, is True" in after.stderr
    assert after.json["key"] != before.json["key"]


def test_a_folder_counts_by_its_content(archpatch: CommandLine, mini: Path) -> None:
    told = key(archpatch, mini, "--gpu", "h200")
    assert key(archpatch, mini, "--gpu", "h200") == told
    (mini / "csrc" / "add.cu").write_text("// another\n")
    assert key(archpatch, mini, "--gpu", "h200") != told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((MAMBA, "--gpu", "h200", "--torch", "2.14.1"), "--torch '2.14.1' does not tell the version and the CUDA"),
        ((MAMBA, "--gpu", "h200", "--extra", "image"), "--extra 'image' is no NAME=VALUE"),
        ((MAMBA, "--gpu", "h200", "--extra-file", "nowhere"), "nowhere"),
        ((MAMBA, "--gpu", "h200", "--against", "nowhere"), "nowhere does not exist"),
        (("--torch", "2.14.1+cu130"), "plan"),
    ],
)
def test_a_mistake_is_said(archpatch: CommandLine, arguments: tuple[str, ...], message: str) -> None:
    answer = archpatch("key", "wheelhouse", *arguments)
    assert (answer.status, answer.stdout) == (2, "")
    assert message in answer.stderr


def test_without_a_toolkit_none_is_fetched(archpatch: CommandLine) -> None:
    options = (MAMBA, "--gpu", "h200", "--torch", "2.14.1+cu130", "--toolkit", "pypi", "--json")
    cache = archpatch.folder / "cache"
    told = archpatch("key", "wheelhouse", *options, environ={"ARCHPATCH_CACHE": str(cache)})
    assert (told.status, told.json["inputs"]["nvcc"]) == (0, "none")
    assert not cache.exists()


def test_it_imports_no_torch_and_opens_no_socket(archpatch: CommandLine) -> None:
    watched = ("torch", "libcst", "unearth", "httpx2", "rich")
    told, imported = archpatch.inside("key", "wheelhouse", MAMBA, CONV, "--gpu", "h200", watched=watched)
    assert (told["schema"], imported) == ("archpatch.key-wheelhouse/1", [])
