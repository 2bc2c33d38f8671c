"""Many cells into few by the largest, and values to places on a colour map: linear, root or log.

For the terminal and for pictures alike. A single strong cell is never lost: a pooled cell is the
one farthest from zero, or the largest where the scale starts at 0; it is masked only if all are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from attnviz.records import Array
from attnviz.render.shapes import Heatmap, Matrix

IntPair: TypeAlias = tuple[int, int]
Spread: TypeAlias = Literal["linear", "sqrt", "log"]
MAX_LABELLED = 64
"""Up to so many tokens every one has its label, and weights a linear colour scale."""


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


@dataclass(frozen=True, slots=True)
class Shading:
    """From a value to its place between the two ends of a colour map, 0 to 1.

    Parameters
    ----------
    low, high
        Values of the two ends. ``low`` is −``high`` where 0 is in the middle.
    spread
        ``linear``; ``sqrt`` and ``log`` give small values more of the map. Around 0 both arms are
        spread alike.
    floor
        Share of the end at which ``log`` begins; all below has the colour of 0.

    Examples
    --------
    >>> Shading(0.0, 1.0, "sqrt").share(0.25), Shading(0.0, 1.0, "log", 1e-4).share(0.01)
    (array(0.5), array(0.5))
    """

    low: float
    high: float
    spread: Spread = "linear"
    floor: float = 1e-4

    def share(self, values: Any) -> Array:
        """Return places on the map; what lies outside gets the end's."""
        numbers = np.asarray(values, np.float64)
        if self.low < 0:
            signed = np.clip(numbers / self.high, -1.0, 1.0)
            return np.asarray(0.5 + 0.5 * np.sign(signed) * self._bend(np.abs(signed)))
        span = self.high - self.low if self.high > self.low else 1.0
        return np.asarray(self._bend(np.clip((numbers - self.low) / span, 0.0, 1.0)))

    def value(self, shares: Any) -> Array:
        """Return the values at places on the map: the inverse of ``share``."""
        places = np.asarray(shares, np.float64)
        if self.low < 0:
            arms = 2 * places - 1
            return np.asarray(self.high * np.sign(arms) * self._unbend(np.abs(arms)))
        return np.asarray(self.low + (self.high - self.low) * self._unbend(places))

    def ticks(self) -> list[float]:
        """Return round shares of the end, a few that a bent map tells apart."""
        parts = [0.01, 0.1, 0.25, 0.5, 1.0]
        if self.spread == "log":
            parts = [10.0**-n for n in range(8, -1, -1) if 10.0**-n > 1.5 * self.floor]
        ends = [self.high * part for part in parts]
        return [-end for end in reversed(ends)] * (self.low < 0) + [0.0] + ends

    def _bend(self, x: Array) -> Array:
        if self.spread == "sqrt":
            return np.sqrt(x)
        if self.spread == "log":
            return np.asarray(1 - np.log(np.maximum(x, self.floor)) / math.log(self.floor))
        return x

    def _unbend(self, y: Array) -> Array:
        if self.spread == "sqrt":
            return np.square(y)
        return np.asarray(self.floor ** (1 - y)) if self.spread == "log" else y


def shading_of(heatmap: Heatmap, asked: str = "auto") -> Shading:
    """Return how a heatmap's values become colours.

    ``auto`` is linear, but ``log`` for weights on more than 64 keys: on a linear scale a row that
    is spread over 2,000 keys is 2,000 times the colour of 0. The logarithm begins where the
    16 strongest keys of a query begin, so that some structure shows however wide the spread.
    """
    first = heatmap.panels[0]
    n_keys = np.asarray(first.values).shape[1] * heatmap.pooled
    is_weights = first.scale == "weights"
    spread = asked
    if asked == "auto":
        spread = "log" if is_weights and n_keys > MAX_LABELLED else "linear"
    floor = 1e-3
    if spread == "log" and is_weights:
        start = _strongest_from(heatmap.panels, min(0.25, 16 / n_keys)) / heatmap.limits[1]
        floor = float(f"{min(0.1, max(0.1 / n_keys, start)):.1g}")
    return Shading(*heatmap.limits, spread=spread, floor=floor)  # type: ignore[arg-type]


def _strongest_from(panels: Sequence[Matrix], share: float) -> float:
    """Return the value above which this share of the cells is, out of about a million of them."""
    found = []
    for panel in panels:
        step = max(1, math.isqrt(np.size(panel.values) * len(panels) // 1_000_000))
        values = np.asarray(panel.values)[::step, ::step]
        hidden = None if panel.hidden is None else np.asarray(panel.hidden)[::step, ::step]
        found.append(values[~hidden] if hidden is not None else values.ravel())
    return float(np.quantile(np.concatenate(found), 1 - share))


def scale_note(shading: Shading) -> str:
    """Say what a bent colour scale does; empty for a linear one."""
    if shading.spread == "linear":
        return ""
    if shading.spread == "sqrt":
        return "colours follow the square root"
    return f"colours follow the logarithm, from {shading.high * shading.floor:.2g} on"


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


def ordinal(n: int) -> str:
    """Return 2nd, 3rd, 4th, 11th, 22nd.

    Examples
    --------
    >>> [ordinal(n) for n in (2, 3, 11, 21)]
    ['2nd', '3rd', '11th', '21st']
    """
    last = 0 if n % 100 in (11, 12, 13) else n % 10
    return f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


def tick_text(value: float, span: float) -> str:
    """Write an end of a colour scale with the digits that its span needs."""
    digits = max(0, min(6, 2 - math.floor(math.log10(span)))) if span > 0 else 2
    text = f"{value:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−") if float(text or 0) else "0"
