"""A plan and the job that carries it out, on the miniature project with the real nvcc."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import FIXTURES, Answer, CommandLine, make_sdist, only_index

pytestmark = pytest.mark.integration

GPUS = ("h100", "h200", "l4", "a10", "t4")


def write_plan(line: CommandLine, packages: list[str], targets: str = "", more: str = "") -> None:
    (line.folder / "pyproject.toml").write_text(
        f"[tool.archpatch.plan]\npackages = {json.dumps(packages)}\n{targets or f'gpu = {json.dumps(GPUS)}'}\n{more}"
    )


def states(answer: Answer) -> dict[str, str]:
    return {cell["id"]: cell["state"] for cell in answer.json["cells"]}


@pytest.fixture
def pinned(archpatch: CommandLine) -> dict[str, str]:
    """An index with the miniature project alone, and the variables that name it."""
    make_sdist(FIXTURES / "mini", archpatch.folder / "index")
    return {**only_index(archpatch.folder / "index"), "ARCHPATCH_CACHE": str(archpatch.folder / "cache")}


def test_each_distinct_wheel_is_built_once_and_the_second_run_does_nothing(
    archpatch: CommandLine, pinned: dict[str, str]
) -> None:
    write_plan(archpatch, ["archpatch_mini==0.1.0"])
    planned = archpatch("plan", "--json", environ=pinned)
    assert set(states(planned).values()) == {"build"}
    assert archpatch.published() == []

    first = archpatch("refresh", "--json", "--summary", "summary.md", "--report", "report.json", environ=pinned)
    assert first.status == 0, first.stderr
    held = [" ".join(cell["device_code"]) for cell in first.json["cells"]]
    assert held == ["sm_90", "sm_90", "sm_80", "sm_80", "sm_75"]
    # Several are worked on at once: whichever came first of those that share a wheel has built it.
    told = sorted((code, cell["state"]) for code, cell in zip(held, first.json["cells"], strict=True))
    assert told == [("sm_75", "built"), ("sm_80", "built"), ("sm_80", "hit"), ("sm_90", "built"), ("sm_90", "hit")]
    assert len([name for name in archpatch.published() if name.endswith(".whl")]) == 3 + len(GPUS)
    assert json.loads((archpatch.folder / "report.json").read_text()) == first.json
    summary = (archpatch.folder / "summary.md").read_text()
    assert summary.startswith("### archpatch refresh: 3 built, 2 hit\n")
    assert "| archpatch_mini==0.1.0 | t4 |  | built | sm_75 |" in summary

    second = archpatch("refresh", "--json", environ=pinned)
    assert set(states(second).values()) == {"hit"}
    assert {cell["fingerprint"] for cell in second.json["cells"]} == {
        cell["fingerprint"] for cell in planned.json["cells"]
    }
    assert json.loads(archpatch("plan", "--format", "github", environ=pinned).stdout) == {"include": []}


def test_it_goes_on_after_a_failure_and_says_4(archpatch: CommandLine, pinned: dict[str, str]) -> None:
    broken = Path(shutil.copytree(FIXTURES / "mini", archpatch.folder / "broken"))
    source = broken / "csrc" / "add.cu"
    source.write_text(source.read_text() + "\n#error broken on purpose\n")
    write_plan(archpatch, ["./broken", "nowhere==1.0", "archpatch_mini==0.1.0"], 'gpu = ["h200", "b200"]')
    answer = archpatch("refresh", "--json", "--on-missing", "error", environ=pinned)
    assert answer.status == 4
    assert states(answer) == {
        "broken@h200": "failed",
        "broken@b200": "refused",
        "nowhere==1.0@h200": "failed",
        "nowhere==1.0@b200": "failed",
        "archpatch_mini==0.1.0@h200": "built",
        "archpatch_mini==0.1.0@b200": "refused",
    }
    reasons = {cell["id"]: cell["reason"] for cell in answer.json["cells"]}
    assert "broken on purpose" in reasons["broken@h200"]
    logs = {cell["id"]: cell["log"] for cell in answer.json["cells"]}
    assert "broken on purpose" in Path(logs["broken@h200"]).read_text()
    assert logs["nowhere==1.0@h200"] is None
    assert "no matching arch for b200 (10.0)" in reasons["archpatch_mini==0.1.0@b200"]
    assert archpatch.left_behind() == []


def test_what_a_package_has_nothing_for_is_refused_or_known_bad(archpatch: CommandLine) -> None:
    shutil.copytree(FIXTURES / "mini", archpatch.folder / "mini")
    bad = '[[tool.archpatch.recipes.archpatch_mini.known-bad]]\narch = "9.0"\ntoolkit = ">=13"\n'
    bad += 'report = "https://example.org/1"\nreason = "it computes nonsense"\n'
    write_plan(archpatch, ["./mini"], 'arch = ["8.9", "9.0"]', bad)
    for command in ("plan", "refresh"):
        answer = archpatch(command, "--json")
        assert states(answer) == {"mini@sm89": "refused", "mini@sm90": "known bad"}
        assert answer.status == (0 if command == "plan" else 3)
    assert "https://example.org/1" in answer.json["cells"][1]["reason"]
    taken = archpatch("plan", "--json", "--allow-known-bad")
    assert states(taken)["mini@sm90"] == "build"


def test_cells_run_one_by_one_in_any_order_come_to_the_same(archpatch: CommandLine, pinned: dict[str, str]) -> None:
    write_plan(
        archpatch,
        ["archpatch_mini==0.1.0"],
        'gpu = ["l4", "h200", "a10"]',
        "[tool.archpatch.plan.prune]\nmax-size-mb = 1\n",
    )
    cells = archpatch("plan", "--json", environ=pinned).json["cells"]
    matrix = json.loads(archpatch("plan", "--format", "github", environ=pinned).stdout)["include"]
    # The a10 takes the wheel of the l4.
    assert [cell["gpu"] for cell in matrix] == ["l4", "h200"]
    for cell in reversed(cells):
        answer = archpatch("refresh", "--cell", cell["id"], "--json", environ=pinned)
        assert (answer.status, list(states(answer))) == (0, [cell["id"]])
    assert set(states(archpatch("plan", "--json", environ=pinned)).values()) == {"hit"}
    unknown = archpatch("refresh", "--cell", "archpatch_mini==0.1.0@h100", environ=pinned)
    assert unknown.status == 2
    assert "archpatch_mini==0.1.0@h200" in unknown.stderr


def damage_wheel(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-100])


def damage_record(wheel: Path) -> None:
    record = Path(f"{wheel}.json")
    record.write_text(record.read_text().replace('"sm_90"', '"sm_80"'))


def tear_record(wheel: Path) -> None:
    record = Path(f"{wheel}.json")
    record.write_text(record.read_text()[:100])


def edit_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("extra.py", "print('not ours')\n")


@pytest.mark.parametrize("damage", [damage_wheel, damage_record, tear_record, edit_wheel, Path.unlink])
def test_what_is_damaged_is_found_not_served_and_built_again(
    damage: Callable[[Path], object], archpatch: CommandLine, pinned: dict[str, str]
) -> None:
    write_plan(archpatch, ["archpatch_mini==0.1.0"], 'gpu = ["h200"]')
    wheel = Path(archpatch("refresh", "--json", environ=pinned).json["cells"][0]["wheel"])
    assert archpatch("wheelhouse", "verify").status == 0
    damage(wheel)
    assert archpatch("wheelhouse", "verify").status == 1
    answer = archpatch("refresh", "--json", environ=pinned)
    assert states(answer) == {"archpatch_mini==0.1.0@h200": "built"}, answer.stderr
    assert archpatch("wheelhouse", "verify").status == 0
    assert states(archpatch("refresh", "--json", environ=pinned)) == {"archpatch_mini==0.1.0@h200": "hit"}


def test_pruning_is_shown_first_and_spares_what_the_plan_names(archpatch: CommandLine) -> None:
    project = Path(shutil.copytree(FIXTURES / "mini", archpatch.folder / "mini"))
    write_plan(archpatch, ["./mini"], 'gpu = ["h200"]', "[tool.archpatch.plan.prune]\nsuperseded = true\n")
    old = archpatch("refresh", "--json").json["cells"][0]["wheel"]
    settings = project / "pyproject.toml"
    settings.write_text(settings.read_text().replace("0.1.0", "0.2.0"))
    dry = archpatch("refresh", "--dry-run", "--json")
    assert (dry.json["cells"][0]["state"], dry.json["pruned"]) == ("build", [])
    done = archpatch("refresh", "--json")
    assert (done.json["cells"][0]["state"], [item["wheel"] for item in done.json["pruned"]]) == ("built", [old])
    assert not Path(old).exists()
    assert archpatch("wheelhouse", "verify").status == 0
