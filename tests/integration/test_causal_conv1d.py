"""A real package: fetched from the index, built for one arch, read back, installed and imported; takes minutes."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from commandline import CommandLine, dumped

pytestmark = pytest.mark.integration

SDIST = "causal_conv1d==1.7.0#sha256=3202758494eaa7b597ce1c282dfa188889506bfcb92cad3c407d26736bfcd32b"


def test_causal_conv1d_is_built_for_one_arch_installed_and_imported(archpatch: CommandLine, cuobjdump: Path) -> None:
    answer = archpatch("build", SDIST, "--gpu", "h200")
    wheel, record = answer.wheel, answer.record
    assert record["device_code"] == ["sm_90"]
    assert wheel.parent.parent.name == "sm90"
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        library = Path(archive.extract(name, archpatch.folder / "unpacked"))
    assert dumped(cuobjdump, library) == {"sm_90"}
    python = fresh_environment(archpatch.folder / "venv")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    code = "import causal_conv1d, causal_conv1d_cuda; print(causal_conv1d.__version__, causal_conv1d_cuda.__file__)"
    printed = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.startswith("1.7.0 ")
    assert str(archpatch.folder / "venv") in printed
    again = archpatch("build", SDIST, "--gpu", "h200", "--json").json["wheels"][0]
    assert again["hit"] is True
    assert again["seconds"] < 5


def fresh_environment(folder: Path) -> str:
    """Return the interpreter of a new environment that sees the torch of this one, which is 5 GB large."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (site / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return str(python)
