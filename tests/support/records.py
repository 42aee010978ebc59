"""Wheels that are no wheels, with records that fit them: enough for all that a wheelhouse does with one."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from pathlib import Path

from archpatch.arch.arch import DeviceCode
from archpatch.storage.fingerprint import fingerprint
from archpatch.wheelhouse.layout import Stack
from archpatch.wheelhouse.record import Record

STACK = Stack(torch="2.14.1+cu130", cuda="13.0")


def make(
    folder: Path | None,
    *,
    codes: str = "sm_90",
    version: str = "1.0",
    content: bytes = b"wheel",
    created: datetime = datetime(2026, 11, 30, tzinfo=timezone.utc),
    size: int | None = None,
    **inputs: str,
) -> tuple[Path, Record]:
    """Return a wheel with this content in `folder`, where one is given, and a record that fits it."""
    tags = ".".join(DeviceCode.parse(code).tag for code in codes.split())
    wheel = Path(folder or "made", f"mini-{version}+cu130torch2.14.1{tags}-cp311-cp311-linux_x86_64.whl")
    if folder is not None:
        folder.mkdir(exist_ok=True)
        wheel.write_bytes(content)
    everything = {
        "package": "mini",
        "version": version,
        "pairs": codes,
        "torch": STACK.torch,
        "python": "cp311",
        **inputs,
    }
    record = Record(
        name="mini",
        version=version,
        wheel=wheel.name,
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content) if size is None else size,
        fingerprint=fingerprint(everything),
        inputs=everything,
        request={"archs": ["9.0"], "gpus": [], "source": "--arch", "on_missing": "error"},
        pairs=(),
        flag_sources=(),
        device_code=tuple(codes.split()),
        extensions={"mini": tuple(codes.split())},
        needs={"glibc": "2.17", "glibcxx": None},
        source={"origin": "here", "digest": "0"},
        toolchain={},
        times={"compile": 1.0},
        created=created.isoformat(timespec="seconds"),
        archpatch="0.1.0",
    )
    return wheel, record
