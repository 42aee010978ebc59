"""The guard in a file: where it goes, that it is found again, and what the outcome says of it."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from archpatch.arch.arch import Arch, ArchRequest
from archpatch.arch.selection import KnownBad, Policy
from archpatch.errors import NoMatchingArch
from archpatch.rewrite.guard import GUARD_BEGIN, GUARD_END, strip_guard
from archpatch.rewrite.outcome import Outcome, Refused, Rewritten, Unchanged
from archpatch.rewrite.source import rewrite_source

CASES = Path(__file__).parents[1] / "fixtures" / "setup_py"
HOPPER = ArchRequest.parse("9.0")
FLAG = b'flags = [f"-arch=sm_{n}" for n in archs]\n'


def rewrite(source: bytes, request: str = "9.0", policy: Policy | None = None) -> Outcome:
    return rewrite_source(source, ArchRequest.parse(request), policy=policy or Policy())


#: What stays in front of the guard, and what comes behind it.
PLACES = [
    (b"", FLAG),
    (b"#!/usr/bin/env python\n# Copyright\n", b"\n# more\n" + FLAG),
    (b"# Copyright\n# (c)\n", b"\nimport os\n" + FLAG),
    (b'"""Docs."""\n', FLAG),
    (b'#!/x\n\n"""Docs\nover lines."""\n', b"\n" + FLAG),
    (b'"""Docs."""\n\n\nfrom __future__ import annotations\n', FLAG),
    (b"from __future__ import (\n    annotations,\n    division,\n)\nfrom __future__ import generators\n", FLAG),
    (b'"""Docs."""; from __future__ import annotations; x = [\n    1,\n]; y = 2\n', FLAG),
    (b"\xef\xbb\xbf# mark\n", FLAG),
    (b"\xef\xbb\xbf", FLAG),
    (b"", b"\x0c\n" + FLAG),
    (b"", b"@decorator\ndef f(): pass\n" + FLAG),
    (b"# only\n", b"    # indented\n" + FLAG),
]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize(("head", "tail"), PLACES)
def test_it_stands_in_front_of_what_does_anything(head: bytes, tail: bytes, newline: bytes, final: bool) -> None:  # noqa: FBT001
    head, tail = head.replace(b"\n", newline), tail.replace(b"\n", newline)
    source = head + (tail if final else tail.removesuffix(newline))
    newline = newline if newline in source else b"\n"
    outcome = rewrite(source)

    assert isinstance(outcome, Rewritten)
    assert outcome.source.startswith(head + GUARD_BEGIN.encode() + newline)
    assert outcome.source.endswith(newline + GUARD_END.encode() + newline + source[len(head) :])
    assert strip_guard(outcome.source).source == source
    ast.parse(outcome.source)
    if newline != b"\n":
        assert outcome.source.count(b"\n") == (outcome.source.count(newline) if newline == b"\r\n" else 0)


def test_it_keeps_the_encoding() -> None:
    head, tail = b"#!/usr/bin/env python\n# -*- coding: latin-1 -*-\n", b"\nx = '\xe9'\n" + FLAG
    outcome = rewrite(head + tail)

    assert outcome.source.startswith(head + GUARD_BEGIN.encode())
    assert outcome.source.endswith(tail)


@pytest.mark.parametrize(
    "source", [b'"""Docs."""; f = f"-arch=sm_{n}"', b'from __future__ import print_function; f = f"-arch=sm_{n}"']
)
def test_it_can_be_the_end_of_a_file_without_a_line_end(source: bytes) -> None:
    outcome = rewrite(source)

    assert outcome.source.startswith(source + b"\n# archpatch guard begin")
    assert outcome.source.endswith(GUARD_END.encode())
    assert strip_guard(outcome.source).source == source
    assert rewrite(outcome.source).source == outcome.source


def test_a_second_run_replaces_it() -> None:
    first = rewrite(FLAG)
    again = rewrite(first.source)
    other = rewrite(first.source, "8.0;10.0f")

    assert isinstance(again, Unchanged)
    assert (again.source, again.guarded, again.sources) == (first.source, True, again.sources)
    assert isinstance(other, Rewritten)
    assert other.source == rewrite(FLAG, "8.0;10.0f").source != first.source


def test_lines_are_those_of_the_file_with_the_guard_that_it_came_with() -> None:
    source = b'"""Docs."""\nimport x\n' + FLAG
    first = rewrite(source)
    length = first.source.count(b"\n") - source.count(b"\n")
    again = rewrite(first.source)

    assert isinstance(first, Rewritten)
    assert isinstance(again, Unchanged)
    assert [item.line for item in first.sources] == [3]
    assert [item.line for item in again.sources] == [3 + length]
    broken = rewrite(first.source + b"x = (\n")
    assert isinstance(broken, Refused)
    assert broken.refusals[0].line == first.source.count(b"\n") + 1
    assert broken.source == first.source + b"x = (\n"


def test_it_goes_where_it_is_needed_no_more() -> None:
    plain = b'from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension("demo", ["demo.cu"])\n'
    guarded = rewrite(plain, "12.0f")

    assert isinstance(guarded, Rewritten)
    assert [item.shape for item in guarded.sources] == ["not-in-torch"]
    assert rewrite(guarded.source, "12.0") == Rewritten(source=plain, pairs=(), selection=None)


def test_without_a_request_it_is_left() -> None:
    first = rewrite(FLAG)
    outcome = rewrite_source(first.source, None, policy=Policy())

    assert isinstance(outcome, Unchanged)
    assert outcome.source == first.source
    assert outcome.notes == ("line 1: the guard of an earlier run is left",)


def test_pairs_and_sources_are_reported() -> None:
    outcome = rewrite(b'flags = ["-gencode=arch=compute_80,code=sm_80"]\n' + FLAG)

    assert isinstance(outcome, Rewritten)
    assert [item.to_json() for item in outcome.pairs] == [
        {
            "pair": ["compute_80", "sm_80"],
            "line": 1,
            "action": "guarded",
            "reason": "the guard selects when setup.py runs",
        }
    ]
    assert [item.to_json() for item in outcome.sources] == [
        {"line": 2, "shape": "f-string", "action": "guarded", "reason": "the flag is put together at run time"}
    ]


def test_the_text_is_python_for_old_interpreters_and_ascii() -> None:
    policy = Policy(known_bad=(KnownBad(arch=Arch(10, 3), reason='wrong: \u2192 "it\'s" \\ here'),))
    outcome = rewrite(FLAG, "9.0", policy)

    assert outcome.source.isascii()
    tree = ast.parse(outcome.source, feature_version=(3, 8))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
        if name
    }
    assert imported == {"distutils", "os", "re", "setuptools"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.NamedExpr | ast.AnnAssign)]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.arg) and node.annotation]
    assert len(outcome.source.splitlines()) < 310


def test_a_standard_is_raised_beside_it() -> None:
    source = FLAG + b'flags.append("-std=c++17")\n'
    outcome = rewrite_source(source, HOPPER, policy=Policy(), cxx_standard=20)

    assert isinstance(outcome, Rewritten)
    assert outcome.guarded
    assert outcome.notes == ("line 2: -std=c++17 raised to -std=c++20",)
    assert strip_guard(outcome.source).source == source.replace(b"17", b"20")


def test_no_match_in_a_text_that_proves_it_needs_no_guard() -> None:
    outcome = rewrite(b'flags = ["-arch=sm_80"]\n', "12.0")

    assert isinstance(outcome, Refused)
    assert isinstance(outcome.error(), NoMatchingArch)


TORCH = b"from torch.utils.cpp_extension import CUDAExtension\n"
#: What the text says beside its flags: line 2 and the shape, None where the guard is not needed.
SIGNS = [
    (b'os.environ["TORCH_CUDA_ARCH_LIST"] = "8.0"', "overwrites-arch-list"),
    (b'os.environ.pop("TORCH_CUDA_ARCH_LIST", None)', "overwrites-arch-list"),
    (b'os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "8.0")', "overwrites-arch-list"),
    (b'os.putenv("TORCH_CUDA_ARCH_LIST", "8.0")', "overwrites-arch-list"),
    (b'del os.environ["TORCH_CUDA_ARCH_LIST"]', "overwrites-arch-list"),
    (b'os.environ.update({"TORCH_CUDA_ARCH_LIST": "8.0"})', "overwrites-arch-list"),
    (b'NAME = "TORCH_CUDA_ARCH_LIST"', "overwrites-arch-list"),
    (b'for name in ("TORCH_CUDA_ARCH_LIST", "X"): os.environ.pop(name, None)', "overwrites-arch-list"),
    (b'for name in ("TORCH_CUDA_ARCH_LIST", "X"): print(os.environ.get(name))', None),
    (b'if os.environ.get("TORCH_CUDA_ARCH_LIST"): pass', None),
    (b'if "TORCH_CUDA_ARCH_LIST" not in os.environ: raise SystemExit', None),
    (b'archs = os.environ["TORCH_CUDA_ARCH_LIST"]', None),
    (b'archs = os.environ["DEMO_CUDA_ARCHS"]', "own-variable"),
    (b'archs = os.getenv("COMPUTE_CAPABILITIES")', "own-variable"),
    (b'archs = os.environ.get("HIP_ARCHITECTURES", "native")', None),
    (b'archs = os.environ.get("PYTORCH_ROCM_ARCH")', None),
    (b'flags = os.environ.get("ARCHFLAGS")', None),
    (b"flags = torch.cuda.get_gencode_flags()", "asks-torch"),
    (b"flags = torch.cuda.get_arch_list()", "asks-torch"),
    (b"major, minor = torch.cuda.get_device_capability(0)", "asks-gpu"),
    (b"x = torch.cuda.get_device_properties(0).major", "asks-gpu"),
    (b'x = run(["nvidia-smi", "--query-gpu=compute_cap"])', "asks-gpu"),
    (b"from build_tools.extensions import nvcc_flags", "helper-module"),
    (b"import op_builder", "helper-module"),
    (b"from torch.utils.cpp_extension import BuildExtension", None),
    (b"import build_version", "helper-module"),
    (b"import importlib.util", None),
]


@pytest.mark.parametrize(("line", "shape"), SIGNS, ids=lambda value: str(value)[:60])
def test_signs(line: bytes, shape: str | None) -> None:
    outcome = rewrite(TORCH + line + b"\n")

    assert outcome.outcome == ("unchanged" if shape is None else "rewritten")
    assert not isinstance(outcome, Refused)
    assert [(item.line, item.shape) for item in outcome.sources] == ([] if shape is None else [(2, shape)])


@pytest.mark.parametrize(("line", "shape"), SIGNS, ids=lambda value: str(value)[:60])
def test_signs_beside_pairs_of_the_text(line: bytes, shape: str | None) -> None:
    outcome = rewrite(TORCH + b'flags = ["-arch=compute_80", "-gencode=arch=compute_90,code=sm_90"]\n' + line)

    assert isinstance(outcome, Rewritten)
    assert outcome.guarded == (shape == "asks-torch")


def mutated(rng: random.Random, source: bytes) -> bytes:
    """Return `source` with a few lines or bytes moved, doubled, lost or changed."""
    lines = source.splitlines(keepends=True)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                del lines[at : at + rng.randint(1, 3)]
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                lines[at] = lines[at].replace(b"80", b"90").replace(b'f"', b'"')
            case 3:
                lines[at] = lines[at].replace(b"\n", rng.choice([b"\r\n", b"\r", b"", b"  # \xc3\xa9\n", b"\\\n"]))
            case 4:
                cut = rng.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:cut] + bytes([rng.randrange(256)]) + lines[at][cut + rng.randrange(2) :]
            case _:
                other = rng.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
        if not lines:
            return b""
    return b"".join(lines)


@pytest.mark.parametrize("case", sorted(CASES.rglob("*.py")), ids=lambda case: f"{case.parent.name}-{case.stem}")
def test_mutations_never_raise_and_give_python_that_stays_the_same(case: Path) -> None:
    rng = random.Random(case.name)  # noqa: S311 - cases for a test
    source = case.read_bytes()
    for _ in range(6):
        changed = mutated(rng, source)
        request = ArchRequest.parse(rng.choice(["9.0", "8.0+PTX", "12.0f", "7.5;9.0a"]))
        standard = rng.choice([None, 20])
        once = rewrite_source(changed, request, policy=Policy(), cxx_standard=standard)
        if isinstance(once, Refused):
            assert once.source == changed
            continue
        ast.parse(once.source)
        again = rewrite_source(once.source, request, policy=Policy(), cxx_standard=standard)

        assert again.source == once.source
        assert not isinstance(again, Rewritten)
