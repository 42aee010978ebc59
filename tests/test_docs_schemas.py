"""docs/schemas.md against what the commands really print: each field, its type, and an example that fits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from commandline import FIXTURES
from commands import leaf_commands, options_of
from kernels import elf, write
from libraries import container, library, write_wheel
from pages import Section
from records import STACK, make, readable, title_of
from schemas import SCHEMAS, documented, fields_of, misfits

from archpatch.arch.arch import Arch, DeviceCode, Pair
from archpatch.builder.bench import Bench
from archpatch.builder.gpus import DetectedGpu
from archpatch.builder.host import Host
from archpatch.builder.interpreter import Interpreter
from archpatch.cli.main import run
from archpatch.errors import ToolchainError
from archpatch.kernel_cache.restore import Restored
from archpatch.pipeline import Built
from archpatch.rewrite.outcome import FlagSource, PairReport
from archpatch.storage.key import Key
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.plan import Cell, Result, State
from archpatch.wheelhouse.prune import Surplus

CELL = Cell(package="mini==1.0", requirement="mini==1.0", gpu="l4", python="python3.12")


# --- what the commands print ---------------------------------------------------------------------


@dataclass(frozen=True)
class Desk:
    """A folder to work in, a wheelhouse with one wheel in it, and the command line in this process."""

    folder: Path
    entry: Entry
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: str) -> dict[str, Any]:
        run(arguments)
        printed: dict[str, Any] = json.loads(self.capsys.readouterr().out)
        return printed

    def answer(self, name: str, answer: object) -> None:
        """Let the function `name` answer this: what it would do needs a compiler."""
        self.monkeypatch.setattr(name, lambda *_, **__: answer)


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    for name in ("TORCH_CUDA_ARCH_LIST", "ARCHPATCH_ARCH", "ARCHPATCH_GPU", "ARCHPATCH_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    Path("pyproject.toml").write_text('[tool.archpatch.plan]\npackages = ["mini==1.0"]\ngpu = ["l4"]\n')
    shutil.copytree(FIXTURES / "mini", "mini")
    wheel, record = make(tmp_path / "made", codes="sm_80", content=readable(title_of(codes="sm_80")))
    pair = PairReport(pair=Pair.of(DeviceCode.parse("sm_80")), line=18, action="kept", reason="8.0 was asked for")
    source = FlagSource(line=15, shape="f-string", reason="the flag is put together at run time")
    record = replace(record, pairs=(pair.to_json(),), flag_sources=(source.to_json(),), toolchain={"cores": "2"})
    house = Wheelhouse(tmp_path / "wheelhouse")
    entry = house.publish(wheel, record, STACK)
    house.offer(entry, "l4", STACK)
    return Desk(tmp_path, entry, capsys, monkeypatch)


def patches(desk: Desk) -> Iterator[dict[str, Any]]:
    for request in ("--arch=9.0+PTX", "--arch=8.9"):
        yield desk("patch", "mini", request, "--json", "--check")
    yield desk("patch", "mini", "--json", "--check")
    Path("loop.py").write_text(
        'flags = []\nfor n in (80, 90):\n    flags.append(f"-gencode=arch=compute_{n},code=sm_{n}")\n'
    )
    yield desk("patch", "loop.py", "--arch=9.0", "--json", "--check")
    Path("variable.py").write_text('import os\nos.environ["NVCC_APPEND_FLAGS"] = "-arch=sm_80"\n')
    yield desk("patch", "variable.py", "--arch=9.0", "--json", "--check")


def builds(desk: Desk) -> Iterator[dict[str, Any]]:
    desk.answer("archpatch.pipeline.build", Built(entry=desk.entry, hit=True, links=(), log=None, seconds=1.5))
    yield desk("build", "mini==1.0", "--gpu=l4", "--json")


def inspections(desk: Desk) -> Iterator[dict[str, Any]]:
    # libcst has a library of its own, which is an ELF file without device code.
    for more in ((), ("--runs-on=h200",)):
        yield desk("inspect", "--installed=libcst", "--json", *more)


def slimmings(desk: Desk) -> Iterator[dict[str, Any]]:
    content = library(container("sm_80", "sm_90"), container("sm_80", "sm_90", "compute_90")).data
    wheel = str(write_wheel(desk.folder / "pkg-1.0-cp311-cp311-linux_x86_64.whl", {"pkg/_C.so": content}))
    yield desk("slim", wheel, "--arch=9.0", "--output=slimmed", "--json")
    filed = ("--wheelhouse=wheelhouse", "--torch=2.14.1+cu130")
    yield desk("slim", wheel, "--gpu=h200", *filed, "--json")


def results(desk: Desk) -> tuple[Result, ...]:
    log, listed = desk.folder / "log", Cell(package="./mini", requirement="./mini", arch="9.0")
    return (
        Result(cell=CELL, state=State.HIT, reason="filed", fingerprint="0", entry=desk.entry, log=log, seconds=0.5),
        Result(cell=listed, state=State.FAILED, reason="there is no such package"),
    )


def plans(desk: Desk) -> Iterator[dict[str, Any]]:
    desk.answer("archpatch.pipeline.survey", results(desk))
    yield desk("plan", "--json")


def matrices(desk: Desk) -> Iterator[dict[str, Any]]:
    failed = [Result(cell=each.cell, state=State.FAILED, reason="no network") for each in results(desk)]
    desk.answer("archpatch.pipeline.survey", tuple(failed))
    yield desk("plan", "--format=github")


def refreshes(desk: Desk) -> Iterator[dict[str, Any]]:
    desk.answer("archpatch.pipeline.refresh", results(desk))
    desk.answer("archpatch.pipeline.prune", (Surplus(entry=desk.entry, reason="superseded by 1.1"),))
    printed = desk("refresh", "--json", "--report=report.json")
    assert json.loads(Path("report.json").read_text()) == printed
    yield printed


def keys(desk: Desk) -> Iterator[dict[str, Any]]:
    for inputs in ({"torch": "2.14.1+cu130"}, {"cuda": "13.0"}):
        desk.answer("archpatch.keys.wheelhouse_key", Key(parts=("archpatch", "wheelhouse"), inputs=inputs))
        yield desk("key", "wheelhouse", "mini==1.0", "--gpu=l4", "--json", *_against())
        Path("key.json").write_text(json.dumps({"inputs": inputs}))


def _against() -> Sequence[str]:
    return ("--against=key.json",) if Path("key.json").exists() else ()


def lists(desk: Desk) -> Iterator[dict[str, Any]]:
    yield desk("wheelhouse", "list", "--json")


def indexes(desk: Desk) -> Iterator[dict[str, Any]]:
    yield desk("wheelhouse", "index", "--json")


def verdicts(desk: Desk) -> Iterator[dict[str, Any]]:
    desk.entry.wheel.write_bytes(b"damaged")
    yield desk("wheelhouse", "verify", "--json")


KERNELS = ("--root=kernels", "--gpu=h200", "--torch=2.14.1+cu130", "--triton=3.8.0", "--json")
JOB = (*KERNELS[1:], "--lane=unit")


def variables(desk: Desk) -> Iterator[dict[str, Any]]:
    yield desk("cache", "env", *KERNELS)


def job_keys(desk: Desk) -> Iterator[dict[str, Any]]:
    yield desk("cache", "key", *JOB)


def write_kernels(desk: Desk) -> None:
    """Write two kernels of Triton, one of them torn."""
    place = Path(desk("cache", "env", *KERNELS)["environment"]["TRITON_CACHE_DIR"])
    for stage, content in (("json", b"{}"), ("ttir", b"ir"), ("cubin", elf())):
        write(place / "K" / f"add.{stage}", content)
    paths = {f"add.{stage}": str(place / "K" / f"add.{stage}") for stage in ("json", "ttir", "cubin")}
    write(place / "K" / "__grp__add.json", json.dumps({"child_paths": paths}))
    write(place / "torn" / "__grp__add.json", "{")


def saves(desk: Desk) -> Iterator[dict[str, Any]]:
    write_kernels(desk)
    for _ in range(2):
        yield desk("cache", "save", KERNELS[0], "--store=store", *JOB)


def restores(desk: Desk) -> Iterator[dict[str, Any]]:
    yield desk("cache", "restore", KERNELS[0], "--store=store", *JOB)
    list(saves(desk))
    (archive,) = Path("store").glob("*.tar.zst")
    yield desk("cache", "restore", "--root=other", "--store=store", *JOB)
    archive.write_bytes(archive.read_bytes()[:-20])
    yield desk("cache", "restore", "--root=third", "--store=store", *JOB)
    # What ninja built is not laid over what is there.
    left_out = (("extensions/mine", "it is there already"),)
    desk.answer("archpatch.kernel_cache.restore.restore", Restored(key=None, left_out=left_out))
    yield desk("cache", "restore", "--root=other", "--store=store", *JOB)


def syncs(desk: Desk) -> Iterator[dict[str, Any]]:
    write_kernels(desk)
    Path("shared").mkdir()
    yield desk("cache", "sync", "--to=shared", *KERNELS)


def reports(desk: Desk) -> Iterator[dict[str, Any]]:
    desk.monkeypatch.setenv("HOME", str(desk.folder / "home"))
    list(restores(desk))
    write(desk.folder / "home" / ".triton" / "cache" / "x")
    yield desk("cache", "report", "--root=other", *KERNELS[1:])
    yield desk("cache", "report", "--root=third", *KERNELS[1:])


def diagnoses(desk: Desk) -> Iterator[dict[str, Any]]:
    here = desk.folder
    python = Interpreter(
        executable=here / "python",
        version="3.11.7",
        abi_tag="cp311",
        platform_tag="linux_x86_64",
        machine="x86_64",
        torch=None,
        packages=(("setuptools", "84.2.1"), ("wheel", "0.47.0")),
    )
    host = Host(
        machine="x86_64",
        compiler=None,
        ninja=here / "ninja",
        cmake=None,
        cores=2,
        memory=1 << 34,
        disk=1 << 40,
        folder=here,
    )
    no_toolkit = ToolchainError("there is no CUDA toolkit", remedy="Install one.")
    desk.answer(
        "archpatch.builder.bench.look", Bench(interpreter=python, toolkit_or_error=no_toolkit, host=host, environ={})
    )
    card = DetectedGpu(name="NVIDIA H200", arch=Arch.parse("9.0"), driver="580.95.05", uuid="GPU-0")
    desk.answer("archpatch.builder.gpus.visible_gpus", (card,))
    yield desk("doctor", "--json")


def records(desk: Desk) -> Iterator[dict[str, Any]]:
    yield json.loads(Path(f"{desk.entry.wheel}.json").read_text())


#: The title of a section -> what is printed.
PRINTED: dict[str, Callable[[Desk], Iterator[dict[str, Any]]]] = {
    "archpatch.patch/1": patches,
    "archpatch.build/1": builds,
    "archpatch.inspect/1": inspections,
    "archpatch.slim/1": slimmings,
    "archpatch.plan/1": plans,
    "plan --format github": matrices,
    "archpatch.refresh/1": refreshes,
    "archpatch.key-wheelhouse/1": keys,
    "archpatch.wheelhouse-list/1": lists,
    "archpatch.wheelhouse-index/1": indexes,
    "archpatch.wheelhouse-verify/1": verdicts,
    "archpatch.cache-env/1": variables,
    "archpatch.cache-key/1": job_keys,
    "archpatch.cache-restore/1": restores,
    "archpatch.cache-save/1": saves,
    "archpatch.cache-sync/1": syncs,
    "archpatch.cache-report/1": reports,
    "archpatch.doctor/1": diagnoses,
    "archpatch.record/1": records,
}


# --- the page says so ------------------------------------------------------------------------------


def test_every_schema_has_a_section_and_is_printed_here() -> None:
    with_json = (path for path, command in leaf_commands() if "--json" in options_of(command))
    schemas = {f"archpatch.{'-'.join(path)}/1" for path in with_json} | {"archpatch.record/1", "plan --format github"}
    assert set(SCHEMAS) == schemas, "docs/schemas.md has a section for each schema"
    assert set(PRINTED) == schemas, "PRINTED says for each schema how it is printed"


@pytest.mark.parametrize("title", PRINTED)
def test_what_is_printed_is_documented_and_nothing_else_is(title: str, desk: Desk) -> None:
    known, printed = documented(title), list(PRINTED[title](desk))
    assert {value.get("schema", title) for value in printed} == {title}
    for value in printed:
        assert misfits(value, known) == []
    seen = {path for value in printed for path, _ in fields_of(value, known)} - {"schema"}
    assert seen == set(known)


@pytest.mark.parametrize("section", SCHEMAS.values(), ids=list(SCHEMAS))
def test_the_example_fits(section: Section) -> None:
    (block,) = section.blocks
    example, known = json.loads(block.text), documented(section.title)
    assert example.pop("schema", section.title) == section.title
    assert misfits(example, known) == []
    assert set(example) == {path for path in known if "." not in path}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"files": [{"path": "a.so", "size": 1}]}, ["files[].size: integer or number"]),
        ({"cubins": "sm_80"}, ["cubins: string"]),
        ({"runs_on": {"gpu": None}}, ["runs_on.gpu: null"]),
        ({"runs_on": None, "ptx": [], "cubins": ["sm_80"]}, []),
    ],
)
def test_the_check_sees(value: dict[str, Any], found: list[str]) -> None:
    assert misfits(value, documented("archpatch.inspect/1")) == found
