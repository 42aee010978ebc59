from __future__ import annotations

import ast
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from archpatch.arch.arch import Arch, DeviceCode
from archpatch.arch.selection import KnownBad
from archpatch.errors import ConfigError, MissingFile
from archpatch.recipes.recipe import (
    ArchForm,
    ArchVariable,
    GitLocation,
    Recipe,
    RecipeOverride,
    digest,
    find_recipe,
    find_recipe_by_repository,
    known_bad_for,
    load_recipes,
    read_overrides,
    spell_archs,
)
from archpatch.recipes.table import Table, read_toml

BUILT_IN = ("causal_conv1d", "fast_hadamard_transform", "flash_attn", "mamba_ssm", "natten")
#: natten's is not written: it would be code that nobody ran.
WITH_SMOKE_TEST = BUILT_IN[:-1]


def codes(*texts: str) -> list[DeviceCode]:
    return list(map(DeviceCode.parse, texts))


def overrides(folder: Path, toml: str) -> tuple[RecipeOverride, ...]:
    """Read `toml`, the `[tool.archpatch.recipes]` part of a pyproject.toml in `folder`."""
    path = folder / "pyproject.toml"
    path.write_text(toml, encoding="utf-8")
    table = Table(file=path, setting="", data=read_toml(path))
    for key in ("tool", "archpatch", "recipes"):
        below = table.table(key)
        assert below is not None
        table = below
    return read_overrides(table)


# --- the built-in recipes ----------------------------------------------------------------------


def test_the_built_in_recipes_are_named_as_the_packages_are() -> None:
    assert {recipe.name for recipe in load_recipes().values()} == set(BUILT_IN)


@pytest.mark.parametrize(
    ("name", "environment", "local_version", "repository"),
    [
        (
            "mamba_ssm",
            {"MAMBA_FORCE_BUILD": "TRUE", "MAMBA_KEEP_CUDA_BUILD": "TRUE"},
            "MAMBA_LOCAL_VERSION",
            "https://github.com/state-spaces/mamba",
        ),
        (
            "causal_conv1d",
            {"CAUSAL_CONV1D_FORCE_BUILD": "TRUE"},
            "CAUSAL_CONV1D_LOCAL_VERSION",
            "https://github.com/Dao-AILab/causal-conv1d",
        ),
        (
            "fast_hadamard_transform",
            {"FAST_HADAMARD_TRANSFORM_FORCE_BUILD": "TRUE"},
            "FAST_HADAMARD_TRANSFORM_LOCAL_VERSION",
            "https://github.com/Dao-AILab/fast-hadamard-transform",
        ),
        (
            "flash_attn",
            {"FLASH_ATTENTION_FORCE_BUILD": "TRUE"},
            "FLASH_ATTN_LOCAL_VERSION",
            "https://github.com/Dao-AILab/flash-attention",
        ),
    ],
)
def test_what_is_known_of_each_package(
    name: str, environment: dict[str, str], local_version: str, repository: str
) -> None:
    recipe = find_recipe(name)
    assert dict(recipe.environment) == environment
    assert recipe.local_version == local_version
    assert recipe.git == GitLocation(url=repository, tag="v{version}")
    assert {"ninja", "packaging", "wheel"} <= set(recipe.build_requires)


def test_flash_attn_has_an_arch_variable_and_an_undeclared_requirement() -> None:
    recipe = find_recipe("flash_attn")
    assert recipe.arch_variable == ArchVariable(name="FLASH_ATTN_CUDA_ARCHS", form="number", separator=";")
    assert "psutil" in recipe.build_requires


def test_natten_wants_numbers_without_a_suffix() -> None:
    variable = find_recipe("NATTEN").arch_variable
    assert variable == ArchVariable(name="NATTEN_CUDA_ARCH", form="capability", separator=";")
    assert spell_archs(variable, codes("sm_90a", "sm_120", "compute_120")) == "9.0;12.0"


@pytest.mark.parametrize("name", WITH_SMOKE_TEST)
def test_a_smoke_test_compares_on_the_gpu_and_would_fail(name: str) -> None:
    source = find_recipe(name).smoke_test
    assert source is not None
    calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
    assert "torch.testing.assert_close" in calls
    assert 'device="cuda"' in source


@pytest.mark.parametrize("name", ["mamba_ssm", "mamba-ssm", "Mamba.SSM", "MAMBA_SSM"])
def test_a_name_is_found_in_any_spelling(name: str) -> None:
    assert find_recipe(name).name == "mamba_ssm"


def test_an_unknown_package_has_an_empty_recipe() -> None:
    assert find_recipe("my_ext") == Recipe(name="my_ext")


def test_a_tag_is_made_from_a_version() -> None:
    assert GitLocation(url="u", tag="release/{version}").tag_for("1.5.0.post8") == "release/1.5.0.post8"


