"""NumPy's .npz: the stages by name, and ``attnviz``, a JSON string of provenance.

The bytes depend on the numbers alone: the zip's dates are fixed.
"""

from __future__ import annotations

import io
import zipfile

import numpy as np

from attnviz.render.export import arrays
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

SUFFIXES = (".npz",)
IS_BINARY = True


def render(document: Document, screen: Screen) -> bytes:
    """Write the arrays behind a document; read them with ``numpy.load``."""
    found, about = arrays(document)
    found = {**found, **{name: np.array(text) for name, text in about.items()}}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(found):
            member = io.BytesIO()
            np.lib.format.write_array(member, found[name], allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            archive.writestr(info, member.getvalue())
    return out.getvalue()
