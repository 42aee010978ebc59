import json
import sys
from pathlib import Path

import pytest

from archpatch.builder import interpreter_probe
from archpatch.builder.commands import Output
from archpatch.builder.interpreter import Interpreter, TorchFacts, missing_requirements, probe
from archpatch.errors import ToolchainError

VERSION_PY = """\
from typing import Optional

__all__ = ['__version__', 'cuda']
__version__ = '2.14.1+cu130'
debug = False
cuda: Optional[str] = {cuda}
raise SystemExit("this module is read, never run")
"""


def interpreter(*packages: tuple[str, str], version: str = "3.11.7", machine: str = "x86_64") -> Interpreter:
    return Interpreter(
        executable=Path("/env/bin/python"),
        version=version,
        abi_tag="cp311",
        platform_tag="linux_x86_64",
        machine=machine,
        torch=None,
        packages=packages,
    )


def torch_folder(tmp_path: Path, *, cuda: str = "'13.0'", library: bytes | None = None, header: str = "") -> Path:
    folder = tmp_path / "torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "version.py").write_text(VERSION_PY.format(cuda=cuda))
    if library is not None:
        (folder / "lib/libc10.so").write_bytes(library)
    all_h = folder / "include/torch/csrc/api/include/torch/all.h"
    all_h.parent.mkdir(parents=True)
    all_h.write_text(header)
    return folder


class TestTorchFacts:
    def test_reads_version_and_cuda_without_running_the_module(self, tmp_path: Path) -> None:
        facts = interpreter_probe.torch_facts(torch_folder(tmp_path))
        assert facts is not None
        assert (facts["version"], facts["cuda"]) == ("2.14.1+cu130", "13.0")
        assert facts["folder"] == str(tmp_path / "torch")

    def test_a_cpu_build_has_no_cuda(self, tmp_path: Path) -> None:
        facts = interpreter_probe.torch_facts(torch_folder(tmp_path, cuda="None"))
        assert facts is not None
        assert facts["cuda"] is None

    def test_a_folder_without_a_version_is_no_torch(self, tmp_path: Path) -> None:
        assert interpreter_probe.torch_facts(tmp_path) is None

    @pytest.mark.parametrize(
        ("library", "expected"),
        [
            (b"\0_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE\0", True),
            (b"\0_ZN3c105ErrorC1ENS_14SourceLocationESs\0", False),
            (b"", None),
            (None, None),
        ],
    )
    def test_the_abi_is_read_from_symbol_names(
        self, tmp_path: Path, library: bytes | None, *, expected: bool | None
    ) -> None:
        facts = interpreter_probe.torch_facts(torch_folder(tmp_path, library=library))
        assert facts is not None
        assert facts["cxx11_abi"] is expected

    @pytest.mark.parametrize(
        ("header", "expected"),
        [
            ("#if !defined(_MSC_VER) && __cplusplus < 202002L\n#error C++20\n#endif\n", 20),
            ("#if !defined(_MSC_VER) && __cplusplus<201703L\n#error C++17\n#endif\n", 17),
            ("#pragma once\n", None),
        ],
    )
    def test_the_headers_tell_the_standard(self, tmp_path: Path, header: str, expected: int | None) -> None:
        facts = interpreter_probe.torch_facts(torch_folder(tmp_path, header=header))
        assert facts is not None
        assert facts["cxx_standard"] == expected


@pytest.mark.parametrize(
    ("soabi", "tag"),
    [
        ("cpython-311-x86_64-linux-gnu", "cp311"),
        ("cpython-313t-aarch64-linux-gnu", "cp313t"),
        ("cpython-310-x86_64-linux-gnu", "cp310"),
    ],
)
def test_the_abi_tag_comes_from_soabi(soabi: str, tag: str) -> None:
    assert interpreter_probe.abi_tag(soabi) == tag


