"""pip and uv, as they are on PyPI today, install from a wheelhouse: by folder, by index, by requirement line.

The package is a miniature one under the name and version of a release on PyPI, so that the contest with it is real.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from commandline import FIXTURES, CommandLine

from archpatch.arch.arch import DeviceCode
from archpatch.storage.atomic import sha256_of
from archpatch.storage.fingerprint import fingerprint
from archpatch.wheelhouse.house import Wheelhouse
from archpatch.wheelhouse.layout import Stack, local_version
from archpatch.wheels.inspection import inspect_path
from archpatch.wheels.metadata import relabel

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

PYPI = "https://pypi.org/simple"
NAME = "fast_hadamard_transform"
#: Not the newest, so that an unpinned name tells who wins.
VERSION = "1.0.4.post1"
PINNED = f"{NAME}=={VERSION}"
HELD = {"h200": "sm_90", "l4": "sm_80"}


@dataclass(frozen=True)
class Filed:
    """A wheelhouse with the release for two GPU types, and for another torch that sorts higher."""

    commandline: CommandLine
    stack: str
    other: str

    @property
    def root(self) -> Path:
        return self.commandline.wheelhouse

    def folder(self, gpu: str) -> Path:
        return self.root / "gpu" / gpu / self.stack

    def index(self, gpu: str, base: str | None = None) -> str:
        return f"{base or self.root.as_uri()}/index/{gpu}/{self.stack}/"


@pytest.fixture(scope="session")
def filed(tmp_path_factory: pytest.TempPathFactory) -> Filed:
    commandline = CommandLine(tmp_path_factory.mktemp("consumers"))
    project = shutil.copytree(FIXTURES / "mini", commandline.folder / "project")
    settings = project / "pyproject.toml"
    text = settings.read_text().replace('"archpatch_mini"', f'"{NAME}"').replace('"0.1.0"', f'"{VERSION}"')
    settings.write_text(text)
    wheels = [commandline("build", project, "--gpu", gpu).wheel for gpu in HELD]
    commandline("wheelhouse", "index")
    other = for_another_torch(Wheelhouse(commandline.wheelhouse), wheels[0], commandline.folder)
    return Filed(commandline, wheels[0].parent.name, other)


def for_another_torch(house: Wheelhouse, wheel: Path, scratch: Path) -> str:
    """File the wheel for a torch of the future too, and return the name of that torch's folders."""
    entry = house.entry(wheel)
    stack = Stack(torch="99.0.0+cu130", cuda="13.0")
    label = local_version(map(DeviceCode.parse, entry.record.device_code), stack)
    relabelled = relabel(wheel, label, scratch)
    inputs = {**entry.record.inputs, "torch": stack.torch}
    record = replace(
        entry.record,
        wheel=relabelled.name,
        sha256=sha256_of(relabelled),
        size=relabelled.stat().st_size,
        fingerprint=fingerprint(inputs),
        inputs=inputs,
    )
    house.offer(house.publish(relabelled, record, stack), "h200", stack)
    return stack.folder


@pytest.fixture
def own(filed: Filed, tmp_path: Path) -> Filed:
    """A copy of the wheelhouse, to change at will."""
    shutil.copytree(filed.root, tmp_path / "wheelhouse", symlinks=True)
    return replace(filed, commandline=CommandLine(tmp_path))


