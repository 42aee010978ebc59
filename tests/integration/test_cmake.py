"""Projects that run CMake in `build_ext`, with the real CMake and nvcc: captured without it, built with it, checked."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from commandline import CUDA_HOME, FIXTURES, Answer, CommandLine, dumped, library

from archpatch import builder
from archpatch.builder.capture import Capture, capture
from archpatch.builder.workplace import Workplace
from archpatch.errors import ArchpatchError, CaptureFailed

pytestmark = pytest.mark.integration

RECIPE = """
[recipes.archpatch_mini_cmake]
arch-variable = { name = "MINI_CMAKE_ARCHS", form = "cmake", separator = ";" }
"""


@dataclass(frozen=True)
class Project:
    """A copy of the miniature CMake project, to change at will, and the command line that builds it with that CMake."""

    folder: Path
    archpatch: CommandLine
    cmake: Path

    def replace(self, name: str, *changes: tuple[str, str]) -> None:
        """Change the text of one of its files."""
        path = self.folder / name
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)

    def build(self, *asked: str, recipe: str = RECIPE, environ: dict[str, str] | None = None) -> Answer:
        """Build it, with a recipe in a configuration file."""
        config = self.archpatch.folder / "archpatch.toml"
        config.write_text(recipe)
        path = {"PATH": os.pathsep.join([str(self.cmake), os.environ["PATH"]])}
        return self.archpatch("--config", config, "build", self.folder, *asked, environ={**path, **(environ or {})})


@pytest.fixture
def project(archpatch: CommandLine, cmake: Path, tmp_path: Path) -> Project:
    return Project(Path(shutil.copytree(FIXTURES / "mini_cmake", tmp_path / "project")), archpatch, cmake)


@pytest.mark.parametrize(
    ("asked", "codes", "setting"),
    [
        (("--arch", "9.0"), ["sm_90"], "90-real"),
        (("--arch", "8.0;9.0+PTX"), ["sm_80", "sm_90", "compute_90"], "80-real;90-real;90-virtual"),
        (("--arch", "9.0a;12.0f"), ["sm_90a", "sm_120f"], "90a-real;120f-real"),
        (("--gpu", "l4"), ["sm_89"], "89-real"),
    ],
)
def test_the_library_holds_exactly_what_was_asked_for(
    project: Project, cuobjdump: Path, asked: tuple[str, str], codes: list[str], setting: str
) -> None:
    answer = project.build(*asked)
    record = answer.record
    assert record["device_code"] == codes
    assert record["extensions"] == {"archpatch_mini_cmake._C": sorted(codes)}
    (source,) = record["flag_sources"]
    assert (source["shape"], source["action"]) == ("cmake", "variable")
    assert source["reason"] == f"CMake gets the archs through MINI_CMAKE_ARCHS={setting}"
    assert dumped(cuobjdump, library(answer.wheel, project.archpatch.folder / "unpacked")) == {
        code.rstrip("f") for code in codes
    }
    assert project.archpatch.left_behind() == []


def test_the_same_request_is_a_hit_and_what_cmake_is_told_decides(project: Project) -> None:
    assert project.build("--gpu", "h200", "--json").json["wheels"][0]["hit"] is False
    assert project.build("--arch", "9.0", "--json").json["wheels"][0]["hit"] is True
    answer = project.build("--arch", "9.0", "--json", "--no-replace", environ={"CUDAFLAGS": "-O1 -arch=sm_75"})
    assert answer.status == 5
    assert "CUDAFLAGS holds arch flags" in answer.stderr
    assert "environment.CUDAFLAGS was absent, is -O1" in answer.stderr


def test_a_project_that_names_no_archs_gets_cmakes_own_variable(project: Project) -> None:
    project.replace(
        "setup.py",
        ('            archs = os.environ.get("MINI_CMAKE_ARCHS", "75;80;90")\n'[4:], ""),
        ('                f"-DCMAKE_CUDA_ARCHITECTURES={archs}",\n', ""),
    )
    record = project.build("--arch", "9.0+PTX", recipe="", environ={"CUDAARCHS": "75"}).record
    assert record["device_code"] == ["sm_90", "compute_90"]
    assert record["flag_sources"][0]["reason"] == "CMake gets the archs through CUDAARCHS=90-real;90-virtual"


TABLE = 'arch-variable = { name = "MINI_CMAKE_ARCHS", form = "cmake", separator = ";" }'
UNSET = "the project reads its archs from MINI_CMAKE_ARCHS, which nothing sets"


@pytest.mark.parametrize(
    ("recipe", "environ", "says", "remedy"),
    [
        ("", {}, UNSET, TABLE),
        (RECIPE.replace("MINI_CMAKE_ARCHS", "WRONG"), {}, UNSET, TABLE),
        (RECIPE.replace('"cmake"', '"number"'), {}, "=90, which is sm_90, compute_90, instead of sm_90", "is exact"),
        ("", {"MINI_CMAKE_ARCHS": "80-real"}, "=80-real, which is sm_80, instead of sm_90", TABLE),
        ("", {"MINI_CMAKE_ARCHS": "native"}, "CMAKE_CUDA_ARCHITECTURES=native instead of sm_90", TABLE),
    ],
)
def test_a_variable_that_is_missing_or_wrong_is_refused_before_the_compile(
    project: Project, recipe: str, environ: dict[str, str], says: str, remedy: str
) -> None:
    answer = project.build("--arch", "9.0", recipe=recipe, environ=environ)
    assert answer.status == 3
    assert says in answer.stderr
    assert remedy in answer.stderr
    assert project.archpatch.published() == project.archpatch.left_behind() == []


def test_archs_in_the_cmake_files_are_caught_and_nothing_is_published(project: Project) -> None:
    project.replace("csrc/CMakeLists.txt", ('PREFIX ""', 'CUDA_ARCHITECTURES "80-real;90-real" PREFIX ""'))
    answer = project.build("--arch", "9.0")
    assert answer.status == 4
    assert "archpatch_mini_cmake._C holds sm_80, sm_90; nvcc was asked for sm_90; too much: sm_80" in answer.stderr
    assert "The archs were given by MINI_CMAKE_ARCHS=90-real." in answer.stderr
    assert project.archpatch.published() == project.archpatch.left_behind() == []


TWO_LIBRARIES = """
add_library(_C MODULE module.cpp)
add_library(fill SHARED fill.cu)
set_target_properties(fill PROPERTIES CUDA_ARCHITECTURES 75-real)
target_link_libraries(_C PRIVATE fill)
"""


def test_a_library_that_no_extension_names_is_judged_too(project: Project) -> None:
    project.replace("csrc/CMakeLists.txt", ("add_library(_C MODULE module.cpp fill.cu)\n", TWO_LIBRARIES))
    copy = '        self.copy_file(build / "_C.so", target)\n'
    project.replace(
        "setup.py", (copy, f"{copy}{copy.replace('_C.so', 'libfill.so').replace('target', 'target.parent')}")
    )
    answer = project.build("--arch", "9.0")
    assert answer.status == 4
    assert "the library archpatch_mini_cmake/libfill.so holds sm_75; nvcc was asked for sm_90" in answer.stderr
    project.replace("csrc/CMakeLists.txt", ("CUDA_ARCHITECTURES 75-real", "OUTPUT_NAME fill"))
    assert project.build("--arch", "9.0").record["device_code"] == ["sm_90"]


TORCHS = """
from torch.utils.cpp_extension import BuildExtension, CUDAExtension

