from pathlib import Path

import pytest

from archpatch.builder.commands import Output
from archpatch.builder.gpus import DetectedGpu, from_nvidia_smi, from_nvml, select_visible
from archpatch.builder.host import (
    Compiler,
    available_cores,
    available_memory,
    control_groups,
    find_compiler,
    find_tool,
    inspect_host,
    jobs,
    parse_compiler_version,
    parse_meminfo,
)
from archpatch.builder.interpreter import Interpreter
from archpatch.errors import UsageError

GIB = 1 << 30
FSF = "\nCopyright (C) 2022 Free Software Foundation, Inc.\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.touch(mode=0o755)
    return path


def interpreter(*scripts: Path) -> Interpreter:
    return Interpreter(
        executable=Path("/env/bin/python"),
        version="3.11.7",
        abi_tag="cp311",
        platform_tag="linux_x86_64",
        machine="x86_64",
        torch=None,
        packages=(),
        scripts=scripts,
    )


class TestCompiler:
    @pytest.mark.parametrize(
        ("text", "kind", "version"),
        [
            ("c++ (Debian 12.2.0-14+deb12u1) 12.2.0" + FSF, "gcc", "12.2.0"),
            ("g++ (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0" + FSF, "gcc", "11.4.0"),
            ("g++ (GCC) 11.4.1 20231218 (Red Hat 11.4.1-3)" + FSF, "gcc", "11.4.1"),
            ("x86_64-conda-linux-gnu-c++ (conda-forge gcc 12.3.0-5) 12.3.0" + FSF, "gcc", "12.3.0"),
            ("Debian clang version 14.0.6\nTarget: x86_64-pc-linux-gnu\n", "clang", "14.0.6"),
            ("nvc++ 24.1-0 64-bit target on x86-64 Linux", "other", ""),
            ("", "other", ""),
        ],
    )
    def test_version(self, text: str, kind: str, version: str) -> None:
        assert parse_compiler_version(text) == {"kind": kind, "version": version}

    @pytest.mark.parametrize(
        ("present", "cxx", "found"),
        [
            (("c++", "g++"), "", "c++"),
            (("g++",), "", "g++"),
            (("c++", "clang++"), "clang++", "clang++"),
            (("c++", "g++"), "ccache g++", "g++"),
            (("c++",), "no-such-compiler", None),
            ((), "", None),
        ],
    )
    def test_torchs_choice_is_found(
        self, tmp_path: Path, present: tuple[str, ...], cxx: str, found: str | None
    ) -> None:
        for name in present:
            program(tmp_path, name)
        compiler = find_compiler(
            {"PATH": str(tmp_path), "CXX": cxx}, lambda _: Output(status=0, stdout="g++ (GCC) 12.2.0" + FSF)
        )
        expected = found and Compiler(path=tmp_path / found, kind="gcc", version="12.2.0")
        assert compiler == expected


class TestNinja:
    def test_path_comes_before_the_interpreters_own(self, tmp_path: Path) -> None:
        on_path, own = program(tmp_path / "path", "ninja"), program(tmp_path / "own", "ninja")
        python = interpreter(own.parent)
        assert find_tool("ninja", python, {"PATH": str(on_path.parent)}) == on_path
        assert find_tool("ninja", python, {"PATH": "/nonexistent"}) == own
        assert find_tool("ninja", interpreter(), {"PATH": "/nonexistent"}) is None


