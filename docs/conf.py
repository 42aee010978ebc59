"""Sphinx's settings: the site is made of this folder and of the pages at the top of the repository, as they are.

`nox -s docs` builds it. Whatever Sphinx warns of fails: a link or an anchor that leads nowhere, a page that
`docs/index.md` does not list, an external address that is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util import logging

project = "archpatch"
extensions = ["myst_parser"]
root_doc = "docs/index"
nitpicky = True
include_patterns = ["*.md", "docs/*.md"]
# Sphinx walks all that is not excluded: environments of nox among them.
exclude_patterns = [".*"]
highlight_language = "text"
# Headings get the anchors that GitHub gives them.
myst_heading_anchors = 4
html_theme = "alabaster"
html_theme_options = {"description": "CUDA extensions for the GPUs that will run them", "page_width": "70em"}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
html_copy_source = False
html_show_copyright = False

_log = logging.getLogger(__name__)
_ITEM = re.compile(r"^- \[.+?\]\((?P<page>[^)#]+)\.md\)", re.MULTILINE)
_ADDRESS = re.compile(r"https://([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}(/[!-~]*(?<![.,;]))?")


def setup(app: Sphinx) -> None:
    """Let Sphinx take its navigation from the index page, and look at folders and external addresses."""
    addresses: set[str] = set()
    app.connect("source-read", _navigate)
    app.connect("doctree-read", lambda _, tree: _unlink_folders(tree))
    app.connect("doctree-read", lambda _, tree: addresses.update(_external(tree)))
    app.connect("build-finished", lambda *_: _list(addresses))


def _navigate(app: Sphinx, page: str, source: list[str]) -> None:
    """Put a table of contents behind the index page for each of its sections; GitHub would show it as it is written."""
    if page != app.config.root_doc:
        return
    for section in source[0].split("\n## ")[1:]:
        entries = [match["page"].replace("../", "/") for match in _ITEM.finditer(section)]
        if entries:
            caption = section.partition("\n")[0]
            source[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""])


def _unlink_folders(tree: nodes.document) -> None:
    """Leave the text alone of a link to a folder of the repository: GitHub shows folders, the site has none."""
    here = Path(tree["source"]).parent
    for link in list(tree.findall(addnodes.pending_xref)):
        # Without a slash it may be an anchor.
        if "/" in link["reftarget"] and here.joinpath(link["reftarget"]).is_dir():
            link.replace_self(link.children)


def _external(tree: nodes.document) -> Iterator[str]:
    """Yield the external addresses of a page, and warn of what is none: no network is used here."""
    for link in tree.findall(nodes.reference):
        address = link.get("refuri", "")
        if _ADDRESS.fullmatch(address):
            yield address
        elif ":" in address:
            _log.warning("%s is no https address", address, location=link)


def _list(addresses: set[str]) -> None:
    for address in sorted(addresses):
        _log.info("external address: %s", address)