flags = ["-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90"]
sources = ["torch_csrc/module.cpp", "torch_csrc/add.cu"]
torchs = CUDAExtension("archpatch_mini_cmake._D", sources, extra_compile_args={"nvcc": flags})


class Build(BuildExtension):
    def build_extension(self, ext):
        build = CMakeBuild if isinstance(ext, CMakeExtension) else BuildExtension
        build.build_extension(self, ext)


setup(
"""


def test_torchs_extensions_and_cmakes_stand_side_by_side(project: Project) -> None:
    shutil.copytree(FIXTURES / "mini" / "csrc", project.folder / "torch_csrc")
    project.replace(
        "setup.py",
        ("setup(\n", TORCHS),
        ('"csrc")]', '"csrc"), torchs]'),
        ('"build_ext": CMakeBuild', '"build_ext": Build'),
    )
    record = project.build("--arch", "9.0").record
    assert record["extensions"] == {"archpatch_mini_cmake._C": ["sm_90"], "archpatch_mini_cmake._D": ["sm_90"]}
    assert record["device_code"] == ["sm_90"]


def test_a_cmake_that_is_not_there_is_told_with_how_to_get_it(project: Project) -> None:
    """PATH holds what a capture takes, and no CMake; setup.py does not ask for it first."""
    tools = project.archpatch.folder / "bin"
    tools.mkdir()
    for name in ("c++", "g++", "ninja"):
        found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)]))
        assert found is not None
        (tools / name).symlink_to(found)
    project.replace("setup.py", ('        subprocess.run(["cmake", "--version"], check=True)\n', ""))
    answer = project.build("--arch", "9.0", environ={"PATH": str(tools), "CUDA_HOME": str(CUDA_HOME)})
    assert answer.status == 4
    assert "starts cmake, which is neither on PATH nor among the programs of" in answer.stderr
    assert "-m pip install cmake" in answer.stderr


# --- the capture alone -------------------------------------------------------------------------

WAYS = """
import os
import subprocess
import sys
from distutils.spawn import spawn
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CMAKE = {cmake!r}


def configure(ext):
    return ["cmake", "-S", "csrc", "-B", "b/" + ext.name, "-DMY_ARCHS=90-real"]


class Build(build_ext):
    def build_extension(self, ext):
        getattr(self, ext.name)(ext)
        raise RuntimeError(ext.name + " has no library")

    def run_(self, ext):
        subprocess.run(configure(ext), check=True, capture_output=True, text=True)
        subprocess.run(["ninja", "-C", "b/run_"], check=True)

    def call(self, ext):
        assert subprocess.call(configure(ext)) == 0

    def check_call(self, ext):
        subprocess.check_call([CMAKE, *configure(ext)[1:]])

    def check_output(self, ext):
        assert b"cmake version" in subprocess.check_output(["cmake", "--version"])
        assert subprocess.check_output(configure(ext), env={{**os.environ, "CUDAARCHS": "90a"}}) == b""
        os.chdir("b/check_output")
        subprocess.check_output(["make", "-j2"])
        os.chdir("../..")

    def popen(self, ext):
        with subprocess.Popen(configure(ext), stdout=subprocess.PIPE) as process:
            assert process.communicate() == (b"", None)
        assert process.returncode == 0

    def system(self, ext):
        assert os.system("mkdir -p x && cd x && cmake ../csrc -DMY_ARCHS=90-real && make") == 0
        assert os.system("exit 3") != 0

    def shell(self, ext):
        subprocess.run("CUDAARCHS=80 " + " ".join(configure(ext)), shell=True, check=True)

    def spawn_(self, ext):
        self.spawn(configure(ext))

    def module(self, ext):
        subprocess.run((word for word in [sys.executable, "-m", *configure(ext)]), check=True)

    def distutils(self, ext):
        spawn(configure(ext))


NAMES = "run_ call check_call check_output popen system shell spawn_ module distutils".split()
setup(
    name="ways",
    ext_package="pkg",
    ext_modules=[Extension(name, []) for name in NAMES],
    cmdclass={{"build_ext": Build}},
)
"""


def captured(folder: Path, cmake: Path, setup: str, lists: str = "project(x LANGUAGES CUDA)\n") -> Capture:
    """Capture a project of a `setup.py` and a `CMakeLists.txt`, with a CMake that would fail."""
    tree, log = folder / "tree", folder / "log"
    (tree / "csrc").mkdir(parents=True)
    (tree / "csrc" / "CMakeLists.txt").write_text(f"{lists}message(FATAL_ERROR it ran)\n")
    (tree / "setup.py").write_text(setup)
    path = os.pathsep.join([str(cmake), os.environ["PATH"], str(Path(sys.executable).parent)])
    environ = {**os.environ, "PATH": path, "CUDAARCHS": "90-real", "TMPDIR": str(folder)}
    try:
        return capture(Workplace(tree=tree, python=Path(sys.executable), environment=environ, log=log))
    except ArchpatchError:
        print(log.read_text())  # noqa: T201 - for the reader of a failure
        raise


def test_cmake_is_stood_in_for_however_it_is_started(tmp_path: Path, cmake: Path) -> None:
    seen = captured(tmp_path, cmake, WAYS.format(cmake=str(cmake / "cmake")))
    told = {extension.name: extension.cmake for extension in seen.cmake_extensions}
    names = "run_ call check_call check_output popen system shell spawn_ module distutils".split()  # noqa: SIM905 - as above
    assert list(told) == [f"pkg.{name}" for name in names]
    assert {len(commands) for commands in told.values()} == {1, 2}
    assert {command.words[0] for commands in told.values() for command in commands} == {"cmake", "ninja", "make"}
    for name, commands in told.items():
        assert commands[0].told is not None, name
        assert commands[0].told.spelled == "MY_ARCHS=90-real"
        assert commands[0].line is not None
    archs = {name: dict(commands[0].variables)["CUDAARCHS"] for name, commands in told.items()}
    assert (archs["pkg.run_"], archs["pkg.check_output"], archs["pkg.shell"]) == ("90-real", "90a", "80")
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", str(seen.cmake))
    log = (tmp_path / "log").read_text()
    assert "it ran" not in log
    assert "pkg.call ends here (setup.py:19, RuntimeError: call has no library): CMake does not run" in log


OWN_LOOP = """
import shutil
import subprocess
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class CMakeExtension(Extension):
    def make(self, folder):
        subprocess.run(["cmake", "-S", "csrc", "-B", folder, "-DMY_ARCHS=90"], check=True)
        {then}


class Build(build_ext):
    def run(self):
        for each in self.extensions:
            each.make("b")


setup(name="loop", ext_modules=[CMakeExtension("one", []), CMakeExtension("two", [])], cmdclass={{"build_ext": Build}})
"""


def test_an_extension_is_found_behind_a_loop_of_ones_own(tmp_path: Path, cmake: Path) -> None:
    seen = captured(tmp_path, cmake, OWN_LOOP.format(then="pass"))
    assert [extension.name for extension in seen.cmake_extensions] == ["one", "two"]


def test_what_cmake_would_have_made_is_named_where_it_hides_the_rest(tmp_path: Path, cmake: Path) -> None:
    with pytest.raises(CaptureFailed) as caught:
        captured(tmp_path, cmake, OWN_LOOP.format(then="shutil.copy('b/lib.so', '.')"))
    assert "setup.py:11 raised FileNotFoundError: [Errno 2] No such file or directory: 'b/lib.so'" in str(caught.value)
    assert "after CMake, which only the build runs, and before two" in str(caught.value)


OUTSIDE = """
import subprocess
from setuptools import setup

subprocess.run(["cmake", "csrc", "-DMY_ARCHS=90"], check=True)
{then}
setup(name="outside", py_modules=[])
"""


def test_cmake_before_setup_is_the_projects(tmp_path: Path, cmake: Path) -> None:
    (extension,) = captured(tmp_path, cmake, OUTSIDE.format(then="")).cmake_extensions
    assert extension.name == "outside"


def test_an_error_before_setup_says_what_it_hides(tmp_path: Path, cmake: Path) -> None:
    with pytest.raises(CaptureFailed, match=r"raised FileNotFoundError: .*absent.*, and before setup\(\)"):
        captured(tmp_path, cmake, OUTSIDE.format(then="open('absent')"))


def test_cmake_without_cuda_is_no_cuda_extension(tmp_path: Path, cmake: Path) -> None:
    seen = captured(tmp_path, cmake, OUTSIDE.format(then=""), "project(x LANGUAGES CXX)\nset(A $ENV{MY_ARCHS})\n")
    assert seen.cmake_extensions == ()
    assert "MY_ARCHS" in seen.environment


FOUND = """
import importlib.util
specs = map(importlib.util.find_spec, {names!r})
found = [spec.name for spec in specs if spec and {folder!r} in str(spec.origin)]
assert not found, found
"""


def test_modules_of_archpatch_do_not_stand_in_a_projects_way(tmp_path: Path, cmake: Path) -> None:
    """The driver lies among modules whose names a project may use: git, cmake, toolkit."""
    folder = Path(builder.__file__).parent
    names = [path.stem for path in folder.glob("*.py")]
    assert {"cmake", "git"} <= set(names)
    captured(tmp_path, cmake, OUTSIDE.format(then=FOUND.format(names=names, folder=str(folder))))
