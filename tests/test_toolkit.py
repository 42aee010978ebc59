import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from archpatch.arch.arch import Arch, DeviceCode, Pair
from archpatch.builder.commands import Output
from archpatch.builder.interpreter import Interpreter, TorchFacts
from archpatch.builder.toolkit import (
    LIBRARY_HEADERS,
    Candidate,
    Origin,
    Toolkit,
    Toolkits,
    candidates,
    choose,
    environment,
    parse_codes,
    parse_root,
    resolve_toolkit,
)
from archpatch.builder.toolkit_wheels import installer
from archpatch.errors import ArchpatchError, DiskFull, MissingFile, ToolchainError

HELP = """\
--gpu-architecture <arch>                          (-arch)
        Specify the class of GPU.
        Allowed values for this option:  'all','compute_75','native','sm_75','sm_52'.

--gpu-code <code>,...                              (-code)
        Specify the GPU to assemble for (such as sm_100).
        Allowed values for this option:  'compute_90','compute_90a','compute_100f',
        'compute_100','lto_90','sm_90','sm_90a','sm_100','sm_100f','sm_75',
        'compute_75','sm_990'.

--generate-code <specification>,...                (-gencode)
        Allowed keywords for this option:  'arch','code'.
"""


def interpreter(cuda: str | None = "13.0", *, headers: tuple[Path, ...] = (), pip: bool = True) -> Interpreter:
    return Interpreter(
        executable=Path("/env/bin/python"),
        version="3.11.7",
        abi_tag="cp311",
        platform_tag="linux_x86_64",
        machine="x86_64",
        torch=TorchFacts(folder=Path("/t"), version="2.14.1", cuda=cuda, cxx11_abi=True, cxx_standard=20),
        packages=(("pip", "24.0"),) if pip else (),
        library_headers=headers,
    )


def fake_root(root: Path, version: str) -> Path:
    """Make a folder that looks like a toolkit to `Machine`: its nvcc's version is the text of the file."""
    nvcc = root / "bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(version)
    nvcc.chmod(0o755)
    return root


class Machine:
    """Answers for nvcc and pip, written by hand: no process is started."""

    def __init__(self, install: Callable[[Path], Output] | None = None) -> None:
        self.install = install
        self.asked: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> Output:
        self.asked.append(list(command))
        program, *words = command[2:] if command[0] == "env" else command
        if "install" in words:
            assert self.install is not None, "nothing may be fetched"
            return self.install(Path(words[words.index("--target") + 1]))
        text = Path(program).read_text()
        if "--version" in words:
            return Output(status=0, stdout=f"Cuda compilation tools, release {text[: text.rindex('.')]}, V{text}\n")
        if "--dryrun" in words:
            return Output(status=0, stderr=text)
        return Output(status=0, stdout=HELP)

    @property
    def fetched(self) -> list[list[str]]:
        return [command for command in self.asked if "install" in command]


def wheels(version: str = "13.0.88") -> Callable[[Path], Output]:
    def install(target: Path) -> Output:
        root = fake_root(target / f"nvidia/cu{Version(version).major}", version)
        (root / "lib").mkdir()
        (root / "lib/libcudart.so.13").touch()
        (root / "lib/libcudart_static.a").touch()
        return Output(status=0)

    return install


@pytest.fixture
def places(tmp_path: Path) -> Toolkits:
    (tmp_path / "local").mkdir()
    return Toolkits(cache=tmp_path / "cache", local=tmp_path / "local")


class TestCodes:
    def test_the_help_lists_every_code_with_its_suffix(self) -> None:
        assert {str(code) for code in parse_codes(HELP)} == {
            *("compute_75", "compute_90", "compute_90a", "compute_100", "compute_100f"),
            *("sm_75", "sm_90", "sm_90a", "sm_100", "sm_100f"),
        }

    @pytest.mark.parametrize("text", ["", "usage: something else\n", HELP.replace("--gpu-code", "--other")])
    def test_another_help_lists_none(self, text: str) -> None:
        assert parse_codes(text) == frozenset()

    @pytest.mark.parametrize(
        ("compute", "code", "supported"),
        [
            ("9.0", "sm_90", True),
            ("9.0", "compute_90", True),
            ("9.0a", "sm_90a", True),
            ("10.0f", "sm_100", True),
            ("10.0a", "sm_100", False),
            ("9.0", "sm_103", False),
            ("8.0", "sm_90", False),
            ("12.0", "compute_120", False),
        ],
    )
    def test_both_halves_of_a_pair_must_be_known(self, compute: str, code: str, *, supported: bool) -> None:
        toolkit = toolkit_in(Path("/cuda"))
        assert toolkit.supports(Pair(Arch.parse(compute), DeviceCode.parse(code))) is supported

    def test_archs_are_those_of_cubins(self) -> None:
        assert list(map(str, toolkit_in(Path("/cuda")).archs)) == ["7.5", "9.0", "9.0a", "10.0", "10.0f"]


