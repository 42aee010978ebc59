from __future__ import annotations

from pathlib import Path

import pytest

from archpatch.config import Config, find_config, load_config
from archpatch.errors import ConfigError, MissingFile
from archpatch.recipes.recipe import find_recipe


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def project(folder: Path, body: str) -> Path:
    return write(folder / "pyproject.toml", f"[project]\nname = 'p'\n[tool.archpatch]\n{body}\n")


# --- where the file is -------------------------------------------------------------------------


def test_the_nearest_pyproject_with_the_table_is_read(tmp_path: Path) -> None:
    path = project(tmp_path, "strict = true")
    write(tmp_path / "package" / "pyproject.toml", "[project]\nname = 'q'\n[tool.ruff]\nline-length = 120\n")
    folder = tmp_path / "package" / "src"
    folder.mkdir()
    assert find_config(folder) == Config(path=path, values={"strict": True})


def test_a_nearer_table_hides_a_farther_one(tmp_path: Path) -> None:
    project(tmp_path, "strict = true")
    nearer = project(tmp_path / "package", "")
    assert find_config(tmp_path / "package") == Config(path=nearer)


@pytest.mark.parametrize("is_worktree", [False, True])
def test_the_search_ends_at_the_checkout(tmp_path: Path, *, is_worktree: bool) -> None:
    project(tmp_path, "strict = true")
    checkout = tmp_path / "checkout"
    (checkout / "src").mkdir(parents=True)
    if is_worktree:  # There, .git is a file.
        write(checkout / ".git", "gitdir: elsewhere\n")
    else:
        (checkout / ".git").mkdir()
    assert find_config(checkout / "src") == Config()
    assert find_config(tmp_path).values == {"strict": True}


def test_the_checkouts_own_folder_is_searched(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    project(tmp_path, "strict = true")
    assert find_config(tmp_path).values == {"strict": True}


def test_with_no_pyproject_up_to_the_root_nothing_is_set() -> None:
    assert find_config(Path("/no-such-folder")) == Config()


def test_a_relative_start_means_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project(tmp_path, "strict = true")
    monkeypatch.chdir(tmp_path)
    assert load_config(Path()) == Config(path=path, values={"strict": True})


@pytest.mark.parametrize("text", ["strict = true\n", "[tool.archpatch]\nstrict = true\n[project]\nname = 'p'\n"])
def test_a_named_file_may_hold_the_settings_at_either_place(tmp_path: Path, text: str) -> None:
    project(tmp_path, "offline = true")
    path = write(tmp_path / "other.toml", text)
    assert load_config(tmp_path, config=path) == Config(path=path, values={"strict": True})


def test_a_named_file_must_be_there_and_hold_settings(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"absent\.toml does not exist"):
        load_config(tmp_path, config=tmp_path / "absent.toml")
    path = write(tmp_path / "other.toml", "[tool.ruff]\n")
    with pytest.raises(ConfigError, match=r"other\.toml has no \[tool\.archpatch\] table"):
        load_config(tmp_path, config=path)


def test_a_folder_is_no_settings_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="cannot be read"):
        load_config(tmp_path, config=tmp_path)


def test_a_file_that_is_not_toml_is_named_with_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "pyproject.toml", "[tool.archpatch]\nstrict = yes\n")
    with pytest.raises(ConfigError) as error:
        find_config(tmp_path)
    assert str(path) in error.value.message
    assert "line 2" in error.value.message


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"pyproject\.toml is not UTF-8"):
        find_config(tmp_path)


# --- what it says ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ("", {}),
        ("arch = '8.0;9.0+PTX'", {"arch": "8.0;9.0+PTX"}),
        ("arch = ['8.0', '9.0+PTX']", {"arch": "8.0;9.0+PTX"}),
        ("gpu = 'h200'", {"gpu": ("h200",)}),
        ("gpu = ['h200', 'l4']", {"gpu": ("h200", "l4")}),
        ("on-missing = 'nearest'", {"on_missing": "nearest"}),
        ("strict = true\noffline = false", {"strict": True, "offline": False}),
        ("local-version = false\nreplace = false", {"local_version": False, "replace": False}),
        ("allow-known-bad = true\nmax-jobs = 4", {"allow_known_bad": True, "max_jobs": 4}),
        ("python = 'python3.12'", {"python": "python3.12"}),
        ("toolkit = 'auto'", {"toolkit": "auto"}),
        ("toolkit = 'pypi'", {"toolkit": "pypi"}),
        ("wheelhouse = '/srv/wheels'", {"wheelhouse": "/srv/wheels"}),
    ],
)
def test_settings_are_keyed_by_option_name(tmp_path: Path, body: str, values: dict[str, object]) -> None:
    path = project(tmp_path, body)
    assert find_config(tmp_path) == Config(path=path, values=values)


