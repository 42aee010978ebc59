"""The command line in this process: what it prints, where, and its exit status."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from commands import commands, options_of
from libraries import container, library, write_wheel

from archpatch.cli.main import cli, run
from archpatch.cli.settings import Settings

MINI = Path(__file__).parents[1] / "fixtures" / "cuda" / "mini"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the miniature project, in a folder with nothing set."""
    monkeypatch.chdir(tmp_path)
    for name in ("TORCH_CUDA_ARCH_LIST", "ARCHPATCH_ARCH", "ARCHPATCH_GPU", "ARCHPATCH_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".git").mkdir()
    return Path(shutil.copytree(MINI, tmp_path / "mini"))


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def _names(command: click.Command) -> Iterator[str]:
    """Yield the long name of each option that takes a value."""
    options = {option.name: option for option in options_of(command).values()}
    yield from (max(each.opts, key=len) for each in options.values() if not each.is_flag and not each.is_eager)


def pairs(setup: Path) -> list[str]:
    return [line.split('"')[1] for line in setup.read_text().splitlines() if "arch=compute" in line]


def test_patch_rewrites_in_place_and_says_what_it_did(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = printed(capsys, "patch", project, "--arch", "9.0")
    assert (status, out) == (0, "")
    assert pairs(project / "setup.py") == ["arch=compute_90,code=sm_90"]
    assert "rewritten for 9.0 (from --arch)" in err
    assert "kept    compute_90,sm_90: 9.0 was asked for" in err
    assert printed(capsys, "patch", project, "--arch", "9.0")[0] == 0


def test_patch_diff_goes_to_stdout_and_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (project / "setup.py").read_bytes()
    status, out, _ = printed(capsys, "patch", project / "setup.py", "--gpu", "l4", "--diff")
    assert status == 0
    assert out.startswith("--- a/setup.py\n+++ b/setup.py\n")
    assert '-cc_flag.append("arch=compute_90,code=sm_90")\n' in out
    assert '-cc_flag.append("arch=compute_80,code=sm_80")\n' not in out
    assert (project / "setup.py").read_bytes() == before


def test_patch_check_exits_1_while_there_is_something_to_do(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "patch", project, "--arch", "9.0", "--check")[0] == 1
    assert len(pairs(project / "setup.py")) == 4
    printed(capsys, "patch", project, "--arch", "9.0")
    assert printed(capsys, "patch", project, "--arch", "9.0", "--check")[0] == 0


def test_patch_json_is_one_object(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = printed(capsys, "patch", project, "--arch", "9.0+PTX", "--json", "--check")
    told: dict[str, Any] = json.loads(out)
    assert status == 1
    assert (told["schema"], told["outcome"]) == ("archpatch.patch/1", "rewritten")
    assert told["request"] == {"archs": ["9.0+PTX"], "gpus": [], "source": "--arch", "on_missing": "error"}
    actions = {tuple(pair["pair"]): pair["action"] for pair in told["pairs"]}
    assert actions["compute_90", "compute_90"] == "added"
    assert actions["compute_75", "sm_75"] == "dropped"
    assert told["refusals"] == []


def test_patch_explains_on_stdout_and_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup = project / "setup.py"
    setup.write_text(
        setup.read_text().replace("cc_flag = []", 'cc_flag = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in ()]')
    )
    before = setup.read_bytes()
    status, out, _ = printed(capsys, "patch", project, "--arch", "9.0", "--explain")
    assert status == 0
    assert "rewritten for 9.0 (from --arch)" in out
    assert re.search(r"line 15: guarded f-string: ", out)
    assert "line 20: guarded compute_90,sm_90: " in out
    assert setup.read_bytes() == before
    told = json.loads(printed(capsys, "patch", project, "--arch", "9.0", "--json", "--check")[1])
    assert {pair["action"] for pair in told["pairs"]} == {"guarded"}
    assert [(source["line"], source["shape"]) for source in told["sources"]][:1] == [(15, "f-string")]


def test_patch_without_a_request_changes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (project / "setup.py").read_bytes()
    status, _, err = printed(capsys, "patch", project)
    assert status == 0
    assert "nothing is asked for" in err
    assert (project / "setup.py").read_bytes() == before


def test_patch_that_matches_nothing_exits_3_and_writes_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (project / "setup.py").read_bytes()
    status, out, err = printed(capsys, "patch", project, "--arch", "8.9")
    assert (status, out) == (3, "")
    assert "sm_80 would run on a GPU of 8.9" in err
    assert (project / "setup.py").read_bytes() == before


def test_the_list_of_the_environment_is_heard(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5")
    assert "for 7.5 (from env)" in printed(capsys, "patch", project, "--diff")[2]
    err = printed(capsys, "patch", project, "--gpu", "h200", "--diff")[2]
    assert "warning: --gpu is used; TORCH_CUDA_ARCH_LIST (7.5) is not." in err
    monkeypatch.setenv("ARCHPATCH_ARCH", "8.0")
    assert "for 8.0 (from env)" in printed(capsys, "patch", project, "--diff")[2]
    assert "for h200 (from --gpu)" in printed(capsys, "patch", project, "--gpu", "h200", "--diff")[2]


def test_the_projects_settings_come_last(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text('[tool.archpatch]\ngpu = "l4"\non-missing = "nearest"\n')
    assert "for l4 (from config)" in printed(capsys, "patch", project, "--diff")[2]
    assert "for 9.0 (from --arch)" in printed(capsys, "patch", project, "--arch", "9.0", "--diff")[2]


def test_a_command_of_a_group_takes_its_settings_too(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text('[tool.archpatch]\ngpu = "h300"\nwheelhouse = "nope"\n')
    assert "'h300' is no known GPU type" in printed(capsys, "key", "wheelhouse", "mini==1.0")[2]
    # What is built for does not choose what is looked at.
    assert f"{project.parent / 'nope'} is no folder" in printed(capsys, "wheelhouse", "list")[2]
    cache = cli.get_command(click.Context(cli), "cache")
    assert set(Settings(None).defaults_for(cache)["cache"]["env"]) == {"wheelhouse"}


@pytest.mark.usefixtures("project")
def test_both_variables_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHPATCH_ARCH", "9.0")
    monkeypatch.setenv("ARCHPATCH_GPU", "l4")
    assert "ARCHPATCH_ARCH and ARCHPATCH_GPU: " in printed(capsys, "patch", "mini")[2]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["patch", "mini", "--arch", "9"], 2, "Write 9.0; in YAML"),
        (["patch", "mini", "--arch", "9.0", "--gpu", "l4"], 2, "use one of the two"),
        (["patch", "mini", "--gpu", "h300"], 2, "Did you mean"),
        (["patch", "mini", "--on-missing", "maybe"], 2, "'maybe' is not one of"),
        (["patch", "nowhere/setup.py", "--arch", "9.0"], 2, "nowhere/setup.py"),
        (["patch", "mini_ssm", "--arch", "9.0"], 2, "name its folder with -o"),
        (["patch", "./mini", "--arch", "9.0", "-o", "out"], 2, "is rewritten in place"),
        (["patch", "x==1", "--arch", "9.0", "-o", "mini"], 2, "is there already"),
        (["--config", "nope.toml", "patch", "mini", "--arch", "9.0"], 2, "nope.toml"),
        (["inspect"], 2, "Name a path, or --installed NAME"),
        (["inspect", "nope.whl"], 2, "nope.whl does not exist"),
        (["inspect", "mini/setup.py"], 2, "no wheel and no ELF file"),
        (["inspect", "--installed", "no-such-package"], 2, "not installed"),
        (["inspect", "mini", "--runs-on", "h300"], 2, "no known GPU type"),
        (["slim", "nope.whl", "--arch", "9.0"], 2, "nope.whl does not exist"),
        (["slim", "nope.so", "--arch", "9.0"], 2, "nope.so does not exist"),
        (["slim", "mini/setup.py", "--arch", "9.0", "-o", "out"], 2, "no wheel and no ELF file"),
        (["slim", "mini/setup.py"], 2, "nothing says what to keep"),
        (["slim", "mini/setup.py", "--arch", "9.0", "--torch", "2.14.1+cu130"], 2, "Name --wheelhouse too"),
        (["slim", "mini/setup.py", "--arch", "9.0", "--wheelhouse", "w"], 2, "it cannot be filed"),
        (["wheelhouse", "list", "--wheelhouse", "nope"], 2, "nope is no folder"),
        (["build", "mini", "--arch", "9.0", "--python", "nopython"], 2, "there is no such program"),
        (["key", "wheelhouse", "--gpu", "l4"], 2, "--gpu is for packages that are named"),
        (["key", "wheelhouse", "--arch", "9.0"], 2, "Name packages too, or leave out --arch."),
        (["patch", "mini", "--gpu", "h300"], 2, "Or name archs with --arch."),
        (
            ["patch", "mini", "--arch", "9.0", "--gpu", "l4"],
            2,
            "--arch and --gpu: an arch list and a GPU type are both",
        ),
        (["plan", "--config", "x.toml"], 2, "--config comes before the command"),
        (["frobnicate"], 2, "No such command"),
        ([], 2, ""),
    ],
)
def test_a_mistake_is_told_without_a_traceback(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, says: str
) -> None:
    got, _, err = printed(capsys, *arguments)
    assert got == status, err
    assert says in err
    assert project.is_dir()


_TAKING_VALUES = [(path, name) for path, command in commands() for name in _names(command)]


@pytest.mark.parametrize(("path", "option"), _TAKING_VALUES)
def test_an_option_with_an_empty_value_is_a_mistake(
    project: Path, capsys: pytest.CaptureFixture[str], path: tuple[str, ...], option: str
) -> None:
    status, out, err = printed(capsys, *path, option, "", "x")
    assert (status, out) == (2, "")
    assert err.startswith(f"archpatch: {option} is empty\n")
    assert project.is_dir()


@pytest.mark.usefixtures("project")
def test_an_empty_variable_is_unset(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ARCHPATCH_WHEELHOUSE", "ARCHPATCH_GPU", "ARCHPATCH_ARCH", "ARCHPATCH_CONFIG"):
        monkeypatch.setenv(name, "")
    assert printed(capsys, "wheelhouse", "path") == (0, f"{Path('wheelhouse').absolute()}\n", "")
    assert "nothing is asked for" in printed(capsys, "patch", "mini")[2]


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "mini", "--runs-on", "h300"),
        ("wheelhouse", "list", "--gpu", "h300", "--wheelhouse", "mini"),
        ("cache", "env", "--root", "r", "--gpu", "h300"),
    ],
)
def test_an_option_that_a_command_lacks_is_no_remedy(
    project: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    status, _, err = printed(capsys, *command)
    assert (status, "h300" in err, "--arch" in err) == (2, True, False)
    assert project.is_dir()


def test_a_broken_setting_is_told_with_its_place(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text("[tool.archpatch]\narch = 9.0\n")
    status, _, err = printed(capsys, "patch", project)
    assert status == 2
    assert "tool.archpatch.arch" in err


def test_inspect_lists_and_judges(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = printed(capsys, "inspect", project, "--json", "--runs-on", "h200")
    assert status == 1
    told = json.loads(out)
    assert (told["schema"], told["files"]) == ("archpatch.inspect/1", [])
    assert told["runs_on"] == {"gpu": "h200", "arch": "9.0", "verdict": "no", "via": []}
    status, out, err = printed(capsys, "inspect", project)
    assert (status, "no ELF file is in it" in err) == (0, True)


@pytest.fixture
def wide(project: Path) -> Path:
    """A wheel with two containers, for any Python."""
    units = container("sm_80", "sm_90", "compute_90"), container("sm_75")
    name = "pkg-1.0-py3-none-manylinux_2_24_x86_64.whl"
    return write_wheel(project.parent / name, {"pkg/_C.so": library(*units).data})


SLIM = "pkg-1.0+sm75.sm90-py3-none-manylinux_2_24_x86_64.whl"


def test_slim_prints_the_wheel_and_says_what_became_of_each_file(
    wide: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = printed(capsys, "slim", wide, "--arch", "9.0", "-o", "deep/out")
    assert (status, out) == (0, f"{wide.parent}/deep/out/{SLIM}\n")
    assert "pkg/_C.so: keeps sm_75, sm_90; loses sm_80, compute_90: 0.0 MB" in err
    assert "1 of its 2 containers hold nothing for the request, and stay as they are" in err
    assert re.search(r"pkg-1\.0-.*: 0\.0 MB before, 0\.0 MB now", err)
    assert printed(capsys, "slim", wide, "--gpu", "h200")[:2] == (0, f"{wide.parent}/{SLIM}\n")


def test_slim_json_is_one_object(wide: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = printed(capsys, "slim", wide, "--gpu", "h200", "--json")
    told = json.loads(out)
    assert (status, told["schema"], told.pop("seconds") < 60) == (0, "archpatch.slim/1", True)
    (file,) = told["files"]
    assert file.pop("saved") > 0
    assert file == {
        "path": "pkg/_C.so",
        "kept": ["sm_75", "sm_90"],
        "dropped": ["sm_80", "compute_90"],
        "containers": 2,
        "idle": 1,
    }
    assert told["path"] == f"{wide.parent}/{SLIM}"
    assert told["size"] == (wide.parent / SLIM).stat().st_size
    assert (told["record"], told["device_code"]) == (None, ["sm_75", "sm_90"])
    assert told["request"] == {"archs": [], "gpus": ["h200"], "source": "--gpu", "on_missing": "nearest"}


def test_slim_files_where_it_is_told_to_and_nowhere_else(
    wide: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHPATCH_WHEELHOUSE", str(wide.parent / "of the environment"))
    Path("pyproject.toml").write_text('[tool.archpatch]\nwheelhouse = "of the settings"\n')
    assert printed(capsys, "slim", wide, "--arch", "9.0", "-o", "out")[1] == f"{wide.parent}/out/{SLIM}\n"
    filing = ("--wheelhouse", "house", "--torch", "2.14.1+cu130")
    status, out, _ = printed(capsys, "slim", wide, "--gpu", "h200", *filing)
    assert (status, out) == (0, f"{wide.parent}/house/sm75-sm90/torch2.14.1-cu130/{SLIM}\n")
    assert printed(capsys, "wheelhouse", "verify", "--wheelhouse", "house")[0] == 0
    assert (Path("house/gpu/h200/torch2.14.1-cu130") / SLIM).is_symlink()
    assert not list(wide.parent.glob("of the *"))
    told = json.loads(printed(capsys, "slim", wide, "--gpu", "h200", *filing, "-o", "out2", "--json")[1])
    assert told["record"] == f"{told['path']}.json"
    assert (Path("out2") / SLIM).is_file()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--arch", "8.9"], 3, "sm_80 would run on a GPU of 8.9: take it with --on-missing nearest."),
        (["--arch", "9.0;12.0", "--strict"], 3, "no matching arch for 12.0: it holds"),
        (["--arch", "9.0", "--on-missing", "add"], 2, "nothing can be added"),
        (["--arch", "9.0", "--wheelhouse", "w"], 2, "nothing says which torch"),
    ],
)
def test_slim_that_cannot_leaves_nothing(
    wide: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, says: str
) -> None:
    before = sorted(path.name for path in wide.parent.iterdir())
    got, out, err = printed(capsys, "slim", wide, *arguments)
    assert (got, out) == (status, ""), err
    assert says in err
    assert sorted(path.name for path in wide.parent.iterdir()) == before


def test_slim_leaves_out_what_is_known_bad(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = write_wheel(
        project.parent / "causal_conv1d-1.0-py3-none-linux_x86_64.whl",
        {"_C.so": library(container("sm_100", "sm_103")).data},
    )
    for options, codes in (((), ["sm_100"]), (("--allow-known-bad",), ["sm_103"])):
        out = printed(capsys, "slim", wheel, "--gpu", "b300", "--json", "-o", "out", *options)[1]
        assert json.loads(out)["device_code"] == codes


def test_slim_cuts_one_library(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    relocatable = library(container("sm_80", "sm_90"), relocatable=[container("sm_80", "sm_90")]).data
    (project.parent / "_C.so").write_bytes(relocatable)
    status, _, err = printed(capsys, "slim", "_C.so", "--arch", "9.0", "-o", "out")
    assert (status, "--allow-relocatable" in err) == (3, True)
    status, out, _ = printed(capsys, "slim", "_C.so", "--arch", "9.0", "-o", "out", "--allow-relocatable")
    assert (status, out) == (0, f"{project.parent}/out/_C.so\n")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["-h"], ["patch", "--help"], ["build", "-h"], ["slim", "-h"], ["wheelhouse", "list", "-h"]],
)
def test_help_is_there(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    status, out, _ = printed(capsys, *arguments)
    assert status == 0
    assert out.startswith("Usage: archpatch")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--version")[1].startswith("archpatch, version ")


@pytest.mark.integration
def test_the_version_needs_neither_libcst_nor_torch_nor_rich() -> None:
    code = (
        "import sys; from archpatch.cli.main import run; run(['--version']); print([n for n in %r if n in sys.modules])"
    )
    names = ("libcst", "torch", "rich", "unearth", "elftools", "build")
    done = subprocess.run([sys.executable, "-c", code % (names,)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
