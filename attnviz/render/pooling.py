"""Many cells into few: pooling by the largest, and cells into palette numbers and pixels.

What lives here: arithmetic on matrices, for the terminal and for pictures alike. What does not:
colours (``colors``) or drawing. A single strong cell is never lost: a pooled cell is the one
farthest from zero, or the largest where the scale starts at 0; it is masked only if all are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from attnviz.records import Array
from attnviz.render.shapes import Matrix

N_LEVELS = 253
"""Colours of a map in a picture: an odd number, so that zero has the middle one."""

MASKED, BLANK = 253, 254
"""Palette numbers of a masked cell, and of the paper between panels."""

IntPair: TypeAlias = tuple[int, int]


def factor_for(n: int, room: int) -> int:
    """Return how many cells must become one for ``n`` of them to fit into ``room`` places.

    Examples
    --------
    >>> factor_for(6, 80), factor_for(100_000, 70)
    (1, 1429)
    """
    return max(1, math.ceil(n / max(1, room)))


def pool(
    values: Array, hidden: Array | None, factors: IntPair, *, is_diverging: bool = False
) -> tuple[Array, Array]:
    """Pool a matrix by blocks; the last block of a side may be smaller.

    Parameters
    ----------
    values : (R, C) float; what is not finite counts as hidden
    hidden : (R, C) bool or None
    factors
        Rows and columns of a block.
    is_diverging
        Take the number farthest from 0 (the positive one of two) instead of the largest.

    Returns
    -------
    (⌈R/f⌉, ⌈C/g⌉) float64, 0 where hidden, and the same shape bool: blocks hidden as a whole

    Examples
    --------
    >>> pool(np.array([[0.0, 1.0, 0.2]]), None, (1, 2))[0].tolist()
    [[1.0, 0.2]]
    """
    numbers = np.asarray(values)
    is_hidden = ~np.isfinite(numbers)
    if hidden is not None:
        is_hidden = is_hidden | np.asarray(hidden, bool)
    if factors == (1, 1):
        shown = np.where(is_hidden, 0.0, numbers) if is_hidden.any() else numbers
        return np.asarray(shown, np.float64), is_hidden
    top = _reduce(np.where(is_hidden, -np.inf, numbers), factors, np.maximum)
    if is_diverging:
        bottom = _reduce(np.where(is_hidden, np.inf, numbers), factors, np.minimum)
        top = np.where(-bottom > top, bottom, top)
    all_hidden = ~np.isfinite(top)
    return np.where(all_hidden, 0.0, top).astype(np.float64), all_hidden


def _reduce(numbers: Array, factors: IntPair, take: np.ufunc) -> Array:
    for axis, factor in enumerate(factors):
        if factor > 1:
            starts = np.arange(0, numbers.shape[axis], factor)
            numbers = take.reduceat(numbers, starts, axis=axis)
    return numbers


def shares_of(values: Array, limits: tuple[float, float]) -> Array:
    """Return where values stand between two limits, from 0 to 1; outside gets the end."""
    low, high = limits
    span = high - low if high > low else 1.0
    return np.clip((np.asarray(values, np.float64) - low) / span, 0.0, 1.0)


def levels_of(values: Array, hidden: Array, limits: tuple[float, float]) -> Array:
    """Return palette numbers, uint8: 0 to 252 along the map, ``MASKED`` where hidden."""
    levels = np.rint(shares_of(values, limits) * (N_LEVELS - 1)).astype(np.uint8)
    levels[hidden] = MASKED
    return levels


def symmetric_limits(panels: Sequence[Matrix]) -> tuple[float, float]:
    """Return −m and m for the largest finite magnitude m that is shown."""
    top = 0.0
    for panel in panels:
        values = np.asarray(panel.values, np.float64)
        shown = np.isfinite(values)
        if panel.hidden is not None:
            shown &= ~np.asarray(panel.hidden, bool)
        top = max(top, float(np.abs(values, where=shown, out=np.zeros_like(values)).max(initial=0)))
    return (-top, top) if top > 0 else (-1.0, 1.0)


def stretch(levels: Array, size_px: IntPair) -> Array:
    """Return a raster of exactly this size: each cell a whole block of pixels, none mixed.

    Sides differ by at most one pixel between cells. At least one pixel per cell is asked for.

    Examples
    --------
    >>> stretch(np.array([[1, 2]], np.uint8), (1, 5)).tolist()
    [[1, 1, 1, 2, 2]]
    """
    for axis, n_px in enumerate(size_px):
        n_cells = levels.shape[axis]
        if n_cells != n_px:
            levels = levels.take(np.arange(n_px) * n_cells // n_px, axis=axis)
    return levels