class TestInstalled:
    def test_reads_names_and_versions_of_metadata_folders(self, tmp_path: Path) -> None:
        for name in ("Foo_Bar-1.2.dist-info", "old-3.0-py3.11.egg-info", "plain-0.1.egg-info", "no_metadata", "x.py"):
            (tmp_path / name).mkdir()
        assert interpreter_probe.installed([str(tmp_path)]) == {"foo-bar": "1.2", "old": "3.0", "plain": "0.1"}

    def test_the_first_folder_on_the_path_counts(self, tmp_path: Path) -> None:
        for place, version in (("first", "1"), ("second", "2")):
            (tmp_path / place / f"foo-{version}.dist-info").mkdir(parents=True)
        path = ["", str(tmp_path / "absent"), str(tmp_path / "first"), str(tmp_path / "second")]
        assert interpreter_probe.installed(path) == {"foo": "1"}

    def test_a_development_install_tells_its_version_in_its_metadata(self, tmp_path: Path) -> None:
        (tmp_path / "foo.egg-info").mkdir()
        (tmp_path / "foo.egg-info/PKG-INFO").write_text("Name: Foo\nVersion: 4.1\n\nVersion: of the text\n")
        (tmp_path / "empty.egg-info").mkdir()
        assert interpreter_probe.installed([str(tmp_path)]) == {"foo": "4.1"}


def test_library_headers_are_found_in_the_wheels_of_cuda_13_and_12(tmp_path: Path) -> None:
    for header in ("cu13/include/cublas_v2.h", "cusparse/include/cusparse.h", "nccl/include/nccl.h"):
        path = tmp_path / "nvidia" / header
        path.parent.mkdir(parents=True)
        path.touch()
    found = interpreter_probe.library_headers(["", str(tmp_path)])
    assert found == [str(tmp_path / "nvidia/cu13/include"), str(tmp_path / "nvidia/cusparse/include")]


def test_programs_of_target_folders_are_found(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    assert str(tmp_path / "bin") in interpreter_probe.script_folders(["", str(tmp_path)])


class TestProbe:
    def test_this_interpreter(self) -> None:
        imported = "torch" in sys.modules
        found = probe()
        assert found.executable == Path(sys.executable)
        assert found.version_of("Packaging") is not None
        assert found.version_of("no-such-distribution") is None
        assert ("torch" in sys.modules) is imported

    def test_another_interpreter_answers_in_json_after_whatever_it_prints(self) -> None:
        asked = []
        facts = interpreter_probe.facts() | {
            "executable": "/other/python",
            "torch": {
                "folder": "/t/torch",
                "version": "2.4.0+cu121",
                "cuda": "12.1",
                "cxx11_abi": False,
                "cxx_standard": 17,
            },
        }

        def ask(command: list[str]) -> Output:
            asked.append(command)
            return Output(status=0, stdout=f"hello from sitecustomize\n{json.dumps(facts)}\n")

        found = probe(Path("/other/python"), ask=ask)
        assert asked == [["/other/python", interpreter_probe.__file__]]
        assert found.executable == Path("/other/python")
        assert found.torch == TorchFacts(
            folder=Path("/t/torch"), version="2.4.0+cu121", cuda="12.1", cxx11_abi=False, cxx_standard=17
        )

    @pytest.mark.parametrize(
        ("stderr", "reason"), [("Traceback\nSyntaxError: old\n", "SyntaxError: old"), ("", "it says nothing")]
    )
    def test_what_does_not_run_is_reported_with_its_reason(self, stderr: str, reason: str) -> None:
        with pytest.raises(ToolchainError, match=reason) as caught:
            probe(Path("/bin/false"), ask=lambda _: Output(status=1, stderr=stderr))
        assert "--python" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("requirement", "missing"),
    [
        ("setuptools", False),
        ("setuptools>=77", False),
        ("Set_Up.Tools-Extra", True),
        ("setuptools<50", True),
        ("torch==2.14.1", False),
        ("torch>=2.14; python_version >= '3.12'", False),
        ("absent; python_version < '3.12'", True),
        ("absent; python_full_version == '3.11.7'", True),
        ("absent; platform_machine == 'aarch64'", False),
        ("nightly>=3", False),
        ("odd", False),
        ("odd>1", True),
        ("setuptools @ https://example.org/setuptools.whl", False),
        ("not a requirement", True),
    ],
)
def test_missing_requirements(requirement: str, *, missing: bool) -> None:
    found = interpreter(
        ("nightly", "3.1.dev0"), ("odd", "git-abc"), ("setuptools", "84.2.1"), ("torch", "2.14.1+cu130")
    )
    assert missing_requirements([requirement], found) == ((requirement,) if missing else ())
