"""safetensors: the stages by name, provenance in the metadata."""

from __future__ import annotations

import numpy as np

from attnviz.render.export import arrays
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

SUFFIXES = (".safetensors",)
IS_BINARY = True


def render(document: Document, screen: Screen) -> bytes:
    """Write the arrays behind a document, contiguous as the format wants them."""
    from safetensors.numpy import save

    found, about = arrays(document)
    whole = {name: np.ascontiguousarray(values) for name, values in sorted(found.items())}
    return bytes(save(whole, metadata=about))