def toolkit_in(root: Path, version: str = "13.0.88") -> Toolkit:
    return Toolkit(
        root=root, version=Version(version), origin=Origin.SYSTEM, found_by="$CUDA_HOME", codes=parse_codes(HELP)
    )


class TestWrappers:
    def test_the_dry_run_tells_the_real_root(self, tmp_path: Path) -> None:
        root = fake_root(tmp_path / "cuda-13.0", "13.0.88")
        assert parse_root(f"#$ _HERE_={root}/bin\n#$ TOP={root}/bin/..\n") == root

    def test_a_top_elsewhere_falls_back_to_nvccs_own_folder(self, tmp_path: Path) -> None:
        root = fake_root(tmp_path / "env", "13.0.88")
        assert parse_root(f"#$ _HERE_={root}/bin\n#$ TOP={root}/targets/x86_64-linux\n") == root

    @pytest.mark.parametrize("text", ["", "#$ TOP=/nonexistent\n", "nvcc fatal: no\n"])
    def test_nothing_said_nothing_found(self, text: str) -> None:
        assert parse_root(text) is None

    def test_nvcc_on_path_is_followed(self, tmp_path: Path, places: Toolkits) -> None:
        root = fake_root(tmp_path / "opt/cuda", "13.0.88")
        wrapper = fake_root(tmp_path / "usr", f"#$ TOP={root}/bin/..\n")
        found = list(candidates({"PATH": str(wrapper / "bin")}, local=places.local, ask=Machine()))
        assert found == [Candidate(root=root, found_by="nvcc on PATH", version=Version("13.0.88"))]

    def test_a_toolkits_own_nvcc_is_not_asked_where_it_is(self, tmp_path: Path, places: Toolkits) -> None:
        root = fake_root(tmp_path / "opt/cuda", "13.0.88")
        (root / "bin/nvcc.profile").write_text("\nTOP              = $(_HERE_)/..\n")
        (tmp_path / "usr").mkdir()
        (tmp_path / "usr/nvcc").symlink_to(root / "bin/nvcc")
        machine = Machine()
        found = list(candidates({"PATH": str(tmp_path / "usr")}, local=places.local, ask=machine))
        assert found == [Candidate(root=root, found_by="nvcc on PATH", version=Version("13.0.88"))]
        assert not any("--dryrun" in command for command in machine.asked)


def candidate(name: str, version: str | None) -> Candidate:
    return Candidate(root=Path("/c"), found_by=name, version=Version(version) if version else None)


class TestChoose:
    @pytest.mark.parametrize(
        ("seen", "cuda", "chosen"),
        [
            ([("$CUDA_HOME", "12.4.1"), ("/usr/local/cuda", "13.0.88")], "13.0", "/usr/local/cuda"),
            ([("$CUDA_HOME", "13.1.5"), ("/usr/local/cuda", "13.0.88")], "13.0", "$CUDA_HOME"),
            ([("nvcc on PATH", "13.2.5"), ("/usr/local/cuda", "13.0.88")], "13.0", "/usr/local/cuda"),
            ([("nvcc on PATH", "13.2.5"), ("/usr/local/cuda", "13.1.88")], "13.0", "nvcc on PATH"),
            ([("$CUDA_HOME", None), ("$CUDA_PATH", "12.8.93")], "12.6", "$CUDA_PATH"),
            ([("nvcc on PATH", "12.8.93")], None, "nvcc on PATH"),
            ([("nvcc on PATH", "12.8.93"), ("$CUDA_HOME", None)], "13.0", None),
            ([], "13.0", None),
        ],
    )
    def test_the_major_must_fit(self, seen: list[tuple[str, str | None]], cuda: str | None, chosen: str | None) -> None:
        found = choose([candidate(*words) for words in seen], cuda)
        assert (found and found.found_by) == chosen


