"""What an interpreter can install for a GPU type, and what to run where it is not filed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from records import STACK, make, readable, title_of

from archpatch.arch.arch import Arch
from archpatch.builder.interpreter import Interpreter, TorchFacts
from archpatch.cli.main import run
from archpatch.errors import UnknownGpu
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.layout import Stack
from archpatch.wheelhouse.record import record_path
from archpatch.wheelhouse.shelf import Shelf, filed_gpu, requirement_for

FITS = {"python": "cp311", "platform": "linux_x86_64"}


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return Wheelhouse(tmp_path / "wheelhouse")


def file(house: Wheelhouse, gpu: str | None = None, *, stack: Stack = STACK, **what: str) -> Entry:
    inputs = {"platform": "linux_x86_64", **what}
    entry = house.publish(*make(house.root.parent / "made", stack=stack, **inputs), stack)
    if gpu is not None:
        house.offer(entry, gpu, stack)
    return entry


def shelf(house: Wheelhouse, gpu: str | None = None) -> Shelf:
    return Shelf(house=house, stack=STACK, inputs=FITS, gpu=gpu)


def test_only_what_is_filed_for_a_gpu_type_is_on_its_shelf(house: Wheelhouse) -> None:
    filed = file(house, "h200")
    file(house, "l4", codes="sm_80")
    file(house, codes="sm_90 compute_90", name="by_arch")
    assert list(shelf(house, "h200").entries()) == [filed]
    assert shelf(house, "h200").newest(["by_arch"]) == {}
    assert list(shelf(house).newest(["by-arch"])) == ["by-arch"]


def test_another_torch_python_or_platform_is_never_on_it(house: Wheelhouse) -> None:
    file(house, "h200", stack=Stack(torch="2.13.0+cu130", cuda="13.0"), version="9.0")
    file(house, "h200", version="3.0", python="cp312")
    file(house, "h200", version="4.0", platform="linux_aarch64")
    assert shelf(house, "h200").newest() == {}
    assert shelf(house, "h200").elsewhere() == {}
    filed = file(house, "h200")
    assert shelf(house, "h200").newest() == {"mini": filed}


def test_the_newest_version_counts_in_the_order_of_versions(house: Wheelhouse) -> None:
    newest = file(house, "h200", version="1.10")
    file(house, "h200", version="1.9")
    file(house, "h200", name="b_c")
    found = shelf(house, "h200").newest()
    assert list(found) == ["b-c", "mini"]
    assert found["mini"] == newest


def test_elsewhere_is_what_would_run_but_is_not_filed(house: Wheelhouse) -> None:
    running = file(house, codes="sm_80", name="runs")
    file(house, codes="sm_90", name="runs", version="2.0")
    file(house, codes="sm_90", name="does_not")
    file(house, "l4", codes="sm_89", name="filed")
    file(house, codes="sm_80", name="filed", version="2.0")
    assert shelf(house, "l4").elsewhere() == {"runs": running}
    assert shelf(house, "l4").elsewhere(["does-not"]) == {}
    assert shelf(house).elsewhere() == shelf(house, "rtx-9999").elsewhere() == {}


def test_every_extension_has_to_run(house: Wheelhouse, tmp_path: Path) -> None:
    wheel, record = make(tmp_path / "made", codes="sm_80 sm_90", platform="linux_x86_64")
    partly = replace(record, extensions={"mini._A": ("sm_80", "sm_90"), "mini._B": ("sm_90",)})
    entry = house.publish(wheel, partly, STACK)
    assert entry.not_run_by(Arch(8, 9)) == "mini._B"
    assert entry.not_run_by(Arch(9, 0)) is None
    assert shelf(house, "l4").elsewhere() == {}
    assert list(shelf(house, "h200").elsewhere()) == ["mini"]


def test_a_gpu_type_is_found_by_its_folder_or_by_any_of_its_names(house: Wheelhouse) -> None:
    file(house, "rtx-9999-super")
    assert filed_gpu(house, "rtx-9999-super") == "rtx-9999-super"
    assert filed_gpu(house, "NVIDIA H100 80GB HBM3") == "h100"
    with pytest.raises(UnknownGpu, match=r"Filed here are: rtx-9999-super\."):
        filed_gpu(house, "rtx-8888")
    with pytest.raises(UnknownGpu) as caught:
        filed_gpu(Wheelhouse(house.root / "empty"), "rtx-8888")
    assert "Filed here" not in str(caught.value)


@pytest.mark.parametrize(
    ("origin", "digest", "requirement"),
    [
        ("/home/me/mini", "tree:0123", "/home/me/mini"),
        ("git+https://host/repo@v1 (0123456789ab)", "git:0123", "git+https://host/repo@v1"),
        ("git+ssh://git@host/repo (0123456789ab)", "git:0123", "git+ssh://git@host/repo"),
        ("mini-1.0.tar.gz from https://host/", "0123", "mini==1.0"),
    ],
)
def test_what_to_build_it_from_again(tmp_path: Path, origin: str, digest: str, requirement: str) -> None:
    _, record = make(tmp_path)
    assert requirement_for(replace(record, source={"origin": origin, "digest": digest})) == requirement


# --- the same at the command line --------------------------------------------------------------


@pytest.fixture
def _torch(monkeypatch: pytest.MonkeyPatch, house: Wheelhouse) -> None:
    """An interpreter with the torch of STACK, and the house as the default."""
    facts = TorchFacts(folder=Path("torch"), version=STACK.torch, cuda=STACK.cuda, cxx11_abi=True, cxx_standard=None)
    interpreter = Interpreter(
        executable=Path("python"),
        version="3.11.7",
        abi_tag="cp311",
        platform_tag="linux_x86_64",
        machine="x86_64",
        torch=facts,
        packages=(),
    )
    monkeypatch.setattr("archpatch.builder.interpreter.probe", lambda _: interpreter)
    monkeypatch.setenv("ARCHPATCH_WHEELHOUSE", str(house.root))
    monkeypatch.chdir(house.root.parent)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = run(["wheelhouse", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.usefixtures("_torch")
def test_a_product_that_only_the_driver_named_is_reached_by_its_folder(
    house: Wheelhouse, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = file(house, "rtx-9999-super")
    folder = house.root / "gpu/rtx-9999-super/torch2.14.1-cu130"
    assert told(capsys, "path", "--gpu", "rtx-9999-super") == (0, f"{folder}\n", "")
    assert told(capsys, "path", "mini", "--gpu", "rtx-9999-super") == (0, f"{entry.wheel}\n", "")
    line = f"mini @ {entry.wheel.as_uri()}#sha256={entry.record.sha256}\n"
    assert told(capsys, "requirements", "--gpu", "rtx-9999-super") == (0, line, "")
    assert json.loads(told(capsys, "list", "--gpu", "rtx-9999-super", "--json")[1])["wheels"][0]["name"] == "mini"


@pytest.mark.usefixtures("_torch")
@pytest.mark.parametrize(
    "command", [("path", "--gpu", "h200"), ("path", "mini", "--gpu", "H200"), ("requirements", "--gpu", "h200")]
)
def test_what_is_filed_by_arch_alone_is_not_offered_and_the_remedy_files_it(
    house: Wheelhouse, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    file(house, codes="sm_80 sm_90")
    status, out, err = told(capsys, *command)
    assert (status, out) == (2, "")
    assert f"for h200, torch2.14.1-cu130, cp311 is filed in {house.root}" in err
    assert "mini 1.0 with sm_80, sm_90 would run there, but is not filed for h200." in err
    assert f"Run: archpatch build mini==1.0 --gpu h200 --wheelhouse {house.root}\n" in err


@pytest.mark.usefixtures("_torch")
def test_of_several_packages_each_that_is_missing_is_told(
    house: Wheelhouse, capsys: pytest.CaptureFixture[str]
) -> None:
    file(house, "h200", name="filed")
    file(house, name="by_arch")
    status, out, err = told(capsys, "requirements", "--gpu", "h200", "filed", "by-arch", "nowhere")
    assert (status, out) == (2, "")
    assert "no wheel of by-arch, nowhere for h200" in err
    assert "archpatch build by_arch==1.0 --gpu h200" in err
    assert "archpatch build nowhere --gpu h200" in err
    status, out, err = told(capsys, "requirements", "--gpu", "h200")
    assert (status, out.count("\n")) == (0, 1)
    assert "warning: by_arch 1.0 with sm_90 would run there, but is not filed for h200." in err


@pytest.mark.usefixtures("_torch")
def test_for_a_gpu_that_only_a_driver_knows_the_remedy_is_native(
    house: Wheelhouse, capsys: pytest.CaptureFixture[str]
) -> None:
    file(house, "rtx-9999-super")
    err = told(capsys, "path", "other", "--gpu", "rtx-9999-super")[2]
    assert f"Where this GPU is, run: archpatch build other --gpu native --wheelhouse {house.root}" in err


@pytest.mark.usefixtures("_torch")
def test_of_a_gpu_types_wheels_the_newest_is_taken_whatever_they_hold(
    house: Wheelhouse, capsys: pytest.CaptureFixture[str]
) -> None:
    file(house, "h200", version="1.0", codes="sm_90 compute_90")
    newest = file(house, "h200", version="2.0")
    assert told(capsys, "path", "mini", "--gpu", "h200") == (0, f"{newest.wheel}\n", "")


@pytest.mark.usefixtures("_torch")
def test_without_a_gpu_type_several_kinds_are_a_choice(house: Wheelhouse, capsys: pytest.CaptureFixture[str]) -> None:
    file(house, "h200")
    entry = file(house, "l4", codes="sm_80")
    status, _, err = told(capsys, "path", "mini")
    assert (status, "Choose with --gpu" in err) == (2, True)
    assert told(capsys, "path", "mini", "--gpu", "l4")[1] == f"{entry.wheel}\n"
    assert "archpatch build nowhere --wheelhouse" in told(capsys, "path", "nowhere")[2]
    assert told(capsys, "path") == (0, f"{house.root}\n", "")


@pytest.mark.usefixtures("_torch")
def test_a_gpu_type_by_another_name_is_told(house: Wheelhouse, capsys: pytest.CaptureFixture[str]) -> None:
    entry = file(house, "h100")
    note = "archpatch: warning: h20 is taken as h100 (9.0)\n"
    assert told(capsys, "path", "mini", "--gpu", "h20") == (0, f"{entry.wheel}\n", note)
    assert told(capsys, "list", "--gpu", "h20")[2] == note
    assert told(capsys, "path", "mini", "--gpu", "H100")[2] == ""


def truncate(entry: Entry) -> str:
    entry.wheel.write_bytes(b"w")
    return f"{entry.wheel} was changed after it was published"


def lose_record(entry: Entry) -> str:
    record_path(entry.wheel).unlink()
    return f"{record_path(entry.wheel)} is missing"


def tear_record(entry: Entry) -> str:
    record_path(entry.wheel).write_text("{")
    return f"{record_path(entry.wheel)} cannot be read"


def lose_wheel(entry: Entry) -> str:
    entry.wheel.unlink()
    return f"{entry.wheel.name} leads nowhere"


@pytest.mark.usefixtures("_torch")
@pytest.mark.parametrize(
    ("damage", "source"),
    [(truncate, "/src/mini"), (lose_wheel, "/src/mini"), (lose_record, "SOURCE"), (tear_record, "SOURCE")],
)
@pytest.mark.parametrize("command", [("requirements",), ("requirements", "mini"), ("path", "mini")])
def test_a_damaged_wheel_is_told_and_nothing_is_printed(
    house: Wheelhouse,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    damage: Callable[[Entry], str],
    source: str,
) -> None:
    file(house, "h200", name="whole")
    wheel, record = make(house.root.parent / "made", platform="linux_x86_64")
    of_a_folder = replace(record, source={"origin": "/src/mini", "digest": "tree:0"})
    entry = house.publish(wheel, of_a_folder, STACK)
    house.offer(entry, "h200", STACK)
    problem = damage(entry)
    status, out, err = told(capsys, *command, "--gpu", "h200")
    assert (status, out) == (5, "")
    assert problem in err
    assert f"Run: archpatch build {source} --gpu h200 --wheelhouse {house.root}\n" in err


@pytest.mark.usefixtures("_torch")
def test_damage_that_is_no_part_of_the_answer_is_no_error(
    house: Wheelhouse, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = file(house, "h200", version="2.0")
    older, other = file(house, "h200"), file(house, "h200", name="other")
    elsewhere = file(house, "l4", codes="sm_80", name="elsewhere")
    for entry in (older, other, elsewhere):
        truncate(entry)
    assert told(capsys, "requirements", "mini", "--gpu", "h200")[0] == 0
    assert told(capsys, "path", "mini", "--gpu", "h200") == (0, f"{newest.wheel}\n", "")
    assert told(capsys, "path", "other", "--gpu", "h200")[0] == 5
    assert told(capsys, "path", "other")[0] == 5


def test_a_folder_that_is_no_wheelhouse_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / "a" / "b" / "x-1-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    status, _, err = told(capsys, "list", "--wheelhouse", str(tmp_path))
    assert (status, f"{wheel}.json is missing" in err) == (0, True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.usefixtures("_torch")
def test_the_list_and_the_index_warn_of_what_they_leave_out(
    house: Wheelhouse, capsys: pytest.CaptureFixture[str]
) -> None:
    file(house, "h200")
    entry = file(house, "l4", codes="sm_80", name="other")
    assert told(capsys, "list")[2] == ""
    warning = f"archpatch: warning: left out, since it is damaged: {truncate(entry)}\n"
    for command in (("list",), ("list", "--json"), ("list", "--gpu", "l4"), ("index",)):
        status, _, err = told(capsys, *command)
        assert (status, err) == (0, warning)
    assert told(capsys, "list", "--gpu", "h200")[2] == ""


def test_the_index_is_written_and_its_folder_printed(house: Wheelhouse, capsys: pytest.CaptureFixture[str]) -> None:
    house.publish(*make(house.root.parent / "made", content=readable(title_of())), STACK)
    option = ("--wheelhouse", str(house.root))
    assert told(capsys, "index", *option) == (0, f"{house.root / 'index'}\n", "")
    assert json.loads(told(capsys, "index", *option, "--json")[1]) == {
        "schema": "archpatch.wheelhouse-index/1",
        "folder": str(house.root / "index"),
        "indexes": [str(house.root / "index/sm90/torch2.14.1-cu130")],
    }


def test_the_projects_settings_name_the_wheelhouse(
    house: Wheelhouse, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file(house, "h200")
    project = house.root.parent / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text('[tool.archpatch]\nwheelhouse = "../wheelhouse"\n')
    monkeypatch.chdir(project)
    monkeypatch.delenv("ARCHPATCH_WHEELHOUSE", raising=False)
    status, out, _ = told(capsys, "index")
    assert (status, Path(out.strip()).resolve()) == (0, house.root / "index")


@pytest.mark.parametrize(("place", "says"), [("nowhere", "is no folder"), (".", "is no wheelhouse")])
def test_an_index_of_no_wheelhouse_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, says: str
) -> None:
    status, out, err = told(capsys, "index", "--wheelhouse", str(tmp_path / place))
    assert (status, out) == (2, "")
    assert says in err
    assert list(tmp_path.iterdir()) == []
