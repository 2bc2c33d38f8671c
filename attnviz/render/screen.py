"""What the place that text goes to can show: width, colours, encoding, digits.

What lives here: the ``Screen`` record, and our own notation spelled for poorer encodings. What
does not: finding the terminal's facts (``cli.report``), or drawing (``formats``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from attnviz.render.tokens import encodable, visible

ColorSystem: TypeAlias = Literal["none", "standard", "256", "truecolor"]

_SPELLED = {
    "√": "sqrt ",
    "·": "*",
    "ᵀ": "^T",
    "×": "x",
    "→": "->",
    "…": "...",
    "−": "-",
    "∞": "inf",
    "Σ": "sum ",
    "‖": "|",
    "≤": "<=",
    "≥": ">=",
    "—": "-",
    "–": "-",
    "ⱼ": "_j",
    "ᵢ": "_i",
    "█": "#",
    "▌": "=",
    "α": "w",
    "÷": "/",
    "≈": "~",
    "²": "^2",
    "∘": "o",
}


@dataclass(frozen=True, slots=True)
class Paper:
    """How a picture is to be made.

    Parameters
    ----------
    dpi
        Pixels per inch, 30 to 1200.
    size_in
        Width and height in inches; None lets the picture find its own.
    colormap
        Name of a map out of ``colors.MAPS``; None takes the usual one of the scale.
    font
        A family that is installed, or the path of a font file.
    title
        Replaces the picture's own title; empty for none.
    color_scale
        ``linear``, ``sqrt``, ``log``, or ``auto``: see ``pooling.shading_of``.
    outlines
        Text of an SVG as outlines of its letters instead of text.
    """

    dpi: int = 150
    size_in: tuple[float, float] | None = None
    colormap: str | None = None
    font: str | None = None
    title: str | None = None
    color_scale: str = "auto"
    outlines: bool = False


@dataclass(frozen=True, slots=True)
class Screen:
    """Where text goes.

    Parameters
    ----------
    width
        Columns; None where lines may be of any length (a pipe, a file).
    colors
        What colours it can show.
    encoding
        Canonical name of the stream's encoding, ``utf-8`` for files of ours.
    precision
        Digits behind the point of a shown number.
    full_vectors
        Show vectors whole instead of by their first and last entries.
    is_compact
        Few lines: tables without boxes, a title and its formula on one line, vectors in one block.
    paper
        What a picture is drawn on.
    is_terminal
        Somebody looks at it: not even a line break of a token may act there.
    """

    width: int | None = None
    colors: ColorSystem = "none"
    encoding: str = "utf-8"
    precision: int = 4
    full_vectors: bool = False
    is_compact: bool = False
    paper: Paper = field(default_factory=Paper)
    is_terminal: bool = False

    def house(self, text: str) -> str:
        """Return our own text in characters that the encoding carries (√ becomes sqrt)."""
        if not text.isprintable():  # no text of ours is: a name must have slipped in
            text = visible(text)
        if self.encoding == "utf-8" or text.isascii():
            return text
        spelled = "".join(char if self.can(char) else _SPELLED.get(char, char) for char in text)
        return encodable(spelled, self.encoding)

    def label(self, text: str) -> str:
        """Return a stranger's text, made visible."""
        return visible(text, self.encoding)

    def can(self, char: str) -> bool:
        """True where the encoding carries this character."""
        try:
            char.encode(self.encoding)
        except UnicodeEncodeError:
            return False
        return True
