"""How long slimming takes, beside unpacking a wheel and packing it again by zipfile; both sides in one run."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from measuring import Comparison, Side, fastest

from archpatch.arch.arch import ArchRequest
from archpatch.arch.selection import Policy
from archpatch.wheels.slim_choice import Wanted
from archpatch.wheels.slim_wheel import slim_wheel

pytestmark = pytest.mark.benchmark


def repack(wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(into / wheel.name, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member, old.read(member))


def test_slimming_takes_at_most_five_seconds_of_one_core_per_100_mb(
    bitsandbytes: Path, tmp_path: Path, compared: Callable[..., None]
) -> None:
    wanted = Wanted(request=ArchRequest.parse("9.0"), policy=Policy(), allow_relocatable=True)
    sides = fastest(
        {
            "slim": lambda: slim_wheel(bitsandbytes, wanted, tmp_path, scratch=tmp_path),
            "repacked by zipfile": lambda: repack(bitsandbytes, tmp_path),
        },
        rounds=3,
        clock=time.process_time,
    )
    slim, plain = sides.values()
    (slimmed,) = (path for path in tmp_path.glob("*.whl") if path.name != bitsandbytes.name)
    size, after = bitsandbytes.stat().st_size / 1e6, slimmed.stat().st_size / 1e6
    note = f"one core; bitsandbytes, {size:.1f} MB to {after:.1f} MB"
    allowed = Side(name="5 s per 100 MB", value=size / 20)
    compared(
        Comparison(name="slim", measured=slim, against=plain, most=1.0, note=note),
        Comparison(name="slim: limit", measured=slim, against=allowed, most=1.0, note=note),
    )
