"""The guard's own copy of the rules, side by side with the rules themselves."""

from __future__ import annotations

import os
import random
import re
from types import SimpleNamespace
from typing import Any

import pytest

from archpatch.arch import arch as archs
from archpatch.arch.arch import Arch, ArchRequest, DeviceCode, Pair
from archpatch.arch.gencode import parse_flags
from archpatch.arch.gpu import GpuRequest, gpu_types
from archpatch.arch.selection import KnownBad, OnMissing, Policy, Request, select
from archpatch.errors import NoMatchingArch
from archpatch.rewrite import guard_runtime
from archpatch.rewrite.guard import baked
from archpatch.rewrite.guard_runtime import ArchpatchNoMatchingArch, ArchpatchRefusedFlags, filter_extension

BASES = [Arch(*base) for base in sorted(archs.KNOWN)]
ARCHS = [*BASES, *(Arch(base.major, base.minor, suffix) for base in BASES if base.major >= 9 for suffix in "af")]


def flag_for(pair: Pair, style: int) -> list[str]:
    compute, code = pair.spelled
    value = f"arch={compute},code={code}"
    return [
        [f"-gencode={value}"],
        ["-gencode", value],
        [f"--generate-code={value}"],
        ["--generate-code", value],
        [f"-gencode=arch={compute},code=[{code}]"],
        [f'-gencode=arch={compute},code=\\"{code}\\"'],
    ][style]


def a_pair(rng: random.Random) -> Pair:
    arch = rng.choice(rng.choice([ARCHS, BASES]))
    if rng.random() < 0.2:
        return Pair.of(DeviceCode(arch, ptx=True))
    return Pair(arch, DeviceCode(arch.base if rng.random() < 0.2 else arch))


def a_request(rng: random.Random, near: list[Arch]) -> Request:
    if rng.random() < 0.4:
        names = rng.sample([gpu.name for gpu in gpu_types()], rng.choice([1, 1, 2]))
        return GpuRequest.of(*names)
    pool = near if near and rng.random() < 0.7 else ARCHS
    chosen = tuple(sorted({rng.choice(pool) for _ in range(rng.choice([1, 1, 2, 3]))}))
    return ArchRequest(archs=chosen, ptx=tuple(arch for arch in chosen if rng.random() < 0.3))


def a_policy(rng: random.Random, near: list[Arch]) -> Policy:
    bad = {arch.base for arch in near if rng.random() < 0.1}
    return Policy(
        on_missing=rng.choice([None, *OnMissing]),
        strict=rng.random() < 0.3,
        known_bad=tuple(KnownBad(arch=arch, reason=f"{arch} is wrong") for arch in sorted(bad)),
    )


def guarded(flags: list[Any], request: Request, policy: Policy) -> list[Any]:
    demo = extension({"nvcc": flags})
    filter_extension(demo, baked(request, policy), {})
    once = demo.extra_compile_args
    filter_extension(demo, baked(request, policy), {})

    assert demo.extra_compile_args is once
    return once["nvcc"]


def told(error: NoMatchingArch) -> str:
    """Return the pattern of a guard's message that says the same as `error`, and names the same ways out."""
    asked, _, there = error.message.partition(": the package compiles ")
    bad = "".join(f"; {each}" for each in there.split("; ")[1:])
    tail = f"{bad}. Ask archpatch for one of these. {error.remedy}".rstrip()
    return rf"^archpatch: extension demo: {re.escape(asked)}: it compiles [\w, ]+{re.escape(tail)}$"


def extension(
    arguments: object, *, name: str = "demo", sources: tuple[str, ...] = ("a.cpp", "b.cu")
) -> SimpleNamespace:
    return SimpleNamespace(name=name, sources=list(sources), extra_compile_args=arguments)