# --- known-bad archs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "is_bad"), [("12.8", False), ("12.9.86", False), ("13.0", True), ("13.2.51", True), ("14.0", False)]
)
def test_sm_103_of_causal_conv1d_is_bad_under_cuda_13(release: str, *, is_bad: bool) -> None:
    found = known_bad_for(find_recipe("causal_conv1d"), release)
    assert [bad.arch for bad in found] == ([Arch(10, 3)] if is_bad else [])


def test_with_no_nvcc_every_known_bad_arch_counts_and_the_reason_cites_the_report() -> None:
    (bad,) = known_bad_for(find_recipe("causal_conv1d"), None)
    assert isinstance(bad, KnownBad)
    assert "https://github.com/Dao-AILab/causal-conv1d/issues/105" in bad.reason
    assert known_bad_for(find_recipe("mamba_ssm"), None) == ()


# --- spelling ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "separator", "wanted", "expected"),
    [
        ("number", ";", "sm_90 sm_80", "80;90"),
        ("dotted", ";", "sm_90 sm_120", "9.0;12.0"),
        ("number", ",", "sm_120 sm_90 sm_90", "90,120"),
        ("dotted", " ", "sm_120f sm_90a", "9.0a 12.0f"),
        ("number", ";", "sm_90 sm_90a compute_90", "90;90a"),
        ("number", ";", "", ""),
        ("capability", ";", "sm_90 sm_90a sm_120f compute_120", "9.0;12.0"),
        ("cmake", ";", "sm_90", "90-real"),
        ("cmake", ";", "compute_90 sm_90 sm_80", "80-real;90-real;90-virtual"),
        ("cmake", ",", "sm_90a sm_120f compute_120f", "90a-real,120f-real,120f-virtual"),
    ],
)
def test_archs_are_spelled_as_the_package_reads_them(
    form: ArchForm, separator: str, wanted: str, expected: str
) -> None:
    variable = ArchVariable(name="X_ARCHS", form=form, separator=separator)
    assert spell_archs(variable, codes(*wanted.split())) == expected


# --- the digest --------------------------------------------------------------------------------


def test_the_digest_is_stable() -> None:
    # Written out, since another digest for the same recipe would rebuild every wheelhouse.
    canonical = (
        b'{"arch_variable":["FLASH_ATTN_CUDA_ARCHS","number",";"],"environment":[["FLASH_ATTENTION_FORCE_BUILD","TRUE"]]'
        b',"known_bad":[],"local_version":"FLASH_ATTN_LOCAL_VERSION"}'
    )
    assert digest(find_recipe("flash_attn")) == hashlib.sha256(canonical).hexdigest()


def test_the_order_within_a_specifier_does_not_count(tmp_path: Path) -> None:
    found = overrides(
        tmp_path,
        """
        [[tool.archpatch.recipes.causal_conv1d.known-bad]]
        arch = "10.3"
        toolkit = "<14, >=13"
        report = "r"
        reason = "s"
        """,
    )
    assert digest(find_recipe("causal_conv1d", found)) == digest(find_recipe("causal_conv1d"))


@pytest.mark.parametrize(
    "change",
    [
        {"environment": (("FLASH_ATTENTION_FORCE_BUILD", "FALSE"),)},
        {"local_version": None},
        {"arch_variable": None},
        {"arch_variable": ArchVariable(name="FLASH_ATTN_CUDA_ARCHS", form="dotted", separator=";")},
        {"known_bad": find_recipe("causal_conv1d").known_bad},
    ],
)
def test_the_digest_sees_what_decides_the_wheel(change: dict[str, object]) -> None:
    recipe = find_recipe("flash_attn")
    assert digest(replace(recipe, **change)) != digest(recipe)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"smoke_test": None},
        {"git": None},
        {"build_requires": ()},
        {"compile_seconds": (("a.cu", 9),)},
        {"compile_gib": 9},
        {"name": "causal-conv1d"},
        {"known_bad": (replace(find_recipe("causal_conv1d").known_bad[0], reason="other words"),)},
    ],
)
def test_the_digest_ignores_what_does_not(change: dict[str, object]) -> None:
    recipe = find_recipe("causal_conv1d")
    assert digest(replace(recipe, **change)) == digest(recipe)  # type: ignore[arg-type]


def test_the_order_of_variables_does_not_count() -> None:
    one, other = (("A", "1"), ("B", "2")), (("B", "2"), ("A", "1"))
    assert digest(Recipe(name="a", environment=one)) == digest(Recipe(name="a", environment=other))


# --- what a user adds and overrides ------------------------------------------------------------


