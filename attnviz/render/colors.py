"""Colours by number, without a plotting library: colour-blind-safe maps for terminal cells.

What lives here: two maps as a few anchor colours, interpolated. What does not: matplotlib's maps
(the picture formats use those by the same names).

Sources: cividis, Nuñez, Anderton & Renslow 2018; vik, Crameri 2018.
"""

from __future__ import annotations

from typing import TypeAlias

Rgb: TypeAlias = tuple[int, int, int]

_CIVIDIS: tuple[Rgb, ...] = (
    (0, 34, 78),
    (18, 53, 112),
    (59, 73, 108),
    (87, 93, 109),
    (112, 113, 115),
    (138, 134, 120),
    (165, 156, 116),
    (195, 179, 105),
    (225, 204, 85),
    (254, 232, 56),
)
_VIK: tuple[Rgb, ...] = (
    (0, 18, 97),
    (3, 66, 129),
    (61, 138, 177),
    (157, 199, 216),
    (235, 235, 232),
    (221, 179, 152),
    (192, 122, 80),
    (147, 54, 16),
    (89, 0, 8),
)
MAPS = {"weights": _CIVIDIS, "diverging": _VIK}


def color_of(share: float, scale: str = "weights") -> Rgb:
    """Return the colour for a share between 0 and 1 (for ``diverging``, 0.5 is zero).

    Examples
    --------
    >>> color_of(0.0), color_of(1.0)
    ((0, 34, 78), (254, 232, 56))
    """
    anchors = MAPS[scale]
    place = max(0.0, min(1.0, share)) * (len(anchors) - 1)
    low = min(int(place), len(anchors) - 2)
    part = place - low
    red, green, blue = (
        round(a + (b - a) * part) for a, b in zip(anchors[low], anchors[low + 1], strict=True)
    )
    return red, green, blue


def ink_on(background: Rgb) -> Rgb:
    """Return black or white, whichever stands out more (WCAG 2 relative luminance)."""
    linear = [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in background]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)
