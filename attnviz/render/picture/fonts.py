"""Which installed fonts draw a picture's labels, and what stands in for a character that none has.

Right-to-left text is handed on in logical order: matplotlib ≥ 3.11 lays it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from matplotlib import font_manager
from matplotlib.font_manager import (
    FontEntry,
    FontProperties,
    findSystemFonts,
    fontManager,
    get_font,
    ttfFontProperty,
)
from matplotlib.ft2font import FaceFlags

from attnviz.errors import UsageError
from attnviz.registry import no_such_choice
from attnviz.render.tokens import fit, visible

BASE_FAMILY = "DejaVu Sans"
_MAX_FONTS = 600
# a family without a regular weight is drawn with what it has: that is no news to a user
vars(font_manager)["_log"].addFilter(lambda record: "font weight" not in str(record.msg))


class FontBook:
    """The fonts of one picture: a base, then those that have what it lacks.

    matplotlib takes each character from the first family of a list that has it. The list is found
    here, because a family that is not installed, or a character that no font has, makes matplotlib
    warn and draw a box.

    Parameters
    ----------
    texts
        All labels and titles of the picture.
    font
        Family name or path of a font file for the whole picture; None is DejaVu Sans, which
        comes with matplotlib: the same picture on every machine.

    Raises
    ------
    UsageError
        No such family or file, or a file that is no font.
    """

    def __init__(self, texts: Iterable[str], font: str | None = None) -> None:
        base = _find_base(font)
        self.style = {"font.weight": base.weight, "font.style": base.style}
        self.families = [base.name]
        self.missing: list[str] = []
        style: Any = base.style
        here = fontManager.findfont(
            FontProperties(family=base.name, weight=base.weight, style=style)
        )
        for char in dict.fromkeys("".join(map(_shown, texts))):
            if has_glyph(here, char) or any(has_glyph(_path(f), char) for f in self.families[1:]):
                continue
            family = next((f for f in _other_fonts() if has_glyph(_path(f), char)), None)
            if family is None:
                self.missing.append(char)
            else:
                self.families.append(family)

    def text(self, label: str, max_width: int | None = None) -> str:
        """Return what is drawn for a label: visible, with stand-ins, cut to ``max_width`` columns."""
        shown = _shown(label)
        if any(char in shown for char in self.missing):
            shown = "".join(stand_in(c) if c in self.missing else c for c in shown)
        return shown if max_width is None else fit(shown, max_width)

    @property
    def of_labels(self) -> dict[str, Any]:
        """Properties of a text that may hold a stranger's words: never read as mathematics."""
        families = {"fontfamily": self.families} if len(self.families) > 1 else {}
        return {"parse_math": False, **families}

    def notice(self) -> str | None:
        """Return one line that lists the characters no installed font has, or None."""
        if not self.missing:
            return None
        shown = self.missing[:16]
        more = f" and {len(self.missing) - 16} more" if len(self.missing) > 16 else ""
        listed = ", ".join(f"{char} as {stand_in(char)}" for char in shown)
        return f"no installed font has these characters: {listed}{more}; --font FILE takes one that has"


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
    """True where a font file has its own outline of a character."""
    try:
        font = get_font(path)
    except (OSError, RuntimeError, ValueError):
        return False
    is_outline = FaceFlags.SCALABLE in font.face_flags  # emoji fonts of bitmaps cannot be drawn
    return is_outline and bool(font.get_char_index(ord(char)))


def _shown(label: str) -> str:
    shown = visible(label, "utf-16")  # few fonts have the pictures of controls that utf-8 gets
    if not shown:
        return "∅"
    return shown.replace(" ", "␣") if shown != shown.strip(" ") else shown


def _find_base(font: str | None) -> FontEntry:
    wanted = (font or BASE_FAMILY).casefold()
    if font is not None and (Path(font).suffix or "/" in font):
        try:
            entry = ttfFontProperty(get_font(font))
        except (OSError, RuntimeError, ValueError) as fault:
            raise UsageError(f"--font {font}: not a font file that can be read: {fault}") from fault
        _add(font)
        return entry
    regular = [e for e in _entries() if e.name.casefold() == wanted]
    if not regular:
        names = tuple(sorted({e.name for e in fontManager.ttflist}))
        raise UsageError(no_such_choice("--font", str(font), names))
    return min(regular, key=_distance_from_regular)


def _entries() -> Iterator[FontEntry]:
    return (e for e in fontManager.ttflist if e.size == "scalable" and e.style == "normal")


def _distance_from_regular(entry: FontEntry) -> tuple[Any, ...]:
    weights = {"normal": 400, "regular": 400, "book": 400, "medium": 500, "bold": 700}
    weight = entry.weight if isinstance(entry.weight, int) else weights.get(entry.weight, 500)
    return abs(weight - 400), entry.stretch != "normal", entry.fname


def _add(path: str) -> None:
    """Tell matplotlib of a font file that its own list does not know."""
    if path not in {e.fname for e in fontManager.ttflist}:
        fontManager.addfont(path)


@lru_cache(maxsize=_MAX_FONTS)
def _path(family: str) -> Any:
    """Return the file that matplotlib takes for a family."""
    return fontManager.findfont(FontProperties(family=family))


@lru_cache(maxsize=1)
def _other_fonts() -> tuple[str, ...]:
    """Return the families to look through, sans serif first, those installed since included.

    The list that matplotlib keeps does not notice fonts that were installed later.
    """
    for path in findSystemFonts():
        try:
            _add(path)
        except (OSError, RuntimeError, ValueError):
            continue
    entries = sorted(
        _entries(), key=lambda e: ("sans" not in e.name.casefold(), *_distance_from_regular(e))
    )
    families = dict.fromkeys(e.name for e in entries if "last resort" not in e.name.casefold())
    return tuple(families)[:_MAX_FONTS]
