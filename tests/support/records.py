"""Wheels that are no wheels, with records that fit them: enough for all that a wheelhouse does with one."""

from __future__ import annotations

import hashlib
import io
import zipfile
from datetime import datetime, timezone
from pathlib import Path

from archpatch.arch.arch import DeviceCode
from archpatch.storage.fingerprint import fingerprint
from archpatch.wheelhouse.layout import Stack, local_version
from archpatch.wheelhouse.record import Record

STACK = Stack(torch="2.14.1+cu130", cuda="13.0")


def make(  # noqa: PLR0913 - what a test may vary
    folder: Path | None,
    *,
    name: str = "mini",
    codes: str = "sm_90",
    version: str = "1.0",
    content: bytes = b"wheel",
    created: datetime = datetime(2026, 11, 30, tzinfo=timezone.utc),
    size: int | None = None,
    stack: Stack = STACK,
    **inputs: str,
) -> tuple[Path, Record]:
    """Return a wheel with this content in `folder`, where one is given, and a record that fits it."""
    title = title_of(name=name, codes=codes, version=version, stack=stack)
    wheel = Path(folder or "made", f"{title}-cp311-cp311-linux_x86_64.whl")
    if folder is not None:
        folder.mkdir(exist_ok=True)
        wheel.write_bytes(content)
    everything = {
        "package": name,
        "version": version,
        "pairs": codes,
        "torch": stack.torch,
        "python": "cp311",
        **inputs,
    }
    record = Record(
        name=name,
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
        extensions={name: tuple(codes.split())},
        needs={"glibc": "2.17", "glibcxx": None},
        source={"origin": "here", "digest": "0"},
        toolchain={},
        times={"compile": 1.0},
        files={"a.cu": {"seconds": 1.0, "memory": 1 << 30}},
        created=created.isoformat(timespec="seconds"),
        archpatch="0.1.0",
    )
    return wheel, record


def title_of(*, name: str = "mini", codes: str = "sm_90", version: str = "1.0", stack: Stack = STACK) -> str:
    """Return what the file name of such a wheel starts with: `NAME-VERSION`, the local version included."""
    return f"{name}-{version}+{local_version(map(DeviceCode.parse, codes.split()), stack)}"


def readable(title: str, *headers: str) -> bytes:
    """Return a wheel with metadata and nothing else; `title` is what its file name starts with."""
    name, _, version = title.partition("-")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *headers, "", ""])
        file.writestr(zipfile.ZipInfo(f"{title}.dist-info/METADATA"), metadata)
    return archive.getvalue()