@pytest.mark.parametrize("seed", range(20))
def test_it_selects_as_the_rules_do(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - cases for a test
    raised = 0
    for _ in range(150):
        pairs = [a_pair(rng) for _ in range(rng.randint(1, 9))]
        near = [pair.compute for pair in pairs]
        request, policy = a_request(rng, near), a_policy(rng, near)
        flags: list[str] = ["-O3"]
        for pair in pairs:
            flags += flag_for(pair, rng.randrange(6)) + (["-lineinfo"] if rng.random() < 0.3 else [])
        pristine = list(flags)
        try:
            wanted = select(parse_flags(flags).pairs, request, policy)
        except NoMatchingArch as error:
            raised += 1
            with pytest.raises(ArchpatchNoMatchingArch, match=told(error)):
                guarded(flags, request, policy)
            continue
        result = guarded(flags, request, policy)

        assert parse_flags(result).pairs == (*wanted.kept, *wanted.added)
        assert [flag for flag in result if "arch" not in flag] == [f for f in flags if f in ("-O3", "-lineinfo")]
        assert flags == pristine
    assert 0 < raised < 150


def test_its_tables_are_those_of_the_rules() -> None:
    assert set(guard_runtime.KNOWN) == {base.number for base in BASES}
    assert set(guard_runtime.TEGRA) == {Arch(*base).number for base in archs.TEGRA}


#: Every spelling of nvcc, and what it refuses.
SPELLINGS = [
    ["-arch=sm_80"],
    ["-arch", "sm_80"],
    ["--gpu-architecture=compute_80"],
    ["--gpu-architecture", "sm_90a"],
    ["-arch=compute_80", "-code=sm_80,compute_80"],
    ["--gpu-code", "[sm_80,sm_86]", "--gpu-architecture", "compute_80"],
    ["-arch=sm_70", "-gencode=arch=compute_80,code=sm_80", "-arch=sm_75"],
    ["-gencode=arch=compute_80,code=[sm_80,compute_80]"],
    ["-gencode", 'arch=compute_80,code="sm_80,compute_80"'],
    ["-gencode=code=sm_80,arch=compute_80"],
    ["-gencode=arch=compute_100f,code=sm_100"],
    ["-Xcompiler", "-march=native", "--offload-arch=gfx90a", "-DTORCH_EXTENSION_NAME=arch"],
    ["-gencode"],
    ["-gencode", "-O3"],
    ["-gencode", "arch=compute_80"],
    ["-arch=native"],
    ["-arch=all"],
    ["-arch", "-O3"],
    ["-arch=sm_80", "-code=sm_80"],
    ["-code=sm_80"],
    ["-arch=sm_81"],
    ["-gencode=arch=compute_80,code=lto_80"],
    ["arch=compute_80,code=sm_80"],
    ["-gencode arch=compute_80,code=sm_80"],
    ["-arch sm_80"],
]


@pytest.mark.parametrize("flags", SPELLINGS, ids=" ".join)
def test_it_reads_flags_as_the_rules_do(flags: list[str]) -> None:
    wanted = parse_flags(flags)
    if wanted.problems:
        with pytest.raises(ArchpatchRefusedFlags, match=r"^archpatch: extension demo: the arch flag "):
            guard_runtime.read_flags("demo", flags)
    else:
        _, _, pairs = guard_runtime.read_flags("demo", flags)

        assert [(Arch(*compute), DeviceCode(Arch(*arch), ptx=ptx)) for compute, (arch, ptx) in pairs] == [
            (pair.compute, pair.code) for pair in wanted.pairs
        ]


HOPPER = baked(ArchRequest.parse("9.0"), Policy())
BOTH = ["-O3", "-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90", "-lineinfo"]
ONE = ["-O3", "-gencode=arch=compute_90,code=sm_90", "-lineinfo"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"cxx": ["-O2"], "nvcc": BOTH}, {"cxx": ["-O2"], "nvcc": ONE}),
        ({"nvcc": BOTH, "nvcc_dlink": BOTH[1:]}, {"nvcc": ONE, "nvcc_dlink": ONE[1:]}),
        ({"nvcc": BOTH, "nvcc_dlink": ["-dlink"]}, {"nvcc": ONE, "nvcc_dlink": ["-dlink", ONE[1]]}),
        (BOTH, ONE),
        (tuple(BOTH), ONE),
    ],
)
def test_every_place_of_the_flags_is_filtered_and_none_changed_in_place(before: object, after: object) -> None:
    shared = extension(before), extension(before, sources=("a.cpp",)), extension(before, name="other")
    for each in shared:
        filter_extension(each, HOPPER, {})

    assert shared[0].extra_compile_args == shared[2].extra_compile_args == after
    assert shared[1].extra_compile_args is before
    assert BOTH[1] == "-gencode=arch=compute_80,code=sm_80"


