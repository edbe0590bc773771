"""Configuration of the documentation site: ``make site`` builds it into build/site, without a network."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

import nnr_codec  # noqa: E402
from tools import cli_page  # noqa: E402  # needs the path

project = "nnr_codec"
author = "the contributors of nnr_codec"
copyright = f"2026, {author}"
version = release = nnr_codec.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_static"]
html_theme = "furo"
html_title = f"nnr_codec {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
templates_path: list[str] = []
pygments_style = "friendly"
pygments_dark_style = "native"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings name the types
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

#: Pages whose text is a file outside docs; the files under these names only refer to it.
OUTSIDE = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "examples": "examples/README.md",
    "reference/vectors": "bitstream_vectors/README.md",
}
#: Relative links of Markdown.
LINK = re.compile(r"(?<!!)\[([^]\n]*)\]\((?!\w+:|#|/)([^)#\s]+)(#[^)\s]*)?\)")


def read_source(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill the generated pages, and point links to files outside docs to their pages."""
    path = DOCS / f"{name}.md"
    if name in OUTSIDE:
        path = ROOT / OUTSIDE[name]
        source[0] = path.read_text("utf-8")
    elif name == "reference/cli":
        source[0] = cli_page.page()
    pages = {ROOT / file: f"/{page}.md" for page, file in OUTSIDE.items()} | {ROOT / "README.md": "/index.md"}

    def link(match: re.Match[str]) -> str:
        text, target, anchor = match[1], Path(os.path.normpath(path.parent / match[2])), match[3] or ""
        if target in pages:
            return f"[{text}]({pages[target]}{anchor})"
        if target.is_relative_to(DOCS):
            return f"[{text}](/{target.relative_to(DOCS).as_posix()}{anchor})"
        return text if text.startswith("`") else f"`{text}`"

    source[0] = LINK.sub(link, source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", read_source)
