"""How the documentation is built: ``make docs`` and ``make man``."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generate  # noqa: E402

from attnviz import __version__  # noqa: E402

generate.write(HERE / "_generated")

project = "attnviz"
author = "the attnviz authors"
copyright = author
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_generated"]
smartquotes = False
html_theme = "furo"
html_title = "attnviz"
html_show_sphinx = False
html_copy_source = False
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_param = False  # types here are shapes: words such as layers are no names to link
man_pages = [
    ("reference/commands", "attnviz", "a microscope for attention, in the terminal", "", 1)
]
man_show_urls = False
today = " "  # the man page bears its version, not the day it was built