def test_a_new_recipe_may_use_every_key(tmp_path: Path) -> None:
    recipe = find_recipe(
        "my-ext",
        overrides(
            tmp_path,
            """
            [tool.archpatch.recipes.My_Ext]
            environment = { MY_FORCE = "1", MY_EMPTY = "" }
            local-version = "MY_LOCAL"
            arch-variable = { name = "MY_ARCHS", form = "dotted", separator = " " }
            git = { url = "https://example.org/my-ext", tag = "release-{version}" }
            build-requires = ["numpy>=2"]
            compile-gib = 8
            compile-seconds = { "csrc/a.cu" = 90 }
            known-bad = [{ arch = "sm_90a", toolkit = "<12.4", report = "https://example.org/1", reason = "slow" }]
            smoke-test = "import my_ext"
            """,
        ),
    )
    assert recipe == Recipe(
        name="My_Ext",
        environment=(("MY_EMPTY", ""), ("MY_FORCE", "1")),
        local_version="MY_LOCAL",
        arch_variable=ArchVariable(name="MY_ARCHS", form="dotted", separator=" "),
        git=GitLocation(url="https://example.org/my-ext", tag="release-{version}"),
        build_requires=("numpy>=2",),
        compile_gib=8,
        compile_seconds=(("csrc/a.cu", 90),),
        known_bad=recipe.known_bad,
        smoke_test="import my_ext",
    )
    assert [bad.arch for bad in known_bad_for(recipe, "12.3")] == [Arch(9, 0, "a")]
    assert known_bad_for(recipe, "12.4") == ()


def test_an_override_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    built_in = find_recipe("mamba_ssm")
    found = overrides(
        tmp_path,
        """
        [tool.archpatch.recipes.mamba-ssm]
        environment = { MAMBA_FORCE_BUILD = "FALSE", EXTRA = "1" }
        git.url = "https://example.org/fork"
        build-requires = ["ninja"]
        """,
    )
    assert find_recipe("mamba_ssm", found) == replace(
        built_in,
        environment=(("EXTRA", "1"), ("MAMBA_FORCE_BUILD", "FALSE"), ("MAMBA_KEEP_CUDA_BUILD", "TRUE")),
        git=GitLocation(url="https://example.org/fork", tag="v{version}"),
        build_requires=("ninja",),
    )
    assert find_recipe("mamba_ssm") == built_in


def test_an_empty_array_lifts_a_known_bad_arch(tmp_path: Path) -> None:
    found = overrides(tmp_path, "[tool.archpatch.recipes.causal_conv1d]\nknown-bad = []\n")
    assert known_bad_for(find_recipe("causal_conv1d", found), "13.0") == ()


def test_a_recipe_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.toml").write_text('local-version = "MY_LOCAL"\n', encoding="utf-8")
    found = overrides(tmp_path, '[tool.archpatch.recipes]\nmy_ext = "recipes/mine.toml"\n')
    assert find_recipe("my_ext", found) == Recipe(name="my_ext", local_version="MY_LOCAL")


def test_a_mistake_in_a_file_of_its_own_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("local-version = 1\n", encoding="utf-8")
    found = overrides(tmp_path, '[tool.archpatch.recipes]\nmy_ext = "mine.toml"\n')
    with pytest.raises(ConfigError) as error:
        load_recipes(found)
    assert error.value.message == f"{tmp_path / 'mine.toml'}: local-version: 1 is not a string"


def test_a_file_of_its_own_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"absent\.toml"):
        overrides(tmp_path, '[tool.archpatch.recipes]\nmy_ext = "absent.toml"\n')


BAD = 'arch = "9.0", toolkit = ">=13", report = "r", reason = "s"'


