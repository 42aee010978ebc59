"""Rewritten files, run: what nvcc gets is what the rules select from what it gets of the file as it came."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator

# isort: split - from here on distutils is the one of setuptools
from distutils.ccompiler import CCompiler
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import setuptools
from setuptools.command.build_ext import build_ext

from archpatch.arch.arch import Arch, ArchRequest, DeviceCode, Pair
from archpatch.arch.gencode import parse_flags
from archpatch.arch.gpu import GpuRequest
from archpatch.arch.selection import OnMissing, Policy, Request, select
from archpatch.errors import NoMatchingArch
from archpatch.rewrite.guard import torch_list
from archpatch.rewrite.outcome import Refused
from archpatch.rewrite.source import rewrite_source

CASES = Path(__file__).parents[1] / "fixtures" / "setup_py"
PROJECTS = [
    case
    for case in sorted((*CASES.glob("guarded/*.py"), *CASES.glob("rewritten/*/before.py")))
    if "setup(" in case.read_text() and case.stem != "extension_per_arch"
]
#: A condition on torch's CUDA holds for the first of these, and not for the second.
WORLDS = [
    (case, cuda)
    for case in PROJECTS
    for cuda in (("13.0", "11.5") if "version.cuda" in case.read_text() else ("13.0",))
]

REQUESTS: list[tuple[Request, Policy]] = [
    (ArchRequest.parse("8.0"), Policy()),
    (ArchRequest.parse("9.0"), Policy()),
    (ArchRequest.parse("8.0;9.0+PTX"), Policy()),
    (ArchRequest.parse("9.0a"), Policy()),
    (ArchRequest.parse("10.0f"), Policy()),
    (ArchRequest.parse("10.0f"), Policy(on_missing=OnMissing.ADD)),
    (ArchRequest.parse("8.6;8.9;9.0"), Policy(strict=True)),
    (ArchRequest.parse("8.6;12.0+PTX"), Policy(on_missing=OnMissing.NEAREST)),
    (ArchRequest.parse("8.9+PTX"), Policy(on_missing=OnMissing.ADD)),
    (GpuRequest.of("l4"), Policy()),
    (GpuRequest.of("h200", "a100"), Policy()),
    (GpuRequest.of("b300"), Policy(on_missing=OnMissing.ADD)),
    (GpuRequest.of("h200"), Policy(on_missing=OnMissing.ERROR)),
]

#: What nvcc was told per extension: its arguments, and the flags that torch added.
Seen = dict[str, tuple[list[str], list[str]]]


class Compiler(CCompiler):
    """Stands in for the compiler of a build: notes what nvcc would be told."""

    executables: dict[str, list[str]] = {}  # noqa: RUF012 - as each compiler of setuptools has it
    shared_lib_extension = ".so"

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def compile(
        self, sources: list[str], *, extra_postargs: list[str] | dict[str, list[str]], **_: object
    ) -> list[str]:
        if any(source.endswith(".cu") for source in sources):
            words = list(extra_postargs["nvcc"] if isinstance(extra_postargs, dict) else extra_postargs)
            self.seen[sources[0]] = (words, torch_flags(words))
        return ["demo.o"]

    def link_shared_object(self, *_: object, **__: object) -> None:
        """Link nothing."""


def torch_flags(words: list[str]) -> list[str]:
    """Return what torch adds: nothing beside arch flags, else its variable's."""
    if any("arch" in word for word in words):
        return []
    codes = ArchRequest.parse(os.environ["TORCH_CUDA_ARCH_LIST"]).device_code
    assert all(code.arch.suffix != "f" for code in codes), "torch knows no f suffix"
    return [f"-gencode=arch={compute},code={code}" for compute, code in (Pair.of(code).spelled for code in codes)]


