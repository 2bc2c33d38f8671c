"""PNG, SVG and PDF pictures of every drawable shape of a document, with provenance inside."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attnviz.records import Trace
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document


@dataclass(frozen=True, slots=True)
class PictureFormat:
    """One ending of pictures, as the registry hands it out."""

    kind: str
    IS_BINARY: bool = True
    TELLS_NOTICES: bool = True

    @property
    def SUFFIXES(self) -> tuple[str, ...]:
        return (f".{self.kind}",)

    def render(
        self,
        document: Document,
        screen: Screen | None = None,
        say: Callable[[str], None] | None = None,
    ) -> bytes:
        """Draw a document; ``say`` is told what could not be drawn as it is (a missing glyph)."""
        with _gc_paused():
            from attnviz.render.picture.figure import render

            return render(document, screen or Screen(), self.kind, say)

    def plot(self, trace: Trace, ax: Any, stage: str) -> Any:
        """Draw a stage of a trace into axes: ``records`` may not import what is drawn with."""
        from attnviz.render.picture.figure import plot

        return plot(trace, ax, stage)


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Leave the search for garbage until later: matplotlib's import and a figure make 150,000 objects.

    Going over them again and again takes a tenth of the time of a small picture.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


png, svg, pdf = PictureFormat("png"), PictureFormat("svg"), PictureFormat("pdf")