@dataclass(frozen=True)
class Taken:
    """What an installer installed: the version, and the device code of it; or why it did not."""

    version: str | None
    cubins: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Installer:
    """pip or uv in an environment of its own, without the settings of this machine's user."""

    name: str
    folder: Path

    def run(
        self, *arguments: object, cwd: Path | None = None, config: bool = False
    ) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not re.match(SETTINGS, name)}
        ours = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        uv = {"UV_CACHE_DIR": str(self.folder / "cache"), **({} if config else {"UV_NO_CONFIG": "1"})}
        command = [str(self.folder / "bin" / self.name), *map(str, arguments)]
        return subprocess.run(command, cwd=cwd, env={**kept, **ours, **uv}, capture_output=True, text=True, check=False)

    def install(self, into: Path, *arguments: object) -> Taken:
        """Install into a fresh folder, the named packages alone."""
        shutil.rmtree(into, ignore_errors=True)
        uv = ["pip"] if self.name == "uv" else []
        python = ["--python", self.folder / "bin" / "python"] if self.name == "uv" else ["--no-build-isolation"]
        done = self.run(*uv, "install", "--target", into, "--no-deps", *python, *arguments)
        found = [path.name for path in into.glob("*.dist-info")]
        version = found[0].removesuffix(".dist-info").rpartition("-")[2] if found else None
        cubins = tuple(map(str, inspect_path(into).cubins)) if found else ()
        return Taken(version, cubins, done.stdout + done.stderr)

    def would_install(self, *arguments: object) -> str:
        """Return the version that is chosen, without a wheel being made of it."""
        if self.name == "uv":
            python = self.folder / "bin" / "python"
            done = self.run("pip", "install", "--dry-run", "--no-deps", "--python", python, *arguments)
            found = re.search(r"^ \+ [a-z-]+==(\S+)$", done.stderr, re.MULTILINE)
        else:
            done = self.run(
                "install", "--dry-run", "--no-deps", "--ignore-installed", "--no-build-isolation", *arguments
            )
            found = re.search(rf"Would install {NAME}-(\S+)|Downloading {NAME}-(\S+)\.tar\.gz", done.stdout)
        assert found is not None, done.stdout + done.stderr
        return next(filter(None, found.groups()))


#: What decides in this machine's environment where packages come from.
SETTINGS = r"UV_|PIP_(?:.*INDEX|FIND_LINKS|CONSTRAINT|CONFIG_FILE|NO_BINARY|ONLY_BINARY)"


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installers")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    subprocess.run([str(folder / "bin" / "pip"), "install", "-q", "--upgrade", "pip", "uv"], check=True)
    return folder


@pytest.fixture(params=["pip", "uv"])
def installer(request: pytest.FixtureRequest, environment: Path) -> Installer:
    return Installer(request.param, environment)


