"""A document as one picture, and its bytes as PNG, SVG or PDF.

What lives here: which shapes are drawn and how they are stacked, provenance, saving without dates
and chance. What does not: how a shape is drawn (``cellplot``, ``lineplot``).

The user's matplotlib settings are not looked at: the same command gives the same bytes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnviz.errors import UsageError
from attnviz.render.export import provenance
from attnviz.render.picture.cellplot import HeatmapBlock
from attnviz.render.picture.fonts import FontBook
from attnviz.render.picture.sketch import Sketch
from attnviz.render.pooling import symmetric_limits
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document, Heatmap, Links, Matrix, Series
from attnviz.render.tokens import visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_PX = 16_000_000
"""Largest picture, in pixels: above it cells are pooled."""
_LINKS_PER_ROW = 4
_HASH_SALT = "attnviz"


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure, what had to be done otherwise than asked, and where its numbers are from."""

    figure: Figure
    notices: tuple[str, ...]
    about: dict[str, str]


def draw(document: Document, screen: Screen) -> Picture:
    """Draw every shape of a document that can be drawn, one above the other.

    Parameters
    ----------
    document
        Heatmap, Links, Series and Matrix shapes are drawn; text and tables are not.
    screen
        ``screen.paper`` says resolution, size, colours, font and title.

    Returns
    -------
    Picture
        At most 16 million pixels.

    Raises
    ------
    UsageError
        Nothing to draw; a size, resolution, colour map or font that cannot be.
    """
    paper = screen.paper
    if not 30 <= paper.dpi <= 1200:
        raise UsageError(f"--dpi {paper.dpi} is out of range: 30 to 1200")
    with _settings():
        sketch = Sketch(paper.dpi, FontBook(paper.font))
        blocks = _blocks(document, screen)
        size = None
        if paper.size_in is not None:
            size = (round(paper.size_in[0] * paper.dpi), round(paper.size_in[1] * paper.dpi))
            _check_size(size, paper.size_in, paper.dpi)
        budget = MAX_PX // len(blocks)
        share = None if size is None else (size[0], size[1] // len(blocks))
        layouts = [b.measure(sketch, max_px=budget, size=share) for b in blocks]
        sketch.zoom = 1.0 if size else min(2.0, max(1.0, _longest_in(layouts, sketch) / 10))
        if sketch.zoom > 1:
            layouts = [b.measure(sketch, max_px=budget) for b in blocks]
        if size is None and len(blocks) > 1:
            left = max(_left_of(layout) for layout in layouts)
            layouts = [b.measure(sketch, max_px=budget, left=left) for b in blocks]
        width = max(layout.size[0] for layout in layouts)
        height = sum(layout.size[1] for layout in layouts)
        notices: list[str] = []
        if size is not None:
            if width > size[0] + 2 or height > size[1] + 2:
                raise UsageError(
                    f"--size {paper.size_in[0]:g}x{paper.size_in[1]:g} is too small for its labels: "  # type: ignore[index]
                    f"at least {width / paper.dpi:.1f}x{height / paper.dpi:.1f} inches"
                )
            width, height = size
        elif width * height > MAX_PX * 1.01:
            return draw(document, _coarser(screen, (MAX_PX / (width * height)) ** 0.5))
        sketch.open(width, height)
        top = 0
        for block, layout in zip(blocks, layouts, strict=True):
            block.draw(sketch, layout, 0 if size is None else (width - layout.size[0]) // 2, top)
            top += layout.size[1]
    missing = sketch.book.notice()
    if missing:
        notices.append(missing)
    return Picture(sketch.figure, tuple(notices), about_picture(document))


def _coarser(screen: Screen, ratio: float) -> Screen:
    from dataclasses import replace

    dpi = max(30, int(screen.paper.dpi * ratio * 0.98))
    if dpi >= screen.paper.dpi:
        raise UsageError("too much for one picture: choose one stage, or fewer heads")
    return replace(screen, paper=replace(screen.paper, dpi=dpi))


def _check_size(size: tuple[int, int], size_in: tuple[float, float], dpi: int) -> None:
    if size[0] < 1 or size[1] < 1 or size[0] * size[1] > MAX_PX:
        raise UsageError(
            f"--size {size_in[0]:g}x{size_in[1]:g} at {dpi} dpi is {size[0] * size[1] / 1e6:.1f} million "
            f"pixels: at most {MAX_PX / 1e6:g}; give inches, for example 6x4"
        )


def _longest_in(layouts: list[Any], sketch: Sketch) -> float:
    """Return the longest side of any block in inches."""
    return float(max(max(layout.size) for layout in layouts)) / sketch.dpi


def _left_of(layout: Any) -> int:
    return int(layout.left if hasattr(layout, "left") else layout.area[0])


def _blocks(document: Document, screen: Screen) -> list[Any]:
    found = list(_find_blocks(document, screen))
    if not found:
        raise UsageError(
            "this result has nothing to draw: choose a text format (.md, .json, .csv), "
            "or attnviz heatmap"
        )
    return found


def _find_blocks(document: Document, screen: Screen) -> Iterator[Any]:
    paper = screen.paper
    asked = paper.title
    waiting: list[Links] = []
    for shape in (*document.shapes, None):
        if isinstance(shape, Links):
            waiting.append(shape)
            if len(waiting) < _LINKS_PER_ROW:
                continue
        if waiting and (not isinstance(shape, Links) or len(waiting) == _LINKS_PER_ROW):
            own = waiting[0].title if len(waiting) == 1 else document.title
            from attnviz.render.picture.lineplot import LinksBlock

            yield LinksBlock(waiting, own if asked is None else asked)
            waiting, asked = [], "" if asked is not None else None
        if isinstance(shape, Matrix) and shape.unit != "percent":
            shape = heatmap_of(shape)
        if isinstance(shape, Heatmap):
            yield HeatmapBlock(shape, paper.colormap, shape.title if asked is None else asked)
        elif isinstance(shape, Series):
            from attnviz.render.picture.lineplot import SeriesBlock

            yield SeriesBlock(shape, shape.title if asked is None else asked)
        else:
            continue
        asked = "" if asked is not None else None


def heatmap_of(matrix: Matrix) -> Heatmap:
    """Return one matrix as a heatmap: weights from 0 to 1, everything else centred on 0."""
    if matrix.scale == "weights":
        return Heatmap(matrix.title, (matrix,), (0.0, 1.0))
    return Heatmap(
        matrix.title, (matrix,), symmetric_limits([matrix]), value_name="value", scale="diverging"
    )


def to_png(picture: Picture) -> bytes:
    """Return PNG bytes with provenance as text chunks."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    canvas: Any = picture.figure.canvas
    with _settings():
        canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    info = PngInfo()
    for key, text in picture.about.items():
        info.add_text(key, text)
    out = io.BytesIO()
    dpi = picture.figure.dpi
    level = 3  # half the time of 6 for a fifth more bytes
    Image.fromarray(np.ascontiguousarray(pixels)).save(
        out, "PNG", pnginfo=info, dpi=(dpi, dpi), compress_level=level
    )
    return out.getvalue()


def to_svg(picture: Picture) -> bytes:
    """Return SVG bytes: one image, text as outlines, no date."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.BytesIO()
    about = picture.about
    canvas: Any = FigureCanvasSVG(picture.figure)
    with _settings():
        canvas.print_svg(
            out,
            metadata={
                "Title": about["Title"], "Creator": about["Software"], "Date": None,
                "Description": about["Description"],
            },
        )  # fmt: skip
    return out.getvalue()


def to_pdf(picture: Picture) -> bytes:
    """Return PDF bytes: one image, fonts embedded, no date."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    out = io.BytesIO()
    about = picture.about
    canvas: Any = FigureCanvasPdf(picture.figure)
    with _settings():
        canvas.print_pdf(
            out,
            metadata={
                "Title": about["Title"], "Creator": about["Software"], "Producer": about["Software"],
                "Subject": about["Description"], "CreationDate": None,
            },
        )  # fmt: skip
    return out.getvalue()


def about_picture(document: Document) -> dict[str, str]:
    """Return what goes into a picture's metadata: ASCII, without user, host or path."""
    facts = provenance(document)
    title = visible(document.title or "attnviz").encode("ascii", "backslashreplace").decode()
    return {
        "Title": title,
        "Software": f"attnviz {facts['version']}",
        "Description": json.dumps(facts, ensure_ascii=True, sort_keys=True),
    }


def _settings() -> AbstractContextManager[None]:
    """Return matplotlib's own defaults and ours, whatever the user's settings file says."""
    import matplotlib

    plain = {k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")}
    return matplotlib.rc_context(
        {**plain, "svg.hashsalt": _HASH_SALT, "svg.fonttype": "path", "pdf.fonttype": 42,
         "text.usetex": False}
    )  # fmt: skip
