"""The static index of a wheelhouse: pages that pip and uv take as an index, and one for people.

There is one index per GPU type, and one per set of device code, each for one torch and CUDA, since an installer can
tell none of these apart: `index/h200/torch2.14.1-cu130/mini/index.html`, and the same as `index.json`.

Source: the simple repository API on packaging.python.org (PEP 503, 629, 691 and 700). Its files with core metadata
(PEP 658) are left out: they save a download where versions are compared, and here whoever asks for a wheel installs it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from html import escape
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import quote

from archpatch.errors import WheelhouseDamaged
from archpatch.storage.atomic import disk_errors, write_text
from archpatch.wheelhouse.layout import INDEX
from archpatch.wheelhouse.record import Record
from archpatch.wheels.metadata import WheelMetadata, read_metadata

__all__ = ["Listed", "index_pages", "out_of_date", "write_pages"]

_ROOT: Final = PurePosixPath(INDEX)
_API: Final = "1.1"

Pages = Mapping[PurePosixPath, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A wheel as an index lists it: `place` is its path in the wheelhouse, `gpus` the types that it is filed for."""

    place: PurePosixPath
    record: Record
    metadata: WheelMetadata
    gpus: tuple[str, ...] = ()

    @classmethod
    def read(cls, wheel: Path, record: Record, *, root: Path, gpus: Iterable[str]) -> Listed:
        """Read what a page says of `wheel`, a file below `root`.

        Raises `WheelhouseDamaged` where name or size are not those of the published wheel, and what `read_metadata`
        raises. The hash is the record's: an installer checks it.
        """
        if wheel.name != record.wheel or wheel.stat().st_size != record.size:
            raise WheelhouseDamaged(f"{wheel} is not what its record says", remedy="Build it again.")
        place = PurePosixPath(wheel.relative_to(root).as_posix())
        return cls(place=place, record=record, metadata=read_metadata(wheel), gpus=tuple(sorted(gpus)))

    def link(self, page: PurePosixPath) -> str:
        """Return the URL of the wheel as `page` spells it: relative, so that a wheelhouse can be moved or served."""
        return _up(page) + quote(str(self.place))


def index_pages(wheels: Iterable[Listed]) -> dict[PurePosixPath, str]:
    """Return every page by its path in the wheelhouse; the same wheels give the same bytes, whatever their order."""
    indexes = _indexes(wheels)
    pages = {_ROOT / "index.html": _overview(indexes)}
    for folder, listed in indexes.items():
        by_package = {name: tuple(group) for name, group in groupby(listed, key=lambda wheel: wheel.metadata.name)}
        pages[folder / "index.html"] = _projects_html(by_package)
        pages[folder / "index.json"] = _json({"projects": [{"name": name} for name in by_package]})
        for name, files in by_package.items():
            pages[folder / name / "index.html"] = _project_html(name, files, folder / name / "index.html")
            pages[folder / name / "index.json"] = _project_json(name, files, folder / name / "index.json")
    return pages


def out_of_date(root: Path, pages: Pages) -> Iterator[Path]:
    """Yield the files of the index below `root` that are missing, unlike `pages`, or no longer among them."""
    for path, text in pages.items():
        if _content(root / path) != text.encode():
            yield root / path
    # Unlike `Path.rglob`, this is no error where another process removes a folder meanwhile.
    for folder, _, names in sorted(os.walk(root / INDEX)):
        for page in (Path(folder, name) for name in sorted(names)):
            is_page = page.name in ("index.html", "index.json")
            if is_page and PurePosixPath(page.relative_to(root).as_posix()) not in pages:
                yield page


def _content(page: Path) -> bytes | None:
    try:
        return page.read_bytes()
    except OSError:
        return None


