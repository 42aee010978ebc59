"""How long the command line takes, beside what it cannot do without; both sides in one run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from commandline import FIXTURES, CommandLine, make_sdist, only_index
from measuring import Comparison, Imports, command, fastest, imports_of
from records import make
from sdists import unpacked

from archpatch.builder.interpreter import probe
from archpatch.wheelhouse.house import Wheelhouse
from archpatch.wheelhouse.layout import Stack

pytestmark = pytest.mark.benchmark

MAMBA = "mamba_ssm==2.3.2.post1#sha256=104cc47e9101e5401a675fa2b784f2952b9b037f3b1dd83b5ac544394e95d028"
ROUNDS = 9
#: Seconds above Python's own start that a command may take which compiles nothing.
QUICK = 0.15
PYTHON = "python -c pass"

Keep = Callable[[Comparison | Imports], None]
Compared = Callable[..., None]


def filed(archpatch: CommandLine) -> None:
    """File a wheel for an h200, for this interpreter and its torch."""
    here = probe()
    assert here.torch is not None
    stack = Stack(torch=here.torch.version, cuda=str(here.torch.cuda))
    house = Wheelhouse(archpatch.wheelhouse)
    fits = {"python": here.abi_tag, "platform": here.platform_tag}
    house.offer(house.publish(*make(archpatch.folder / "made", stack=stack, **fits), stack), "h200", stack)


@pytest.fixture
def quick(archpatch: CommandLine, linalg: Path) -> dict[str, Sequence[object]]:
    """The commands that a CI starts again and again."""
    filed(archpatch)
    packages = (MAMBA.partition("#")[0], "causal_conv1d==1.7.0")
    return {
        "key": ("key", "wheelhouse", *packages, "--gpu", "h200"),
        "wheelhouse path": ("wheelhouse", "path", "mini", "--gpu", "h200"),
        "inspect": ("inspect", linalg),
    }


def test_quick_commands_take_little_more_than_starting_python(
    archpatch: CommandLine, quick: dict[str, Sequence[object]], linalg: Path, keep: Keep, compared: Compared
) -> None:
    place = {"cwd": archpatch.folder, "env": archpatch.environment()}
    runs = {name: command(archpatch.command(*words), **place) for name, words in quick.items()}
    sides = fastest({PYTHON: command([sys.executable, "-c", "pass"], **place), **runs}, rounds=ROUNDS)
    notes = {"key": "two packages", "inspect": f"{linalg.name}, {linalg.stat().st_size / 1e6:.0f} MB"}
    for name, words in quick.items():
        keep(imports_of(name, ["-m", "archpatch", *map(str, words)], **place))
    start = {"against": sides[PYTHON], "figure": "difference", "most": QUICK}
    compared(
        *(Comparison(name=f"start: {name}", measured=sides[name], note=notes.get(name, ""), **start) for name in quick)
    )


def test_patch_takes_little_more_than_importing_libcst(archpatch: CommandLine, keep: Keep, compared: Compared) -> None:
    setup = unpacked(MAMBA, archpatch.folder / "unpacked") / "setup.py"
    target = Path(archpatch.folder, "setup.py")
    words = ["patch", str(target), "--arch", "9.0"]
    run = command(archpatch.command(*words))

    def patch() -> None:
        target.write_bytes(setup.read_bytes())
        run()

    sides = fastest(
        {"patch": patch, "import libcst.matchers": command([sys.executable, "-c", "import libcst.matchers"])},
        rounds=ROUNDS,
    )
    keep(imports_of("patch", ["-m", "archpatch", *words]))
    measured, against = sides.values()
    compared(Comparison(name="start: patch", measured=measured, against=against, most=1.5, note="mamba_ssm's setup.py"))


def test_a_refresh_with_nothing_to_do_takes_a_second(archpatch: CommandLine, compared: Compared) -> None:
    names = [f"archpatch_mini_{number}" for number in range(3)]
    for name in names:
        make_sdist(FIXTURES / "mini", archpatch.folder / "index", name=name)
    gpus = ["h100", "h200", "l4", "a10", "t4"]
    (archpatch.folder / "pyproject.toml").write_text(
        f"[tool.archpatch.plan]\npackages = {[f'{name}==0.1.0' for name in names]}\ngpu = {gpus}\n"
    )
    environ = {**only_index(archpatch.folder / "index"), "ARCHPATCH_CACHE": str(archpatch.folder / "cache")}
    first = archpatch("refresh", "--json", environ=environ)
    assert sum(cell["state"] == "built" for cell in first.json["cells"]) == 3 * 3, first.stderr
    place = {"env": archpatch.environment(environ), "cwd": archpatch.folder}
    warm, python = fastest(
        {
            "refresh": command(archpatch.command("refresh", "--json"), **place),
            PYTHON: command([sys.executable, "-c", "pass"], **place),
        },
        rounds=ROUNDS,
    ).values()
    warmed = {"measured": warm, "against": python, "note": "15 cells, nothing to do"}
    compared(Comparison(name="refresh, warm", figure="difference", most=1.0, **warmed))
