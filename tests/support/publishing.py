"""Real wheels that are filed without being compiled each time, and what holds of a wheelhouse whatever happens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote

from archpatch.storage.atomic import sha256_of
from archpatch.wheelhouse.house import Entry, Wheelhouse
from archpatch.wheelhouse.layout import Stack
from archpatch.wheelhouse.verify import verify

GPUS = {("sm_90",): "h200", ("sm_80", "compute_80"): "a100"}


def stack_of(entry: Entry) -> Stack:
    """Return the torch and CUDA that a wheel was built for."""
    return Stack(torch=entry.record.inputs["torch"], cuda=entry.record.inputs["cuda"])


def publish(house: Wheelhouse, *built: Entry) -> None:
    """Do with wheels what a build does, less the compile; the key in the memo is the fingerprint."""
    for each in built:
        key = each.record.fingerprint
        entry = house.recall(key, {})
        if entry is None:
            entry = house.find(key) or house.publish(each.wheel, each.record, stack_of(each))
            house.remember(key, entry, {})
        house.offer(entry, GPUS[entry.record.device_code], stack_of(each))


def files(house: Wheelhouse) -> list[str]:
    """Return all that lies in a wheelhouse, links too; locks, of which the last build's own stay, are left out."""
    named = (path.relative_to(house.root) for path in house.root.rglob("*") if not path.is_dir())
    return sorted(path.as_posix() for path in named if path.parent.name != "locks")


def locks(house: Wheelhouse) -> list[str]:
    """Return the files of locks."""
    return sorted(path.name for path in (house.root / ".archpatch" / "locks").iterdir())


def assert_intact(house: Wheelhouse, *built: Entry) -> None:
    """Assert that a reader sees intact wheels with their own records alone, and that every hit is the right one."""
    records = [each.record for each in built]
    for entry in (*house.entries(), *(entry for gpu in house.gpus() for entry in house.entries_for(gpu))):
        entry.check()
        assert entry.record in records
    for record in records:
        for found in (house.find(record.fingerprint), house.recall(record.fingerprint, {})):
            assert found is None or found.record == record
    for wheel, sha256 in offered(house):
        assert sha256_of(wheel) == sha256, wheel
    for fault in verify(house):
        # A wheel that was about to be replaced is gone; its rerun brings what its links lead to.
        dangling = fault.path.is_symlink() and not fault.path.exists()
        # What the pages of the index do name was looked at above; some may not name a wheel yet.
        assert dangling or fault.path.is_relative_to(house.root / "index"), fault


def offered(house: Wheelhouse) -> Iterator[tuple[Path, str]]:
    """Yield what the pages of the index name, with its hash."""
    for page in house.root.glob("index/*/*/*/index.json"):
        for file in json.loads(page.read_text())["files"]:
            yield page.parent / unquote(file["url"]), file["hashes"]["sha256"]
    for page in house.root.glob("index/*/*/*/index.html"):
        for url, sha256 in re.findall(r'<a href="([^"]+)#sha256=(\w+)"', page.read_text()):
            yield page.parent / unquote(unescape(url)), sha256
