"""Put entries that lie ready beside a root into it, each by a rename, so that no reader ever sees a part of one."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from archpatch.kernel_cache.graphs import is_graph, point_graph
from archpatch.kernel_cache.soundness import GROUP, Checked, check, group_members, is_timings
from archpatch.kernel_cache.tree import Entry, File, read_quietly

__all__ = ["merge_timings", "place", "point", "portable"]

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.ENOENT)
#: Where a folder that is replaced goes, beside the staged one; no compiler has this name.
_ASIDE = ".replaced"
#: Inductor's folder in the graphs of an archive; `point_graph` knows a path by the folder's name, below another.
_NOWHERE = Path("/archpatch/inductor")


def portable(entry: Entry, file: File) -> bytes:
    """Return a file as an archive holds it: the same wherever it was compiled, for no group or graph names a place."""
    content = read_quietly(entry.path(file))
    if PurePosixPath(file.name).name.startswith(GROUP):
        return _group(content, "")
    return point_graph(content, _NOWHERE) if is_graph(entry) else content


def point(checked: Checked, folder: Path) -> None:
    """Rewrite the paths in a staged entry for the compiler's folder `folder`, where the entry will lie.

    Triton looks for each file at the path that its group names, and compiles again, in silence, where one is missing.
    Inductor does so with what it measured.
    """
    for file in checked.sound:
        path = checked.entry.path(file)
        if path.name.startswith(GROUP):
            path.write_bytes(_group(path.read_bytes(), f"{(folder / file.name).parent}/"))
        elif is_graph(checked.entry):
            path.write_bytes(point_graph(path.read_bytes(), folder))


def place(checked: Checked, folder: Path, existing: Entry | None, *, replaces: bool = False) -> bool:
    """Move a staged entry into the compiler's folder, and tell whether it is all there now.

    The staged files are used up. Where the entry exists and its files are named by their content, what is missing or
    torn there is added. Any other stays as it is, for something may be running from it, unless the new one `replaces`
    it as a whole; a folder is then moved aside first, and whoever opens it meanwhile finds none.
    """
    entry = checked.entry
    for name, _ in checked.faults:
        (entry.folder / name).unlink()
    if existing is not None and not entry.compiler.addressed:
        if not replaces:
            return False
        existing = None
    below = entry.name.partition("/")[2]
    staged, target = entry.folder / below, folder / below
    target.parent.mkdir(parents=True, exist_ok=True)
    if staged.is_dir():
        if replaces and target.is_dir() and not entry.compiler.addressed:
            _rename(target, entry.folder.with_name(_ASIDE))
        if not _rename(staged, target) and not entry.compiler.addressed:
            return False
    _fill(checked, folder, existing)
    return True


def merge_timings(mine: bytes, theirs: bytes) -> bytes:
    """Return Inductor's table of measured times with the entries of both; where both have one, `mine` stays."""
    merged = _merged(json.loads(mine), json.loads(theirs))
    return json.dumps(merged, indent=4).encode("ascii")


def _rename(source: Path, target: Path) -> bool:
    """Rename a folder; return False where another is there, or another process has moved the source."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        return False
    return True


def _fill(checked: Checked, folder: Path, existing: Entry | None) -> None:
    """Add the files that the existing entry lacks or has torn; a group comes after what it names."""
    whole = {} if existing is None else {file.name: file for file in check(existing).sound}
    for file in sorted(checked.sound, key=lambda file: (Path(file.name).name.startswith(GROUP), file.name)):
        source, target = checked.entry.path(file), folder / file.name
        if not source.exists():
            continue  # it came with its folder
        if file.name not in whole:
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)
        elif is_timings(checked.entry, file.name):
            with contextlib.suppress(OSError, ValueError):  # the table that is there is as good
                _add_timings(source, target)


def _add_timings(source: Path, target: Path) -> None:
    before, theirs = read_quietly(target), source.read_bytes()
    merged = merge_timings(before, theirs)
    if json.loads(merged) != json.loads(before):
        source.write_bytes(merged)
        source.replace(target)


def _merged(mine: Any, theirs: Any) -> Any:  # noqa: ANN401 - what JSON holds
    if not isinstance(mine, Mapping) or not isinstance(theirs, Mapping):
        return mine
    both = {name: _merged(mine[name], theirs[name]) for name in mine.keys() & theirs.keys()}
    return {**theirs, **mine, **both}


def _group(content: bytes, prefix: str) -> bytes:
    members = group_members(content)
    return json.dumps({"child_paths": {name: f"{prefix}{name}" for name in members}}).encode("utf-8")
