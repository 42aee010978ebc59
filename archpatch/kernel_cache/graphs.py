"""Inductor's compiled graphs: pickles in which each kernel names the folder that it was compiled in."""

from __future__ import annotations

import pickletools
import re
import struct
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from archpatch.kernel_cache.tree import Entry

__all__ = ["is_graph", "point_graph"]

_FOLDERS = ("inductor/fxgraph/", "inductor/aotautograd/")
_STRINGS = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")


def is_graph(entry: Entry) -> bool:
    """Tell whether an entry is a graph that Inductor compiled."""
    return entry.name.startswith(_FOLDERS)


def point_graph(content: bytes, folder: Path) -> bytes:
    """Return a graph whose kernels have their source and their measured choice below Inductor's folder `folder`.

    torch reads a kernel's `.best_config` at the path that the pickle names before it measures again, and writes it
    there (`recheck_autotune_cache` in torch/_inductor/runtime/triton_heuristics.py and `AutotuneCache` beside it, 2.11
    to 2.14). The pickle is not loaded, only its strings are written anew; what is no pickle is returned as it is.
    """
    named = re.compile(rf"/.*/{re.escape(folder.name)}/([^/\n]+/[^/\n]+\.(?:py|best_config))")
    pointed, moved = bytearray(), False
    try:
        for name, argument, raw in _operations(content):
            match = named.fullmatch(argument) if name in _STRINGS else None
            if match is not None and argument != f"{folder}/{match[1]}":
                pointed += _string(f"{folder}/{match[1]}")
                moved = True
            elif name != "FRAME":  # how far to read ahead, which is wrong once a string is longer; it may be left out
                pointed += raw
    except ValueError:
        return content
    return bytes(pointed) if moved else content


def _operations(content: bytes) -> Iterator[tuple[str, Any, bytes]]:
    """Yield each operation of a pickle: its name, its argument, its bytes. Raises `ValueError`."""
    end: tuple[Any, Any, int | None] = (None, None, len(content))
    for (operation, argument, start), (_, _, after) in pairwise(chain(pickletools.genops(content), (end,))):
        yield operation.name, argument, content[start:after]


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data