@pytest.fixture(scope="session")
def served(filed: Filed) -> Iterator[str]:
    """The wheelhouse behind `python -m http.server`."""
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(filed.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            port = re.search(r"port (\d+)", server.stdout.readline())
            assert port is not None
            yield f"http://127.0.0.1:{port[1]}"
        finally:
            server.terminate()


class JsonHandler(SimpleHTTPRequestHandler):
    """Serves the pages of an index as JSON, as a server does that is told to."""

    extensions_map: ClassVar = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".json": "application/vnd.pypi.simple.v1+json",
    }

    def send_head(self) -> object:
        if self.path.startswith("/index/") and self.path.endswith("/"):
            self.path += "index.json"
        return super().send_head()

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def served_as_json(filed: Filed) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(JsonHandler, directory=str(filed.root)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


# --- which wheel -------------------------------------------------------------------------------

#: How an installer is pointed at a GPU type; the wheelhouse's URL is that of its folder, or of a server.
WAYS: dict[str, Callable[[Filed, str, str | None], list[object]]] = {
    "folder": lambda filed, gpu, _: ["--no-index", "--find-links", filed.folder(gpu)],
    "folder beside PyPI": lambda filed, gpu, _: ["--index-url", PYPI, "--find-links", filed.folder(gpu)],
    "index": lambda filed, gpu, base: ["--index-url", filed.index(gpu, base)],
    # In this order of options: of uv's indexes, an extra one comes before --index-url.
    "index beside PyPI": lambda filed, gpu, base: ["--index-url", PYPI, "--extra-index-url", filed.index(gpu, base)],
}


@pytest.mark.parametrize("gpu", HELD)
@pytest.mark.parametrize("way", WAYS)
def test_a_pinned_release_is_the_wheel_of_the_gpu_type(
    filed: Filed, installer: Installer, tmp_path: Path, way: str, gpu: str
) -> None:
    taken = installer.install(tmp_path / "into", *WAYS[way](filed, gpu, None), PINNED)
    assert taken.cubins == (HELD[gpu],), taken.output
    assert taken.version is not None
    assert taken.version.startswith(f"{VERSION}+cu")
    assert "99.0.0" not in taken.version


@pytest.mark.parametrize("way", ["index", "index beside PyPI"])
def test_the_index_is_served_by_any_web_server(
    filed: Filed, installer: Installer, served: str, tmp_path: Path, way: str
) -> None:
    taken = installer.install(tmp_path / "into", *WAYS[way](filed, "l4", served), PINNED)
    assert taken.cubins == ("sm_80",), taken.output


def test_the_index_is_taken_as_json_with_its_dates(
    filed: Filed, installer: Installer, served_as_json: str, tmp_path: Path
) -> None:
    index = ["--index-url", filed.index("h200", served_as_json)]
    limit = {"uv": "--exclude-newer", "pip": "--uploaded-prior-to"}[installer.name]
    assert installer.install(tmp_path / "into", *index, limit, "2999-01-01", PINNED).cubins == ("sm_90",)
    assert installer.install(tmp_path / "into", *index, limit, "2020-01-01", PINNED).version is None


def test_in_a_flat_folder_the_highest_string_wins(filed: Filed, installer: Installer, tmp_path: Path) -> None:
    """Why there is a folder per GPU type and torch: the others that are filed would have been taken."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for wheel in Wheelhouse(filed.root).wheels():
        shutil.copy(wheel, flat)
    taken = installer.install(tmp_path / "into", "--no-index", "--find-links", flat, PINNED)
    assert "99.0.0" in str(taken.version), taken.output
    for wheel in flat.glob("*99.0.0*"):
        wheel.unlink()
    assert installer.install(tmp_path / "into", "--no-index", "--find-links", flat, PINNED).cubins == ("sm_90",)


def test_a_wheel_for_another_torch_is_reached_by_its_own_folder_alone(
    filed: Filed, installer: Installer, tmp_path: Path
) -> None:
    theirs = filed.index("h200").replace(filed.stack, filed.other)
    assert "99.0.0" in str(installer.install(tmp_path / "into", "--index-url", theirs, PINNED).version)
    other = "+cu130torch99.0.0sm90"
    for way in WAYS.values():
        taken = installer.install(tmp_path / "into", *way(filed, "h200", None), f"{PINNED}{other}")
        assert taken.version is None


# --- unpinned names, beside PyPI ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "pip", "uv"),
    [
        ("folder beside PyPI", "PyPI", "PyPI"),
        ("index beside PyPI", "PyPI", "wheelhouse"),
        ("folder", "wheelhouse", "wheelhouse"),
        ("index", "wheelhouse", "wheelhouse"),
    ],
)
def test_who_wins_an_unpinned_name(filed: Filed, installer: Installer, way: str, pip: str, uv: str) -> None:
    version = installer.would_install(*WAYS[way](filed, "h200", None), NAME)
    winner = {"pip": pip, "uv": uv}[installer.name]
    assert ("+cu" in version) == (winner == "wheelhouse"), version


def test_with_uv_an_extra_index_comes_first_so_pypi_must_not_be_the_extra_one(filed: Filed, environment: Path) -> None:
    uv = Installer("uv", environment)
    version = uv.would_install("--index-url", filed.index("h200"), "--extra-index-url", PYPI, PINNED)
    assert version == VERSION
    version = uv.would_install("--index", filed.index("h200"), "--default-index", PYPI, PINNED)
    assert version.startswith(f"{VERSION}+cu")


# --- requirement lines -------------------------------------------------------------------------


@pytest.fixture
def lines(filed: Filed, tmp_path: Path) -> Path:
    file = tmp_path / "h200.txt"
    file.write_text(filed.commandline("wheelhouse", "requirements", "--gpu", "h200").stdout)
    return file


@pytest.mark.parametrize("options", [[], ["--require-hashes"], ["--index-url", PYPI], ["--no-index"]])
def test_requirement_lines_are_taken(installer: Installer, lines: Path, tmp_path: Path, options: list[str]) -> None:
    taken = installer.install(tmp_path / "into", *options, "-r", lines)
    assert taken.cubins == ("sm_90",), taken.output


@pytest.mark.parametrize("options", [[], ["--require-hashes"]])
def test_a_wheel_that_is_not_what_the_line_says_is_refused(
    installer: Installer, lines: Path, tmp_path: Path, options: list[str]
) -> None:
    lines.write_text(re.sub(r"sha256=.{8}", "sha256=00000000", lines.read_text()))
    taken = installer.install(tmp_path / "into", *options, "-r", lines)
    assert taken.version is None
    assert re.search(r"(?i)hash", taken.output)


# --- a wheel that was replaced -----------------------------------------------------------------


def test_after_a_replacement_the_index_gives_the_new_wheel_and_an_old_copy_none(
    own: Filed, installer: Installer, tmp_path: Path
) -> None:
    into = tmp_path / "into"
    index = ["--index-url", own.index("h200"), PINNED]
    old = installed(installer, into, index)
    copied = shutil.copytree(own.root / "index", tmp_path / "copied")
    other = {"CXXFLAGS": "-DSOMETHING -g"}
    built = own.commandline("build", own_project(own), "--gpu", "h200", "--json", environ=other).json["wheels"][0]
    assert built["hit"] is False
    new = installed(installer, into, index)
    assert new != old
    shutil.rmtree(own.root / "index")
    shutil.move(copied, own.root / "index")
    taken = installer.install(into, *index)
    assert taken.version is None
    assert re.search(r"(?i)hash", taken.output)
    verify = own.commandline("wheelhouse", "verify")
    assert verify.status == 1
    assert {line.partition(": ")[2] for line in verify.stdout.splitlines()} == {STALE}
    own.commandline("wheelhouse", "index")
    assert installed(installer, into, index) == new
    assert own.commandline("wheelhouse", "verify").status == 0


STALE = "does not say what the wheelhouse holds: run archpatch wheelhouse index"


def installed(installer: Installer, into: Path, arguments: list[object]) -> str:
    """Install, and return the hash of the library."""
    taken = installer.install(into, *arguments)
    assert taken.cubins == ("sm_90",), taken.output
    (library,) = into.rglob("*.so")
    return sha256_of(library)


def own_project(own: Filed) -> Path:
    (entry, *_) = Wheelhouse(own.root).entries_for("h200")
    return Path(entry.record.source["origin"])


# --- uv's projects -----------------------------------------------------------------------------

PROJECT = """
[project]
name = "app"
version = "0"
requires-python = "=={python}.*"
dependencies = ["{requirement}"]

[[tool.uv.index]]
name = "h200"
url = "{index}"
explicit = true

[tool.uv.sources]
{name} = {{ index = "h200" }}
"""


@pytest.mark.parametrize("requirement", [PINNED, NAME])
def test_a_project_of_uvs_names_the_index_for_the_package(
    filed: Filed, environment: Path, tmp_path: Path, requirement: str
) -> None:
    uv, python = Installer("uv", environment), ".".join(map(str, sys.version_info[:2]))
    text = PROJECT.format(python=python, requirement=requirement, index=filed.index("h200"), name=NAME)
    (tmp_path / "pyproject.toml").write_text(text)
    done = uv.run("sync", "--python", environment / "bin" / "python", cwd=tmp_path, config=True)
    assert done.returncode == 0, done.stderr
    assert tuple(map(str, inspect_path(tmp_path / ".venv").cubins)) == ("sm_90",)
    (entry,) = (entry for entry in Wheelhouse(filed.root).entries_for("h200") if entry.wheel.parent.name == filed.stack)
    assert entry.record.sha256 in (tmp_path / "uv.lock").read_text()