class TestJobs:
    @pytest.mark.parametrize(
        ("cores", "memory", "sources", "expected"),
        [
            (16, 128 * GIB, 10, 10),
            (16, 128 * GIB, 100, 16),
            (16, 15 * GIB, 100, 3),
            (16, 1 * GIB, 100, 1),
            (4, 128 * GIB, 0, 1),
        ],
    )
    def test_as_many_as_cores_memory_and_sources_allow(
        self, cores: int, memory: int, sources: int, expected: int
    ) -> None:
        assert jobs(cores=cores, memory=memory, sources=sources, environ={"MAX_JOBS": ""}) == expected

    def test_the_user_decides(self) -> None:
        assert jobs(cores=2, memory=GIB, sources=1, environ={"MAX_JOBS": "32"}) == 32

    @pytest.mark.parametrize("text", ["0", "-1", "2.5", "all", " 2", "²"])
    def test_what_is_no_number_of_jobs_is_refused(self, text: str) -> None:
        with pytest.raises(UsageError, match="MAX_JOBS"):
            jobs(cores=2, memory=GIB, sources=1, environ={"MAX_JOBS": text})


MEMINFO = "MemTotal:       24000000 kB\nMemFree:        1 kB\nMemAvailable:   20971520 kB\n"


class TestControlGroups:
    def test_v2_the_smallest_limit_on_the_way_up_counts(self, tmp_path: Path) -> None:
        root = write(
            tmp_path,
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/slice/job\n",
                "sys/fs/cgroup/slice/job/memory.max": "max\n",
                "sys/fs/cgroup/slice/job/cpu.max": "max 100000\n",
                "sys/fs/cgroup/slice/memory.max": str(8 * GIB),
                "sys/fs/cgroup/slice/memory.current": str(6 * GIB),
                "sys/fs/cgroup/slice/memory.stat": f"active_file 1\ninactive_file {2 * GIB}\n",
                "sys/fs/cgroup/slice/cpu.max": "150000 100000\n",
            },
        )
        assert available_memory(root) == 4 * GIB
        assert available_cores(root) == 1

    def test_v1_each_controller_has_its_own_tree(self, tmp_path: Path) -> None:
        root = write(
            tmp_path,
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "9:name=systemd:/\n4:memory:/job\n1:cpu,cpuacct:/job\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(3 * GIB),
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(1 * GIB),
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            },
        )
        assert available_memory(root) == 2 * GIB
        assert available_cores(root) == 1

    def test_no_limit_at_all(self, tmp_path: Path) -> None:
        files = {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        }
        root = write(tmp_path, files)
        assert available_memory(root) == 20 * GIB
        assert available_cores(root) >= 1

    def test_a_group_that_is_not_mounted_leaves_the_mount_itself(self, tmp_path: Path) -> None:
        root = write(tmp_path, {"proc/self/cgroup": "0::/on/the/host\n", "sys/fs/cgroup/memory.max": "max\n"})
        assert list(control_groups(root)) == [root / "sys/fs/cgroup"]

    def test_a_use_above_the_limit_leaves_nothing(self, tmp_path: Path) -> None:
        root = write(
            tmp_path,
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "100",
                "sys/fs/cgroup/memory.current": "200",
            },
        )
        assert available_memory(root) == 0

    def test_meminfo_without_the_line(self) -> None:
        assert parse_meminfo("MemTotal: 1 kB\n") == 0


def test_the_disk_is_looked_at_where_the_folder_will_be(tmp_path: Path) -> None:
    folder = tmp_path / "not/there/yet"
    host = inspect_host(interpreter(), {"PATH": ""}, folder=folder, ask=lambda _: Output(status=127))
    assert host.folder == folder
    assert host.disk > 0
    assert host.compiler is None


SMI = """\
GPU-aaaa1111, NVIDIA H200, 9.0, 580.159.03, Disabled
GPU-aaab2222, NVIDIA L4, 8.9, 580.159.03, [N/A]
GPU-cccc3333, NVIDIA B200, 10.0, 580.159.03, Disabled
"""