class TestResolve:
    def test_auto_takes_the_machines_where_it_fits(self, places: Toolkits) -> None:
        fake_root(places.local / "cuda-12.8", "12.8.93")
        root = fake_root(places.local / "cuda-13.0", "13.0.88")
        (places.local / "cuda").symlink_to("cuda-12.8")
        found = resolve_toolkit("auto", interpreter(), {}, toolkits=places, ask=Machine())
        assert (found.root, found.release, found.origin) == (root, "13.0", Origin.SYSTEM)
        assert found.nvcc == root / "bin/nvcc"

    def test_newer_ones_come_first(self, places: Toolkits) -> None:
        for version in ("13.2.1", "13.10.1"):
            fake_root(places.local / f"cuda-{version[:-2]}", version)
        assert resolve_toolkit("auto", interpreter(), {}, toolkits=places, ask=Machine()).release == "13.10"

    def test_variables_are_looked_at_and_a_broken_one_is_passed_over(self, tmp_path: Path, places: Toolkits) -> None:
        root = fake_root(tmp_path / "mine", "13.0.88")
        environ = {"CUDA_HOME": str(tmp_path / "gone"), "CUDA_PATH": str(root)}
        assert resolve_toolkit("system", interpreter(), environ, toolkits=places, ask=Machine()).root == root

    def test_without_torch_the_first_is_shown(self, places: Toolkits) -> None:
        fake_root(places.local / "cuda", "12.8.93")
        assert resolve_toolkit("auto", interpreter(None), {}, toolkits=places, ask=Machine()).release == "12.8"

    def test_auto_fetches_once_where_nothing_fits(self, places: Toolkits) -> None:
        fake_root(places.local / "cuda", "12.8.93")
        machine = Machine(wheels())
        first = resolve_toolkit("auto", interpreter(), {}, toolkits=places, ask=machine)
        again = resolve_toolkit("auto", interpreter(), {}, toolkits=places, ask=machine)
        assert first == again
        assert first.origin is Origin.PYPI
        assert first.root == places.cache / "cuda-13.0"
        assert len(machine.fetched) == 1
        assert machine.fetched[0][2:6] == ["/env/bin/python", "-m", "pip", "install"]
        assert machine.fetched[0][-1] == "cuda-toolkit[nvcc,cccl,profiler,nvtx]==13.0.*"

    def test_pypi_passes_the_machines_over(self, places: Toolkits) -> None:
        fake_root(places.local / "cuda", "13.0.88")
        found = resolve_toolkit("pypi", interpreter(), {}, toolkits=places, ask=Machine(wheels()))
        assert found.origin is Origin.PYPI

    def test_a_folder_is_taken_as_it_is(self, tmp_path: Path, places: Toolkits) -> None:
        root = fake_root(tmp_path / "mine", "12.8.93")
        found = resolve_toolkit(str(root), interpreter(), {}, toolkits=places, ask=Machine())
        assert (found.root, found.origin) == (root, Origin.FOLDER)

    @pytest.mark.parametrize(
        ("choice", "cuda", "error", "message"),
        [
            ("system", "13.0", ToolchainError, r"torch was built with CUDA 13.0; .*cuda\): CUDA 12.8.93"),
            ("auto", "14.0", ToolchainError, r"no CUDA toolkit fits"),
            ("pypi", None, ToolchainError, r"no CUDA build of torch"),
            ("/no/such/folder", "13.0", MissingFile, r"--toolkit /no/such/folder"),
        ],
    )
    def test_what_fits_nowhere_is_explained(
        self, places: Toolkits, choice: str, cuda: str | None, error: type[ArchpatchError], message: str
    ) -> None:
        fake_root(places.local / "cuda", "12.8.93")
        with pytest.raises(error, match=message) as caught:
            resolve_toolkit(choice, interpreter(cuda), {}, toolkits=places, may_fetch=False, ask=Machine())
        assert caught.value.remedy

    def test_an_nvcc_that_names_no_archs_is_refused(self, places: Toolkits) -> None:
        fake_root(places.local / "cuda", "13.0.88")
        machine = Machine()
        with pytest.raises(ToolchainError, match="names no GPU archs"):
            resolve_toolkit(
                "auto",
                interpreter(),
                {},
                toolkits=places,
                ask=lambda command: Output(status=1) if "--help" in command else machine(command),
            )


