"""An image that is drawn as it is: one number of a palette per pixel, never resampled or mixed.

What lives here: a matplotlib artist; import it only where matplotlib is already wanted. What does
not: which pixels there are (``pooling``).

matplotlib's own image turns uint8 into masked float arrays and resamples them even at the same
size: half a second for four million pixels, against a hundredth here.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.transforms import Affine2D

from attnviz.records import Array


class Raster(AxesImage):
    """Palette numbers on the whole of their axes.

    Parameters
    ----------
    levels : (height, width) uint8, as many as the axes have pixels
    palette : (256, 3) uint8
    extent
        Left, right, bottom, top in the axes' units.
    """

    def __init__(
        self,
        axes: Axes,
        levels: Array,
        palette: Array,
        extent: tuple[float, float, float, float],
    ) -> None:
        super().__init__(axes, extent=extent, interpolation="none", origin="upper")
        self.levels = levels
        self.palette = palette
        self._rgba = _packed(levels, palette)
        self._A = self._rgba

    def make_image(  # type: ignore[override]
        self, renderer: Any, magnification: float = 1.0, unsampled: bool = False
    ) -> tuple[Array, float, float, Affine2D | None]:
        """Return the pixels, and where they go; a vector format gets them as they are."""
        height, width = self._rgba.shape[:2]
        box = self.axes.bbox
        flipped = self._rgba[::-1]
        if unsampled:
            stretch = Affine2D().scale(box.width / width, box.height / height)
            return flipped, box.x0, box.y0, stretch
        return flipped, round(box.x0), round(box.y0), None

    def draw(self, renderer: Any) -> None:
        """Draw it; an SVG gets a palette PNG, a third of the size of four bytes per pixel."""
        writer = getattr(renderer, "writer", None)
        if writer is None:
            super().draw(renderer)
            return
        data = base64.b64encode(palette_png(self.levels, self.palette)).decode()
        box = self.axes.bbox
        writer.element(
            "image",
            attrib={"xlink:href": f"data:image/png;base64,{data}"},
            x=f"{box.x0:.6f}",
            y=f"{renderer.height - box.y1:.6f}",
            width=f"{box.width:.6f}",
            height=f"{box.height:.6f}",
            preserveAspectRatio="none",
            style="image-rendering:crisp-edges;image-rendering:pixelated",
        )


def palette_png(levels: Array, palette: Array) -> bytes:
    """Return a PNG of one byte per pixel before compression."""
    from PIL import Image

    out = io.BytesIO()
    image = Image.fromarray(levels, mode="P")
    image.putpalette(np.ascontiguousarray(palette).tobytes())
    image.save(out, "PNG", compress_level=6)
    return out.getvalue()


def _packed(levels: Array, palette: Array) -> Array:
    """Return (height, width, 4) uint8 by one look-up of four bytes per pixel."""
    table = np.full((len(palette), 4), 255, np.uint8)
    table[:, :3] = palette
    packed = np.ascontiguousarray(table).view(np.uint32)[:, 0][levels]
    return packed.view(np.uint8).reshape(*levels.shape, 4)