@pytest.mark.parametrize(
    ("body", "message", "remedy"),
    [
        ("local_version = 'X'", "local_version: no such setting", "Did you mean local-version? Allowed are: arch-"),
        ("nonsense = 'X'", "nonsense: no such setting", "Allowed are: arch-variable, build-requires, compile-gib,"),
        ("local-version = true", "local-version: true is not a string", 'Put it into quotes: "true".'),
        ("local-version = ''", "local-version: is empty", "Give it a value"),
        ("local-version = 'A-B'", "local-version: 'A-B' is no name of an environment variable", "letters"),
        ("environment = 'X=1'", "environment: 'X=1' is not a table", ""),
        ("environment = { X = true }", "environment.X: true is not a string", 'Put it into quotes: "true".'),
        ("environment = { X = 1 }", "environment.X: 1 is not a string", 'Put it into quotes: "1".'),
        ("environment = { 'X Y' = '1' }", 'environment."X Y": is no name of an environment variable', "letters"),
        ("arch-variable = { form = 'number', separator = ';' }", "arch-variable.name: is missing", "Set tool.archp"),
        ("arch-variable = { name = 'X', separator = ';' }", "arch-variable.form: is missing", "Set tool.archpatch."),
        ("arch-variable = { name = 'X', form = 'number' }", "arch-variable.separator: is missing", "Set tool."),
        (
            "arch-variable = { name = 'X', form = 'dots', separator = ';' }",
            "arch-variable.form: 'dots' is not one of number, dotted, capability, cmake",
            "Did you mean 'dotted'?",
        ),
        ("arch-variable = { names = 'X' }", "arch-variable.names: no such setting", "Did you mean name?"),
        ("git = { url = 'u' }", "git.tag: is missing", "Set tool.archpatch.recipes.my_ext.git.tag."),
        ("git = { tag = '{version}' }", "git.url: is missing", "Set tool.archpatch.recipes.my_ext.git.url."),
        ("git = { url = 'u', tag = 'v1' }", "git.tag: 'v1' does not hold {version}", 'Write for example "v{version}".'),
        ("git = { repo = 'u' }", "git.repo: no such setting", "Allowed are: tag, url."),
        ("build-requires = 'psutil'", "build-requires: 'psutil' is not an array of strings", ""),
        ("build-requires = [1]", "build-requires: 1 is not a string", 'Put it into quotes: "1".'),
        ("build-requires = [['a']]", "build-requires: an array is not a string", ""),
        ("build-requires = ['a b']", "build-requires: 'a b' is no requirement", 'Write for example "psutil"'),
        ("compile-seconds = 9", "compile-seconds: 9 is not a table", ""),
        ("compile-seconds = { a = 'x' }", "compile-seconds.a: 'x' is not an integer", ""),
        ("known-bad = '10.3'", "known-bad: '10.3' is not an array of tables", ""),
        ("known-bad = ['10.3']", "known-bad: '10.3' is not a table", ""),
        ("known-bad = [{ arch = '9.0' }]", "known-bad[0].toolkit: is missing", "known-bad[0].toolkit."),
        (f"known-bad = [{{ {BAD} }}, {{ }}]", "known-bad[1].arch: is missing", "known-bad[1].arch."),
        (f"known-bad = [{{ {BAD}, gpu = 'b300' }}]", "known-bad[0].gpu: no such setting", "Allowed are: arch,"),
        (f"known-bad = [{{ {BAD.replace('9.0', '9.7')} }}]", "known-bad[0].arch: '9.7' is no known GPU arch", "Known"),
        (f"known-bad = [{{ {BAD.replace('>=13', '13')} }}]", "known-bad[0].toolkit: '13' is no version spec", "Write"),
        ("known-bad = [{ arch = 9.0 }]", "known-bad[0].arch: 9.0 is not a string", 'Put it into quotes: "9.0".'),
        ("smoke-test = 'import'", "smoke-test: is not valid Python", "Correct it there."),
        ("smoke-test = { a = 1 }", "smoke-test: a table is not a string", ""),
    ],
)
def test_a_mistake_names_the_file_the_setting_and_the_remedy(
    tmp_path: Path, body: str, message: str, remedy: str
) -> None:
    found = overrides(tmp_path, f"[tool.archpatch.recipes.my_ext]\n{body}\n")
    with pytest.raises(ConfigError) as error:
        load_recipes(found)
    prefix = f"{tmp_path / 'pyproject.toml'}: tool.archpatch.recipes.my_ext."
    assert error.value.message.startswith(prefix + message)
    assert (remedy in (error.value.remedy or "")) if remedy else error.value.remedy is None


def test_a_mistake_in_an_override_of_a_built_in_recipe_is_the_users(tmp_path: Path) -> None:
    found = overrides(tmp_path, "[tool.archpatch.recipes.mamba-ssm]\ngit = 'https://example.org'\n")
    with pytest.raises(ConfigError) as error:
        find_recipe("causal_conv1d", found)
    assert error.value.message.startswith(f"{tmp_path / 'pyproject.toml'}: tool.archpatch.recipes.mamba-ssm.git: ")


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ('"a b" = {}', 'tool.archpatch.recipes."a b": is no package name'),
        ("a_b = {}\na-b = {}", "tool.archpatch.recipes.a-b: is the same package as a_b"),
        ("a = 1", "tool.archpatch.recipes.a: 1 is not a table"),
    ],
)
def test_a_name_is_a_package_and_stands_once(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        overrides(tmp_path, f"[tool.archpatch.recipes]\n{toml}\n")
    assert message in error.value.message


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://github.com/state-spaces/mamba", "mamba_ssm"),
        ("https://github.com/state-spaces/mamba.git", "mamba_ssm"),
        ("ssh://git@github.com/Dao-AILab/flash-attention", "flash_attn"),
        ("https://user:secret@github.com/dao-ailab/causal-conv1d/", "causal_conv1d"),
        ("https://github.com/other/mamba", None),
    ],
)
def test_a_repository_leads_to_its_recipe(url: str, name: str | None) -> None:
    found = find_recipe_by_repository(url)
    assert (found and found.name) == name
