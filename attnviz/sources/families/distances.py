"""Scores that grow or shrink with distance: one number per head and bucket of distances (T5, MPNet).

Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attnviz.sources.families.parts import Floats, Whole


def bucket(distance: Whole, n_buckets: int, reach: int) -> Whole:
    """Return the bucket of a distance key − query, in both directions.

    Half of the buckets are for keys behind the query; of each half the first half counts singly,
    the rest grows by the logarithm up to ``reach``, and everything beyond is in the last.

    Examples
    --------
    >>> bucket(np.array([-2, 0, 1, 500]), 8, 16).tolist()
    [2, 0, 5, 7]
    """
    half = n_buckets // 2
    single = half // 2
    away = np.abs(distance)
    with np.errstate(divide="ignore"):
        # in float32, as the library: at a bucket's edge the rounding decides
        steps = np.log(away.astype(np.float32) / np.float32(single)) / np.float32(
            math.log(reach / single)
        )
    far = single + np.where(away > 0, steps * np.float32(half - single), 0).astype(np.int64)
    found = np.where(away < single, away, np.minimum(far, half - 1))
    return np.where(distance > 0, found + half, found)


@dataclass(frozen=True, slots=True)
class DistanceBias:
    """A layer's added scores as a rule: ``bias(first_row, end_row)`` → (H, rows, S).

    Parameters
    ----------
    table_BH
        (buckets, heads).
    n_keys
        S, of the text.
    """

    table_BH: Floats
    n_buckets: int
    reach: int
    n_keys: int

    def __call__(self, first: int, end: int) -> Floats:
        distance = np.arange(self.n_keys)[None] - np.arange(first, end)[:, None]
        found = self.table_BH[bucket(distance, self.n_buckets, self.reach)]
        return np.ascontiguousarray(found.transpose(2, 0, 1))