class TestWheels:
    def test_the_folder_is_made_complete_and_nothing_else_stays(self, places: Toolkits) -> None:
        root = resolve_toolkit("pypi", interpreter(), {}, toolkits=places, ask=Machine(wheels())).root
        assert (root / "lib64/libcudart.so").resolve() == root / "lib/libcudart.so.13"
        assert {path.name for path in (root / "lib").iterdir()} == {
            *("libcudart.so", "libcudart.so.13", "libcudart_static.a")
        }
        assert {path.name for path in places.cache.iterdir()} == {"cuda-13.0", "cuda-13.0.lock"}

    def test_what_a_killed_process_left_is_swept(self, places: Toolkits) -> None:
        left = places.cache / "archpatch-work-left/target/nvidia/cu13/bin"
        left.mkdir(parents=True)
        (places.cache / "cuda-13.0").mkdir()
        found = resolve_toolkit("pypi", interpreter(), {}, toolkits=places, ask=Machine(wheels()))
        assert found.nvcc.is_file()
        assert not left.exists()

    def test_cuda_12_has_no_such_wheels(self, places: Toolkits) -> None:
        with pytest.raises(ToolchainError, match=r"CUDA 12\.6 hold no nvcc") as caught:
            resolve_toolkit("auto", interpreter("12.6"), {}, toolkits=places, ask=Machine())
        assert "CUDA_HOME" in str(caught.value.remedy)

    @pytest.mark.parametrize(
        ("stderr", "error", "message"),
        [
            ("WARNING: retrying\nERROR: No matching distribution found for x\n", ToolchainError, "No matching dist"),
            ("OSError: [Errno 28] No space left on device\n", DiskFull, "no space"),
            ("something\nlast words\n", ToolchainError, "last words"),
            ("", ToolchainError, "no reason"),
        ],
    )
    def test_a_failed_fetch_leaves_nothing(
        self, places: Toolkits, stderr: str, error: type[ArchpatchError], message: str
    ) -> None:
        def install(target: Path) -> Output:
            target.mkdir()
            return Output(status=1, stderr=stderr)

        with pytest.raises(error, match=message) as caught:
            resolve_toolkit("pypi", interpreter(), {}, toolkits=places, ask=Machine(install))
        assert caught.value.exit_status == 4
        assert [path.name for path in places.cache.iterdir()] == ["cuda-13.0.lock"]

    def test_the_nearest_installer_is_taken(self, tmp_path: Path) -> None:
        uv = tmp_path / "uv"
        uv.touch(mode=0o755)
        environ = {"PATH": str(tmp_path)}
        assert installer(interpreter(), environ, own_pip=True)[0] == "/env/bin/python"
        assert installer(interpreter(pip=False), environ, own_pip=True)[0] == sys.executable
        command = installer(interpreter(pip=False), environ, own_pip=False)
        assert command[:3] == [str(uv), "pip", "install"]
        assert command[-2:] == ["--python", "/env/bin/python"]
        with pytest.raises(ToolchainError, match="neither pip nor uv"):
            installer(interpreter(pip=False), {}, own_pip=False)


class TestEnvironment:
    def test_one_toolkit_and_no_rivals(self, tmp_path: Path) -> None:
        environ = {
            "PATH": "/usr/local/bin:/usr/bin",
            "CUDA_HOME": "/old",
            "CUDA_PATH": "/older",
            "CUDACXX": "/old/bin/nvcc",
            "CUDAToolkit_ROOT": "/old",
            "PYTORCH_NVCC": "ccache nvcc",
            "HOME": "/root",
        }
        result = environment(toolkit_in(tmp_path), environ, interpreter=interpreter(), tools=[Path("/site/bin/ninja")])
        assert result == {
            "PATH": f"{tmp_path}/bin:/usr/local/bin:/usr/bin:/site/bin",
            "CUDA_HOME": str(tmp_path),
            "CUDA_PATH": str(tmp_path),
            "PYTORCH_NVCC": "ccache nvcc",
            "HOME": "/root",
        }

    def test_a_tool_on_path_does_not_change_its_order(self, tmp_path: Path) -> None:
        environ = {"PATH": "/venv/bin:/usr/bin"}
        result = environment(toolkit_in(tmp_path), environ, interpreter=interpreter(), tools=[Path("/usr/bin/ninja")])
        assert result["PATH"] == f"{tmp_path}/bin:/venv/bin:/usr/bin"

    @pytest.mark.parametrize(
        ("given", "expected"),
        [({}, "/site/nvidia/cu13/include"), ({"CPLUS_INCLUDE_PATH": "/mine"}, "/mine:/site/nvidia/cu13/include")],
    )
    def test_missing_library_headers_come_from_the_interpreter(
        self, tmp_path: Path, given: dict[str, str], expected: str
    ) -> None:
        python = interpreter(headers=(Path("/site/nvidia/cu13/include"),))
        result = environment(toolkit_in(tmp_path), given, interpreter=python)
        assert result["CPLUS_INCLUDE_PATH"] == expected

    def test_a_whole_toolkit_needs_none(self, tmp_path: Path) -> None:
        (tmp_path / "include").mkdir()
        for name in LIBRARY_HEADERS:
            (tmp_path / "include" / name).touch()
        python = interpreter(headers=(Path("/site/nvidia/cu13/include"),))
        result = environment(toolkit_in(tmp_path), {"PATH": os.defpath}, interpreter=python)
        assert "CPLUS_INCLUDE_PATH" not in result


@pytest.mark.parametrize(
    ("text", "newest"),
    [("#if __GNUC__ > 15\n#error no\n#endif\n", 15), ("// nothing\n", None), (None, None)],
)
def test_the_newest_gcc_is_read_from_the_headers(tmp_path: Path, text: str | None, newest: int | None) -> None:
    header = tmp_path / "include/crt/host_config.h"
    header.parent.mkdir(parents=True)
    if text is not None:
        header.write_text(text)
    assert toolkit_in(tmp_path).newest_gcc() == newest
