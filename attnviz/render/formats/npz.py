"""NumPy's .npz: the stages by name, and ``attnviz``, a JSON string of provenance."""

from __future__ import annotations

import numpy as np

from attnviz.npz import npz_bytes
from attnviz.render.export import arrays
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

SUFFIXES = (".npz",)
IS_BINARY = True


def render(document: Document, screen: Screen) -> bytes:
    """Write the arrays behind a document; read them with ``numpy.load``."""
    found, about = arrays(document)
    found = {**found, **{name: np.array(text) for name, text in about.items()}}
    return npz_bytes(dict(sorted(found.items())))