@pytest.mark.parametrize("arguments", [{}, {"nvcc": ["-O3"]}, {"nvcc": None}, [], None])
def test_an_extension_without_pairs_is_left_to_torch(arguments: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5")
    request = baked(ArchRequest.parse("9.0;8.0+PTX"), Policy())
    filter_extension(extension(arguments), request, {})

    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "8.0+PTX;9.0"


@pytest.mark.parametrize(
    ("request_", "codes"),
    [
        (ArchRequest.parse("12.0f+PTX"), ["compute_120f,code=sm_120f", "compute_120f,code=compute_120f"]),
        (ArchRequest.parse("8.8;9.0"), ["compute_88,code=sm_88", "compute_90,code=sm_90"]),
    ],
)
def test_what_torch_does_not_know_is_handed_to_nvcc(request_: Request, codes: list[str]) -> None:
    demo = extension({"nvcc": ["-O3"]})
    filter_extension(demo, baked(request_, Policy()), {})

    assert demo.extra_compile_args["nvcc"] == ["-O3", *(f"-gencode=arch={code}" for code in codes)]


def per_arch(*numbers: str) -> list[SimpleNamespace]:
    return [
        extension(
            {"nvcc": [f"-gencode=arch=compute_{n},code={kind}_{n}" for kind in ("compute", "sm")]}, name=f"m._{n}_C"
        )
        for n in numbers
    ]


@pytest.mark.parametrize(
    ("text", "on_missing", "names"),
    [
        ("9.0", None, ["m._90_C"]),
        ("8.0;9.0+PTX", None, ["m._80_C", "m._90_C"]),
        ("8.9;9.0", OnMissing.NEAREST, ["m._86_C", "m._90_C"]),
    ],
)
def test_of_one_extension_per_arch_the_others_go(text: str, on_missing: OnMissing | None, names: list[str]) -> None:
    request, policy = ArchRequest.parse(text), Policy(on_missing=on_missing)
    extensions = [*per_arch("80", "86", "90"), extension({"nvcc": BOTH}, name="m.other")]
    everything = [flag for each in extensions[:3] for flag in each.extra_compile_args["nvcc"]]
    families = guard_runtime.keep_selected(extensions, baked(request, policy))
    for each in extensions:
        filter_extension(each, baked(request, policy), families)

    assert [each.name for each in extensions] == [*names, "m.other"]
    flags = [flag for each in extensions[:-1] for flag in each.extra_compile_args["nvcc"]]
    wanted = select(parse_flags(everything).pairs, request, policy)
    assert {pair.device_code for pair in parse_flags(flags).pairs} == wanted.device_code


@pytest.mark.parametrize(("text", "on_missing"), [("12.0", None), ("12.0", OnMissing.ADD)])
def test_one_extension_per_arch_without_the_one_asked_for(text: str, on_missing: OnMissing | None) -> None:
    with pytest.raises(ArchpatchNoMatchingArch, match=r"extension m\._\*_C: no matching arch for 12"):
        guard_runtime.keep_selected(per_arch("80", "90"), baked(ArchRequest.parse(text), Policy(on_missing=on_missing)))
