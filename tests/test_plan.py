from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from archpatch.arch.arch import ArchRequest
from archpatch.arch.gpu import GpuRequest
from archpatch.config import Config, load_config
from archpatch.config_readers import PlanTable
from archpatch.errors import ConfigError
from archpatch.jobs import Terms
from archpatch.pipeline import order_for
from archpatch.wheelhouse.plan import Cell
from archpatch.wheelhouse.prune import PruneRules

PLAN = """
python = "../venv/bin/python"
[plan]
packages = ["mamba_ssm==2.3.2.post1", "./project"]
gpu = ["NVIDIA H200", "l4"]
arch = ["8.0;9.0+PTX"]
"""


def read(folder: Path, text: str) -> Config:
    (folder / "project").mkdir(exist_ok=True)
    file = folder / "fleet.toml"
    file.write_text(text)
    return load_config(folder, config=file)


def plan(folder: Path, text: str) -> PlanTable:
    found = read(folder, text).plan
    assert found is not None
    return found


def test_the_cells_are_packages_by_targets_in_the_order_of_the_file(tmp_path: Path) -> None:
    assert [cell.id for cell in plan(tmp_path, PLAN).cells] == [
        "mamba_ssm==2.3.2.post1@sm80-sm90-ptx90",
        "mamba_ssm==2.3.2.post1@h200",
        "mamba_ssm==2.3.2.post1@l4",
        "project@sm80-sm90-ptx90",
        "project@h200",
        "project@l4",
    ]


def test_paths_start_at_the_file_and_ids_do_not_hold_them(tmp_path: Path) -> None:
    cell = plan(tmp_path, PLAN).cells[-1]
    assert (cell.package, cell.requirement) == ("./project", str(tmp_path / "project"))
    assert (cell.python, cell.interpreter) == (None, str(tmp_path / "../venv/bin/python"))


def test_interpreters_are_a_dimension_of_their_own(tmp_path: Path) -> None:
    text = '[plan]\npackages = ["mini"]\ngpu = ["l4"]\npython = ["python3.12", "venvs/311/bin/python"]'
    cells = plan(tmp_path, text).cells
    assert [cell.id for cell in cells] == ["mini@l4@python3.12", "mini@l4@venvs-311-bin-python"]
    assert [cell.interpreter for cell in cells] == ["python3.12", str(tmp_path / "venvs/311/bin/python")]


def test_the_rules_of_pruning(tmp_path: Path) -> None:
    assert plan(tmp_path, PLAN).prune == PruneRules()
    text = f"{PLAN}\n[plan.prune]\nsuperseded = true\nmax-age-days = 90\nmax-size-mb = 2000"
    assert plan(tmp_path, text).prune == PruneRules(superseded=True, max_age=timedelta(days=90), max_size=2_000_000_000)


def test_without_a_table_there_is_no_plan(tmp_path: Path) -> None:
    assert read(tmp_path, 'gpu = "h200"').plan is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('gpu = ["l4"]', "plan.packages: is missing"),
        ('packages = []\ngpu = ["l4"]', "plan.packages: no package is named"),
        ('packages = ["mini"]', "plan.gpu: no GPU type or arch list is named"),
        ('packages = ["mini"]\ngpu = ["h2000"]', "plan.gpu: 'h2000' is no known GPU type"),
        ('packages = ["mini"]\narch = ["9.0.a"]', "plan.arch: "),
        ('packages = ["mini"]\narch = [9.0]', "plan.arch: 9.0 is not a string"),
        ('packages = ["mini==="]\ngpu = ["l4"]', "plan.packages: "),
        ('packages = ["./nowhere"]\ngpu = ["l4"]', "plan.packages: "),
        ('packages = ["mini", "mini"]\ngpu = ["l4"]', "plan.packages: two cells are called mini@l4"),
        (
            'packages = ["mini"]\ngpu = ["l4"]\nprune = { max-age-days = 0 }',
            "plan.prune.max-age-days: 0 is less",
        ),
        ('packages = ["mini"]\ngpu = ["l4"]\nprune = { max-age = 1 }', "plan.prune.max-age: no such setting"),
    ],
)
def test_a_mistake_names_file_and_setting(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, f"[plan]\n{text}")
    assert str(caught.value).startswith(f"{tmp_path / 'fleet.toml'}: {message}")
    assert caught.value.remedy


def test_an_order_is_what_the_cell_says() -> None:
    terms = Terms(wheelhouse=Path("house"))
    order = order_for(Cell(package="mini==1.0", requirement="mini==1.0", gpu="h200", interpreter="python3.12"), terms)
    assert (str(order.requirement), order.asked.request, order.python) == (
        "mini==1.0",
        GpuRequest.of("h200"),
        "python3.12",
    )
    listed = order_for(Cell(package="mini", requirement="mini", arch="9.0a"), terms)
    assert (listed.asked.request, listed.asked.source) == (ArchRequest.parse("9.0a"), "config")


def test_a_cell_is_plain_json() -> None:
    cell = Cell(package="git+https://host/repo@v1", requirement="git+https://host/repo@v1", arch="9.0")
    assert cell.to_json() == {
        "id": "git+https-host-repo-v1@sm90",
        "package": "git+https://host/repo@v1",
        "gpu": None,
        "arch": "9.0",
        "python": None,
    }
