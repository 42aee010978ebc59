from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from kernels import named_by

from archpatch.kernel_cache.graphs import point_graph

OLD = "/a/lane/inductor"
NEW = Path("/somewhere/else/ä/lane/inductor")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_a_kernel_names_is_named_at_the_new_place(protocol: int) -> None:
    source, best = (f"{OLD}/ab/{name}" for name in ("cx.py", "4f.best_config"))
    graph = {
        "kernels": [source, source, best],
        "long": f"{OLD}/ab/{'x' * 300}.py",
        "binary": b"y" * 100_000,
        "n": 2**70,
    }
    moved = named_by(point_graph(pickle.dumps(graph, protocol), NEW))
    assert moved == {
        **graph,
        "kernels": [f"{NEW}/ab/cx.py", f"{NEW}/ab/cx.py", f"{NEW}/ab/4f.best_config"],
        "long": f"{NEW}/ab/{'x' * 300}.py",
    }


@pytest.mark.parametrize(
    "text",
    [
        f"# kernel path: {OLD}/ab/cx.py\n",
        f"{OLD}/ab/cx.py\n{OLD}/ab/cy.py",
        f"{OLD}/cx.py",
        f"{OLD}/ab/cd/cx.py",
        f"{OLD}/ab/kernel.cubin",
        "/usr/lib/python3/ab/cx.py",
        "inductor/ab/cx.py",
        f"{NEW}/ab/cx.py",
    ],
)
def test_what_names_no_kernels_file_stays_to_the_byte(text: str) -> None:
    content = pickle.dumps([text, b"z" * 100_000])
    assert point_graph(content, NEW) == content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80pickle",
        b"{}",
        pickle.dumps([f"{OLD}/ab/cx.py"])[:-5],
        b"X\xff\xff\xff\xff/a",
        b"X\x01\x00\x00\x00\xff.",
    ],
)
def test_what_is_no_pickle_stays(content: bytes) -> None:
    assert point_graph(content, NEW) == content


class Trap:
    """What makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


def test_nothing_that_a_pickle_names_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    assert f"{NEW}/ab/cx.py".encode() in point_graph(pickle.dumps([Trap(trap), f"{OLD}/ab/cx.py"]), NEW)
    assert not trap.exists()