def write_pages(root: Path, pages: Pages) -> None:
    """Bring the index below `root` up to date, each page in one step; pages that are right are not touched."""
    for page in tuple(out_of_date(root, pages)):
        text = pages.get(PurePosixPath(page.relative_to(root).as_posix()))
        with disk_errors(page):
            if text is None:
                page.unlink()
                _remove_empty(page.parent, root / INDEX)
                continue
            page.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, text)


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove `folder` and those above it, as far as they are empty, below `top`."""
    with contextlib.suppress(OSError):
        while folder != top:
            folder.rmdir()
            folder = folder.parent


def _indexes(wheels: Iterable[Listed]) -> dict[PurePosixPath, list[Listed]]:
    """Return the wheels by the folder of their index: GPU types first, packages and versions in order."""
    found: dict[tuple[bool, str, str], list[Listed]] = defaultdict(list)
    for wheel in sorted(wheels, key=lambda each: (each.metadata.name, each.metadata.version, each.place)):
        held, stack, _ = wheel.place.parts
        for name in wheel.gpus:
            found[False, name, stack].append(wheel)
        found[True, held, stack].append(wheel)
    return {_ROOT / name / stack: found[key, name, stack] for key, name, stack in sorted(found)}


# --- the simple API ----------------------------------------------------------------------------


def _projects_html(names: Iterable[str]) -> str:
    return _page("Simple index", (f'<a href="{name}/">{name}</a><br>' for name in names), head=_VERSION)


def _project_html(name: str, files: Iterable[Listed], page: PurePosixPath) -> str:
    return _page(f"Links for {name}", (_anchor(wheel, page) for wheel in files), head=_VERSION)


def _anchor(wheel: Listed, page: PurePosixPath) -> str:
    href = f"{wheel.link(page)}#sha256={wheel.record.sha256}"
    requires = wheel.metadata.requires_python
    python = "" if requires is None else f' data-requires-python="{escape(requires)}"'
    return f'<a href="{escape(href)}"{python}>{escape(wheel.place.name)}</a><br>'


def _project_json(name: str, files: Sequence[Listed], page: PurePosixPath) -> str:
    versions = list(dict.fromkeys(str(wheel.metadata.version) for wheel in files))
    return _json({"name": name, "versions": versions, "files": [_file(wheel, page) for wheel in files]})


def _file(wheel: Listed, page: PurePosixPath) -> dict[str, Any]:
    created = wheel.record.created_at
    everything = {
        "filename": wheel.place.name,
        "url": wheel.link(page),
        "hashes": {"sha256": wheel.record.sha256},
        "requires-python": wheel.metadata.requires_python,
        "size": wheel.record.size,
        "upload-time": created and created.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    return {name: value for name, value in everything.items() if value is not None}


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps({"meta": {"api-version": _API}, **content}, indent=2, ensure_ascii=False) + "\n"


# --- the page for people -----------------------------------------------------------------------


def _overview(indexes: Mapping[PurePosixPath, Sequence[Listed]]) -> str:
    body = [_HINT if indexes else "<p>No wheels are filed.</p>"]
    for name, folders in groupby(indexes, key=lambda folder: folder.parent.name):
        rows = [_row(wheel, folder) for folder in folders for wheel in indexes[folder]]
        body += [f"<h2>{escape(name)}</h2>", "<table>", _HEADER, *rows, "</table>"]
    return _page("Wheels by GPU type", body, head=_LOOKS)


def _row(wheel: Listed, folder: PurePosixPath) -> str:
    record = wheel.record
    place = quote(str(folder.relative_to(_ROOT)))
    package, torch = f"{place}/{wheel.metadata.name}/index.html", f"{place}/index.html"
    cells = (
        f'<a href="{escape(package)}">{escape(record.name)}</a>',
        escape(record.version),
        f'<a href="{escape(torch)}">{escape(record.inputs.get("torch", "?"))}</a>',
        escape(record.inputs.get("python", "?")),
        escape(" ".join(record.device_code)),
        f"{record.size / 1e6:.1f}",
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


_HINT: Final = (
    "<p>Each folder below this page is a package index for one GPU type, or one set of device code, and one torch:"
    " <code>pip install --index-url THIS-FOLDER/GPU/TORCH/ NAME==VERSION</code></p>"
)
_HEADER: Final = "<tr><th>package</th><th>version</th><th>torch</th><th>python</th><th>device code</th><th>MB</th></tr>"
_VERSION: Final = f'<meta name="pypi:repository-version" content="{_API}">'
_LOOKS: Final = (
    "<style>body { font-family: sans-serif; margin: 2em } th, td { padding: .2em 1em .2em 0; text-align: left }</style>"
)


# --- pages in general --------------------------------------------------------------------------


def _page(title: str, body: Iterable[str], *, head: str) -> str:
    lines = (
        "<!DOCTYPE html>",
        '<html lang="en">',
        f'<head><meta charset="utf-8">{head}<title>{escape(title)}</title></head>',
        f"<body>\n<h1>{escape(title)}</h1>",
        *body,
        "</body>",
        "</html>",
    )
    return "\n".join(lines) + "\n"


def _up(page: PurePosixPath) -> str:
    """Return what leads from a page to the wheelhouse's own folder."""
    return "../" * len(page.parent.parts)