class TestVisibleGpus:
    def test_nvidia_smi_lines_become_gpus(self) -> None:
        cards = from_nvidia_smi(lambda _: Output(status=0, stdout=SMI))
        assert [(card.name, str(card.arch), card.driver) for card in cards] == [
            ("NVIDIA H200", "9.0", "580.159.03"),
            ("NVIDIA L4", "8.9", "580.159.03"),
            ("NVIDIA B200", "10.0", "580.159.03"),
        ]

    @pytest.mark.parametrize(
        "output",
        [
            Output(status=127, stderr="nvidia-smi: No such file or directory"),
            Output(status=9, stdout="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"),
            Output(status=0, stdout="GPU-1, NVIDIA X, [N/A], 580, [N/A]\n"),
        ],
    )
    def test_no_driver_no_gpus(self, output: Output) -> None:
        assert from_nvidia_smi(lambda _: output) == ()

    def test_a_divided_gpu_has_another_name(self) -> None:
        divided = SMI.replace("Disabled", "Enabled", 1)
        cards = from_nvidia_smi(lambda _: Output(status=0, stdout=divided))
        assert [card.name for card in cards] == ["NVIDIA H200 MIG", "NVIDIA L4", "NVIDIA B200"]

    @pytest.mark.parametrize(
        ("visible", "expected"),
        [
            (None, ["H200", "L4", "B200"]),
            ("", []),
            ("-1", []),
            ("1", ["L4"]),
            ("2, 0", ["B200", "H200"]),
            ("0,7,1", ["H200"]),
            ("GPU-cccc", ["B200"]),
            ("GPU-aaab2222,0", ["L4", "H200"]),
            ("GPU-aaa", []),
            ("GPU-dddd", []),
            ("nonsense", []),
        ],
    )
    def test_cuda_visible_devices(self, visible: str | None, expected: list[str]) -> None:
        cards = from_nvidia_smi(lambda _: Output(status=0, stdout=SMI))
        assert [card.name.removeprefix("NVIDIA ") for card in select_visible(cards, visible)] == expected


class FakeNvml:
    """As much of the module `pynvml` as is asked: two cards, and two parts (MIG) of the second."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, driver: bool = True) -> None:
        self.driver, self.open = driver, 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        if not self.driver:
            raise self.NVMLError
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.159.03"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, handle: int | str) -> str:  # noqa: N802
        names = {0: "NVIDIA H200", 1: "NVIDIA B300", "MIG-1-of-b": "NVIDIA B300 MIG 4g.140gb"}
        return {**names, "MIG-of-b": "NVIDIA B300 MIG 1g.34gb"}[handle]

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:  # noqa: N802
        if handle == 0:
            raise self.NVMLError
        return 1, 1

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> str:  # noqa: N802
        assert (handle, index) == (1, 0)
        return "MIG-1-of-b"

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return ("GPU-a", "GPU-b")[handle]

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return ((9, 0), (10, 3))[handle]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "MIG-of-b":
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> int:  # noqa: N802
        assert handle == "MIG-of-b"
        return 1


class TestNvml:
    @pytest.mark.parametrize(
        ("visible", "expected"),
        [
            (None, ["9.0 NVIDIA H200", "10.3 NVIDIA B300 MIG 4g.140gb"]),
            ("1", ["10.3 NVIDIA B300 MIG 4g.140gb"]),
            ("MIG-of-b", ["10.3 NVIDIA B300 MIG 1g.34gb"]),
            ("0,MIG-of-b,MIG-gone", ["9.0 NVIDIA H200", "10.3 NVIDIA B300 MIG 1g.34gb"]),
            ("MIG-gone", []),
            ("", []),
        ],
    )
    def test_visible_cards(self, visible: str | None, expected: list[str]) -> None:
        nvml = FakeNvml()
        assert [f"{card.arch} {card.name}" for card in from_nvml(nvml, visible)] == expected
        assert nvml.open == 0

    def test_all_facts(self) -> None:
        first = from_nvml(FakeNvml(), "0")[0]
        assert first == DetectedGpu(name="NVIDIA H200", arch=first.arch, driver="580.159.03", uuid="GPU-a")

    def test_no_driver(self) -> None:
        assert from_nvml(FakeNvml(driver=False), None) == ()
