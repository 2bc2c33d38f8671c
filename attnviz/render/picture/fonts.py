"""Which font draws which label, and what stands in for a character that no font has.

What lives here: coverage of characters by installed fonts, widths of text. What does not:
drawing. Right-to-left text is handed on in logical order: matplotlib ≥ 3.11 lays it out.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnviz.errors import UsageError
from attnviz.registry import no_such_choice
from attnviz.render.tokens import fit, visible

if TYPE_CHECKING:
    from matplotlib.font_manager import FontProperties

BASE_FAMILY = "DejaVu Sans"
_LAST_RESORT = "last resort"
_MAX_FONTS = 600


class FontBook:
    """The fonts of one picture, and the characters that none of them has.

    A label is drawn in the base font where that has all of its characters, otherwise in the
    first installed font that has, otherwise in the base font with stand-ins (``U+732B``).

    Parameters
    ----------
    font
        Family name or path of a font file for the whole picture; None is DejaVu Sans, which
        comes with matplotlib: the same picture on every machine.

    Raises
    ------
    UsageError
        No such family or file, or a file that is no font.
    """

    def __init__(self, font: str | None = None) -> None:
        self._base = _find_base(font)
        self._chosen: dict[str, tuple[str, Any]] = {}
        self.missing: dict[str, None] = {}

    def prepare(self, label: str, max_width: int | None = None) -> tuple[str, Any]:
        """Return the text to draw for a stranger's label, and the path of its font.

        Parameters
        ----------
        label
            Raw; it is made visible here, and cut to ``max_width`` columns with an ellipsis.
        """
        shown = visible(label, "utf-16")  # few fonts have the pictures of controls that utf-8 gets
        if shown != shown.strip(" ") or not shown:
            shown = shown.replace(" ", "␣") if shown else "∅"
        if max_width is not None:
            shown = fit(shown, max_width)
        if shown not in self._chosen:
            self._chosen[shown] = self._choose(shown)
        text, path = self._chosen[shown]
        return (text if max_width is None else fit(text, max_width)), path

    def _choose(self, text: str) -> tuple[str, Any]:
        lacking = [c for c in dict.fromkeys(text) if not has_glyph(self._base, c)]
        if not lacking:
            return text, self._base
        for path in _other_fonts():
            if all(has_glyph(path, c) for c in lacking) and all(has_glyph(path, c) for c in text):
                return text, path
        nowhere = [c for c in lacking if not any(has_glyph(p, c) for p in _other_fonts())]
        absent = nowhere or lacking
        self.missing.update(dict.fromkeys(absent))
        whole = "".join(stand_in(c) if c in absent else c for c in text)
        return (whole, self._base) if whole == text else self._choose(whole)

    def properties(self, path: Any, size_pt: float) -> FontProperties:
        """Return matplotlib's record of a font file at a size."""
        from matplotlib.font_manager import FontProperties

        return FontProperties(fname=path, size=size_pt)

    def base(self, size_pt: float) -> FontProperties:
        """Return the base font at a size, for our own words."""
        return self.properties(self._base, size_pt)

    def width_in(self, text: str, path: Any, size_pt: float) -> float:
        """Return the width of a prepared text in inches."""
        return _width_em(text, path) * size_pt / 72

    def own_width_in(self, text: str, size_pt: float) -> float:
        """Return the width of our own words in the base font in inches."""
        return self.width_in(text, self._base, size_pt)

    def notice(self) -> str | None:
        """Return one line that lists the characters no installed font has, or None."""
        if not self.missing:
            return None
        shown = list(self.missing)[:16]
        more = f" and {len(self.missing) - 16} more" if len(self.missing) > 16 else ""
        listed = ", ".join(f"{char} as {stand_in(char)}" for char in shown)
        return f"no installed font has these characters: {listed}{more}; --font FILE names one that has"


def stand_in(char: str) -> str:
    """Return what is drawn for a character that no font has.

    Examples
    --------
    >>> stand_in("猫"), stand_in("🧸")
    ('U+732B', 'U+1F9F8')
    """
    return f"U+{ord(char):04X}"


@lru_cache(maxsize=16384)
def has_glyph(path: Any, char: str) -> bool:
    """True where a font file has its own glyph for a character."""
    from matplotlib.font_manager import get_font
    from matplotlib.ft2font import FaceFlags

    try:
        font = get_font(path)
    except (OSError, RuntimeError, ValueError):
        return False
    is_outline = FaceFlags.SCALABLE in font.face_flags  # emoji fonts of bitmaps cannot be drawn
    return is_outline and bool(font.get_char_index(ord(char)))


@lru_cache(maxsize=4096)
def _width_em(text: str, path: Any) -> float:
    from matplotlib.font_manager import get_font

    font = get_font(path)
    font.set_size(64, 72)
    font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64 / 64


def _find_base(font: str | None) -> Any:
    from matplotlib.font_manager import FontPath, fontManager, get_font

    wanted = (font or BASE_FAMILY).casefold()
    if font is not None and (Path(font).suffix or "/" in font):
        try:
            get_font(font)
        except (OSError, RuntimeError, ValueError) as fault:
            raise UsageError(f"--font {font} is no font file that can be read: {fault}") from fault
        return FontPath(font, 0)
    regular = [
        e for e in fontManager.ttflist
        if e.name.casefold() == wanted and e.style == "normal" and e.size == "scalable"
    ]  # fmt: skip
    if not regular:
        names = tuple(sorted({e.name for e in fontManager.ttflist}))
        raise UsageError(no_such_choice("--font", str(font), names))
    best = min(regular, key=_distance_from_regular)
    return FontPath(best.fname, best.index)


def _distance_from_regular(entry: Any) -> tuple[Any, ...]:
    weights = {"normal": 400, "regular": 400, "book": 400, "medium": 500, "bold": 700}
    weight = entry.weight if isinstance(entry.weight, int) else weights.get(entry.weight, 500)
    is_own = "mpl-data" in entry.fname
    return abs(weight - 400), entry.stretch != "normal", not is_own, entry.fname, entry.index


@lru_cache(maxsize=1)
def _other_fonts() -> tuple[Any, ...]:
    """Return installed fonts to look through: the known ones, then those installed since.

    The list that matplotlib keeps does not notice fonts that were installed later.
    """
    from matplotlib.font_manager import FontPath, findSystemFonts, fontManager

    entries = [
        e for e in fontManager.ttflist
        if e.size == "scalable" and e.style == "normal" and _LAST_RESORT not in e.name.casefold()
    ]  # fmt: skip
    entries.sort(key=lambda e: ("sans" not in e.name.casefold(), *_distance_from_regular(e)))
    known = {e.fname for e in fontManager.ttflist}
    later = [path for path in findSystemFonts() if path not in known]
    later.sort(key=lambda p: (not p.rsplit(".", 1)[0].endswith("Regular"), "Sans" not in p, p))
    paths = [FontPath(e.fname, e.index) for e in entries] + [FontPath(p, 0) for p in later]
    return tuple(paths[:_MAX_FONTS])