@pytest.mark.parametrize(
    ("body", "name", "expected"),
    [
        ("wheelhouse = 'wheels'", "wheelhouse", "{folder}/wheels"),
        ("wheelhouse = '~/wheels'", "wheelhouse", "{home}/wheels"),
        ("toolkit = 'cuda-13'", "toolkit", "{folder}/cuda-13"),
        ("python = '.venv/bin/python'", "python", "{folder}/.venv/bin/python"),
        ("python = '/usr/bin/python3'", "python", "/usr/bin/python3"),
    ],
)
def test_a_path_starts_at_the_files_folder(tmp_path: Path, body: str, name: str, expected: str) -> None:
    project(tmp_path, body)
    below = tmp_path / "deep" / "down"
    below.mkdir(parents=True)
    assert find_config(below).values[name] == expected.format(folder=tmp_path, home=Path.home())


def test_recipes_reach_the_loader(tmp_path: Path) -> None:
    project(tmp_path, "strict = true\n[tool.archpatch.recipes.my_ext]\nlocal-version = 'MY_LOCAL'")
    config = find_config(tmp_path)
    assert find_recipe("my-ext", config.recipes).local_version == "MY_LOCAL"
    assert config.values == {"strict": True}


@pytest.mark.parametrize(
    ("body", "message", "remedy"),
    [
        ("on-missing = 'neares'", "on-missing: 'neares' is not one of error, nearest, add", "Did you mean 'nearest'?"),
        ("on-missing = 'xyz'", "on-missing: 'xyz' is not one of error, nearest, add", None),
        ("on_missing = 'add'", "on_missing: no such setting", "Did you mean on-missing?"),
        ("jobs = 4", "jobs: no such setting", "Did you mean max-jobs?"),
        ("'a b' = 4", '"a b": no such setting', "Allowed are: allow-known-bad, arch, compress-mode, gpu,"),
        ("arch = 9.0", "arch: 9.0 is not a string", 'Put it into quotes: "9.0".'),
        ("arch = 90", "arch: 90 is not a string", 'Put it into quotes: "90".'),
        ("arch = ['8.0', 10.0]", "arch: 10.0 is not a string", 'Put it into quotes: "10.0".'),
        ("arch = []", "arch: is empty", "leave the setting out"),
        ("arch = ''", "arch: is empty", "leave the setting out"),
        ("gpu = { a = 1 }", "gpu: a table is not a string", None),
        ("gpu = 'h200'\narch = '9.0'", "gpu: excludes tool.archpatch.arch", "Keep one of the two."),
        ("strict = 'yes'", "strict: 'yes' is not true or false", None),
        ("strict = 1", "strict: 1 is not true or false", None),
        ("max-jobs = '4'", "max-jobs: '4' is not an integer", None),
        ("max-jobs = true", "max-jobs: true is not an integer", None),
        ("max-jobs = 0", "max-jobs: 0 is less than 1", "Write 1 or more"),
        ("wheelhouse = 1", "wheelhouse: 1 is not a string", 'Put it into quotes: "1".'),
        ("recipes = 'a.toml'", "recipes: 'a.toml' is not a table", None),
        ("recipes.mamba_ssm.gti = 1", "recipes.mamba_ssm.gti: no such setting", "Did you mean git?"),
    ],
)
def test_a_mistake_names_the_file_the_setting_and_the_remedy(
    tmp_path: Path, body: str, message: str, remedy: str | None
) -> None:
    path = project(tmp_path, body)
    with pytest.raises(ConfigError) as error:
        find_config(tmp_path)
    assert error.value.message == f"{path}: tool.archpatch.{message}"
    assert (remedy in (error.value.remedy or "")) if remedy else error.value.remedy is None


def test_at_the_top_level_a_setting_has_no_prefix(tmp_path: Path) -> None:
    path = write(tmp_path / "other.toml", "strict = 1\n")
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path, config=path)
    assert error.value.message == f"{path}: strict: 1 is not true or false"


@pytest.mark.parametrize("text", ["tool = 1\n", "[tool]\narchpatch = 1\n"])
def test_the_section_is_a_table(tmp_path: Path, text: str) -> None:
    write(tmp_path / "pyproject.toml", text)
    with pytest.raises(ConfigError, match="1 is not a table"):
        find_config(tmp_path)
