"""How long slimming takes, beside unpacking a wheel and packing it again by zipfile; both sides in one run."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import pytest

from archpatch.arch.arch import ArchRequest
from archpatch.arch.selection import Policy
from archpatch.wheels.slim_choice import Wanted
from archpatch.wheels.slim_wheel import slim_wheel

pytestmark = pytest.mark.benchmark

ROUNDS = 3


def repack(wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(into / wheel.name, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member, old.read(member))


def test_slimming_takes_at_most_five_seconds_of_one_core_per_100_mb(bitsandbytes: Path, tmp_path: Path) -> None:
    wanted = Wanted(request=ArchRequest.parse("9.0"), policy=Policy(), allow_relocatable=True)
    slim, plain = [], []
    for _ in range(ROUNDS):
        started = time.process_time()
        slimmed = slim_wheel(bitsandbytes, wanted, tmp_path)
        slim.append(time.process_time() - started)
        started = time.process_time()
        repack(bitsandbytes, tmp_path)
        plain.append(time.process_time() - started)
    size, after = bitsandbytes.stat().st_size / 1e6, slimmed.path.stat().st_size / 1e6
    per_100 = min(slim) / size * 100
    print(
        f"\n{size:.1f} MB to {after:.1f} MB: {min(slim):.2f} s, {per_100:.2f} s per 100 MB; repacked {min(plain):.2f} s"
    )
    assert per_100 <= 5
    assert min(slim) < min(plain)