class BuildExtension(build_ext):
    """As torch's: ends in setuptools' own `build_extensions`."""

    def build_extensions(self) -> None:
        for extension in self.extensions:
            if isinstance(extension.extra_compile_args, dict):
                for key in ("cxx", "nvcc"):
                    extension.extra_compile_args.setdefault(key, [])
        build_ext.build_extensions(self)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], Seen]]:
    """Run a file up to its compiles, with a stand-in for torch; what it changes is put back."""
    extension = ModuleType("torch.utils.cpp_extension")
    extension.BuildExtension = BuildExtension  # type: ignore[attr-defined]
    extension.CUDAExtension = extension.CppExtension = setuptools.Extension  # type: ignore[attr-defined]
    extension.CUDA_HOME = "/usr/local/cuda"  # type: ignore[attr-defined]
    torch, utils = ModuleType("torch"), ModuleType("torch.utils")
    torch.utils, utils.cpp_extension = utils, extension  # type: ignore[attr-defined]
    torch.version = SimpleNamespace(cuda="13.0")  # type: ignore[attr-defined]
    torch.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        get_device_capability=lambda: (9, 0),
        get_gencode_flags=lambda: "-gencode compute=compute_80,code=sm_80 -gencode compute=compute_90,code=sm_90",
    )
    for name, module in {"torch": torch, "torch.utils": utils, "torch.utils.cpp_extension": extension}.items():
        monkeypatch.setitem(sys.modules, name, module)
    plain = build_ext.__mro__[build_ext.__mro__.index(build_ext) + 1]
    for owner in (build_ext, plain):
        for method in ("build_extension", "build_extensions"):
            monkeypatch.setattr(owner, method, getattr(owner, method), raising=True)
    methods = [(owner, name, vars(owner).get(name)) for owner in (build_ext, plain) for name in vars(owner)]

    def execute(source: bytes) -> Seen:
        seen: Seen = {}

        def setup(**arguments: object) -> None:
            command = setuptools.Distribution(arguments).get_command_obj("build_ext")
            command.ensure_finalized()
            command.compiler = Compiler(seen)
            command.build_extensions()

        with monkeypatch.context() as patch:
            patch.setattr(setuptools, "setup", setup)
            for owner, name, method in methods:
                if name.startswith("build_extension"):
                    patch.setattr(owner, name, method)
            exec(compile(source, "setup.py", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own fixtures
        return seen

    return execute


def wanted(before: dict[str, list[str]], request: Request, policy: Policy) -> dict[str, set[DeviceCode] | None]:
    """Return what the rules select per extension, None for one that loses all."""
    result: dict[str, set[DeviceCode] | None] = {}
    for name, words in before.items():
        pairs = parse_flags(words).pairs
        asked = request.device_code if isinstance(request, ArchRequest) else map(DeviceCode, request.archs)
        try:
            result[name] = set(select(pairs, request, policy).device_code) if pairs else set(asked)
        except NoMatchingArch:
            result[name] = None
    return result


def name(case: Path) -> str:
    return case.parent.name if case.stem == "before" else case.stem


@pytest.mark.parametrize(("request_", "policy"), REQUESTS, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: f"{name(world[0])}-{world[1]}")
def test_nvcc_gets_what_the_rules_select(
    world: tuple[Path, str],
    request_: Request,
    policy: Policy,
    run: Callable[[bytes], Seen],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = world[0].read_bytes()
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", torch_list(request_) or "7.0")
    monkeypatch.setattr(sys.modules["torch"].version, "cuda", world[1])
    outcome = rewrite_source(source, request_, policy=policy)
    before = unpatched(world, run)
    expected = wanted(before, request_, policy)
    lost = {name for name, codes in expected.items() if codes is None}
    if isinstance(outcome, Refused):
        assert outcome.no_match is not None
        assert lost
        return
    if lost and outcome.guarded:
        with pytest.raises(SystemExit, match=r"^archpatch: extension \S+: no matching arch for ") as caught:
            run(outcome.source)
        assert type(caught.value).__name__ == "ArchpatchNoMatchingArch"
        return
    after = run(outcome.source)

    # What loses all by a condition that is false has no pairs of its own any more, which a build looks for.
    assert not any(parse_flags(after[name][0]).pairs for name in lost)
    assert {name: None if name in lost else codes(*flags) for name, flags in after.items()} == expected
    assert {name: others(flags[0]) for name, flags in after.items()} == {
        name: others(words) for name, words in before.items()
    }


#: What nvcc is told of each case as it came: that does not depend on the request.
BEFORE: dict[tuple[Path, str], dict[str, list[str]]] = {}


def unpatched(world: tuple[Path, str], run: Callable[[bytes], Seen]) -> dict[str, list[str]]:
    """Return what nvcc is told per extension of a file as it came, without what torch adds."""
    if world not in BEFORE:
        seen = run(world[0].read_bytes().replace(b"os.environ.pop", b"os.environ.get"))
        BEFORE[world] = {name: words for name, (words, _) in seen.items()}
    return BEFORE[world]


def codes(words: list[str], added: list[str]) -> set[DeviceCode]:
    flags = parse_flags([*words, *added])

    assert not flags.problems
    return {pair.device_code for pair in flags.pairs}


def others(words: list[str]) -> list[str]:
    return [word for word in words if not re.search("arch|gencode|generate-code|^sm_", word)]


@pytest.mark.parametrize(
    ("text", "on_missing", "sources"),
    [
        ("9.0", OnMissing.ERROR, {"kernels_90.cu": {DeviceCode(Arch(9, 0))}}),
        ("8.9", OnMissing.NEAREST, {"kernels_86.cu": {DeviceCode(Arch(8, 6))}}),
        (
            "8.0;9.0+PTX",
            OnMissing.ERROR,
            {
                "kernels_80.cu": {DeviceCode(Arch(8, 0))},
                "kernels_90.cu": {DeviceCode(Arch(9, 0)), DeviceCode(Arch(9, 0), ptx=True)},
            },
        ),
    ],
)
def test_of_one_extension_per_arch_the_others_go(
    text: str, on_missing: OnMissing, sources: object, run: Callable[[bytes], Seen]
) -> None:
    source = (CASES / "guarded" / "extension_per_arch.py").read_bytes()
    outcome = rewrite_source(source, ArchRequest.parse(text), policy=Policy(on_missing=on_missing))

    assert {name: codes(*flags) for name, flags in run(outcome.source).items()} == sources


def test_flags_that_nvcc_would_refuse_stop_the_build(
    run: Callable[[bytes], Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEW_CARD", "1")
    source = (CASES / "guarded" / "value_without_its_flag.py").read_bytes()
    outcome = rewrite_source(source, ArchRequest.parse("9.0"), policy=Policy())
    with pytest.raises(
        SystemExit, match="the arch flag 'arch=compute_120,code=sm_120' is none that nvcc takes"
    ) as caught:
        run(outcome.source)

    assert type(caught.value).__name__ == "ArchpatchRefusedFlags"


def test_a_command_of_distutils_alone_is_guarded_too(run: Callable[[bytes], Seen]) -> None:
    source = b"""
from distutils.command.build_ext import build_ext
from setuptools import setup
from setuptools import Extension

class Build(build_ext):
    def build_extension(self, ext):
        ext._convert_pyx_sources_to_lang = lambda: None
        build_ext.build_extension(self, ext)

setup(
    name="demo",
    ext_modules=[Extension("demo", ["demo.cu"], extra_compile_args={"nvcc": [f"-arch=sm_{80}", f"-arch=sm_{90}"]})],
    cmdclass={"build_ext": Build},
)
"""
    outcome = rewrite_source(source, ArchRequest.parse("9.0"), policy=Policy())

    assert codes(*run(outcome.source)["demo.cu"]) == {DeviceCode(Arch(9, 0))}
