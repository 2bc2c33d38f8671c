"""Colours by number, without a plotting library: the same maps for terminal cells and pictures.

Colour-blind-safe maps as anchor colours, interpolated, and the colour of a masked cell. ``ink`` and
``tide`` are the light ramps of the page: white paper to dark ink, and blue through paper to brown.

Sources of the others: cividis, Nuñez, Anderton & Renslow 2018; viridis and magma, Smith & van der Walt 2015;
vik, Crameri 2018; Blues, RdBu and PuOr, ColorBrewer, Brewer 2003. All of them can be read with
the common kinds of colour blindness.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

from attnviz.errors import UsageError
from attnviz.registry import no_such_choice

Rgb: TypeAlias = tuple[int, int, int]

_ANCHORS = {
    "ink": "fafaf7 d6e6e8 96c1cd 4d8ca8 1c577a 082644",
    "tide": "14427a 548dbe b6d0e2 fafaf7 f0cdb0 cf8046 843e10",
    "cividis": "00224e 002e6a 1a386f 32436d 434e6c 52596d 61656f 6f7073 7c7b78 8b8778 9b9376 "
    "aba072 bbad6c ccba64 ddc958 efd748 fee838",
    "viridis": "440154 48186a 472d7b 424086 3b528b 33638d 2c728e 26818e 21908c 1f9f88 28ae80 "
    "3ebc74 5dc963 82d34c abdc32 d5e21a fde725",
    "magma": "000004 0a0822 1d1146 36106a 50127c 691c81 822681 9c2e7f b63779 cf4170 e65163 "
    "f5695c fb8761 fea571 fec387 fde0a2 fcfdbf",
    "blues": "f7fbff eaf3fb deebf7 d2e3f3 c6dbef b2d2e8 9ecae1 84bcdc 6baed6 56a0ce 4292c6 "
    "3282be 2171b5 1461a9 08519c 084084 08306b",
    "grays": "ffffff efefef dfdfdf cfcfcf bfbfbf afafaf 9f9f9f 8f8f8f 808080 707070 606060 "
    "505050 404040 303030 202020 101010 000000",
    "vik": "001261 022b71 034481 0c5e92 2f7ca6 609dbc 92bdd2 c5dbe5 ece5e1 e9cbb9 dcab8f "
    "cf8e68 c37243 b3531f 932e06 741506 590008",
    "rdbu": "053061 175290 2a71b2 3f8dc0 6bacd0 9ac9e0 c1ddec dfecf3 f7f7f6 fbe6d9 fbcdb6 "
    "f5ac8b e58267 d25749 bb2a34 960f26 67001f",
    "puor": "2d004b 451871 5f3a91 7b6aa8 998fbf b7b1d5 cfcee5 e4e5f0 f7f6f6 fbe9ce fed6a1 "
    "fdbd6d ee9d3c da7d12 be620a a04d07 7f3b08",
}
_USUAL = {"weights": "ink", "diverging": "tide", "plain": "ink"}
DIVERGING = ("tide", "vik", "rdbu", "puor")
MAPS = tuple(_ANCHORS)


@cache
def anchors_of(name: str) -> tuple[Rgb, ...]:
    """Return the anchor colours of a map at equal steps, or of the usual map of a scale.

    Raises
    ------
    UsageError
        No such map; all of them are listed.
    """
    chosen = _USUAL.get(name, name)
    if chosen not in _ANCHORS:
        raise UsageError(no_such_choice("--cmap", name, MAPS))
    return tuple(
        (int(code[0:2], 16), int(code[2:4], 16), int(code[4:6], 16))
        for code in _ANCHORS[chosen].split()
    )


def color_of(share: float, scale: str = "weights") -> Rgb:
    """Return the colour for a share between 0 and 1 (on a diverging map, 0.5 is zero).

    Parameters
    ----------
    share
        Position on the map; what lies outside gets the end's colour.
    scale
        ``weights``, ``diverging``, or the name of a map out of ``MAPS``.

    Examples
    --------
    >>> color_of(0.0), color_of(1.0)
    ((250, 250, 247), (8, 38, 68))
    """
    anchors = anchors_of(scale)
    place = max(0.0, min(1.0, share)) * (len(anchors) - 1)
    low = min(int(place), len(anchors) - 2)
    part = place - low
    red, green, blue = (
        round(a + (b - a) * part) for a, b in zip(anchors[low], anchors[low + 1], strict=True)
    )
    return red, green, blue


@cache
def palette(scale: str, n: int = 1024) -> tuple[Rgb, ...]:
    """Return ``n`` colours of a map at equal steps from 0 to 1, both ends included."""
    return tuple(color_of(i / (n - 1), scale) for i in range(n))


def masked_color(scale: str) -> Rgb:
    """Return the colour of a cell that a query may not look at: one that its map does not have."""
    name = _USUAL.get(scale, scale)
    if name in ("ink", "tide"):
        return (207, 203, 194)
    if name in DIVERGING:
        return (122, 134, 122) if name == "puor" else (128, 128, 132)
    return (250, 206, 206) if name in ("blues", "grays") else (226, 226, 230)


def ink_on(background: Rgb) -> Rgb:
    """Return black or white, whichever stands out more (WCAG 2 relative luminance)."""
    linear = [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in background]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)
