"""What a streamed text leaves behind: arrays per head, and the figures a reader asks for.

What lives here: the records and what can be derived from them. What does not: how they were
computed (``stream``) and how they are shown (``render``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from attnviz.records import About, HasAbout, HeadChoice, Span
from attnviz.rounding import by_size

Numbers: TypeAlias = npt.NDArray[Any]
Places: TypeAlias = npt.NDArray[np.int64]

FIGURES = ("output", "entropy", "links", "received", "distance", "first", "map")
"""What can be asked for; logsumexp is always there. Every one left out makes it cheaper."""

_ARRAYS = (
    "lse_HL",
    "seen_HL",
    "sink_share_HL",
    "output_HLF",
    "entropy_HL",
    "link_keys_HLN",
    "link_weights_HLN",
    "received_HS",
    "distance_HD",
    "first_HL",
    "map_mean_HRR",
    "map_max_HRR",
)


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """One layer's heads, streamed. What was not asked for is None.

    Parameters
    ----------
    layer, heads
        Which layer, and which of its query heads the first axis holds.
    n_queries, n_keys
        L and S.
    lse_HL
        Logsumexp of every row, natural logarithm; −∞ where a row sees no key.
    seen_HL
        bool; False where a row sees no key (its weights and output are 0).
    sink_share_HL
        The share of a row's softmax that went to a learned sink, where there is one.
    output_HLF
        z of every head.
    entropy_HL
        Shannon entropy of every row, in bits.
    link_keys_HLN, link_weights_HLN
        The strongest links of every query by falling weight, the earlier key first among
        equals; key −1 and weight 0 where a row has fewer keys of weight above 0.
    received_HS
        Attention every key receives from all rows together; the sum is the number of rows
        that see a key (less what went to sinks).
    distance_HD
        Sum of the weights at every distance; ``distances`` gives the distances.
    first_HL
        Every row's weight on the first key.
    map_mean_HRR, map_max_HRR
        The L × S map, pooled: query i in map row ⌊i·R/L⌋, key j in map column ⌊j·R/S⌋.
    value_norms_HS
        ‖v_j·W_O‖ of every key, where the source has W_O.
    notices
        What was not done as asked (smaller blocks for want of memory).
    """

    layer: int
    heads: tuple[int, ...]
    n_queries: int
    n_keys: int
    lse_HL: Numbers
    seen_HL: npt.NDArray[np.bool_]
    sink_share_HL: Numbers | None = None
    output_HLF: Numbers | None = None
    entropy_HL: Numbers | None = None
    link_keys_HLN: Places | None = None
    link_weights_HLN: Numbers | None = None
    received_HS: Numbers | None = None
    distance_HD: Numbers | None = None
    first_HL: Numbers | None = None
    map_mean_HRR: Numbers | None = None
    map_max_HRR: Numbers | None = None
    value_norms_HS: Numbers | None = None
    device: str = ""
    dtype: str = ""
    notices: tuple[str, ...] = ()

    @property
    def figures(self) -> tuple[str, ...]:
        """Which of ``FIGURES`` were asked for."""
        held = (
            self.output_HLF,
            self.entropy_HL,
            self.link_keys_HLN,
            self.received_HS,
            self.distance_HD,
            self.first_HL,
            self.map_mean_HRR,
        )
        return tuple(name for name, a in zip(FIGURES, held, strict=True) if a is not None)

    @property
    def distances(self) -> Places:
        """The distance of every column of ``distance_HD``: key − query, negative to the past.

        With fewer queries than keys the last query stands at the last key.
        """
        return np.arange(-(self.n_keys - 1), self.n_queries)

    @property
    def rows_without_keys(self) -> tuple[tuple[int, int], ...]:
        """(head, query) of every row that sees no key."""
        found = np.argwhere(~self.seen_HL)
        return tuple((self.heads[int(place)], int(row)) for place, row in found)


@dataclass(frozen=True, slots=True)
class Summary(HasAbout):
    """A text of any length, streamed: the figures of every asked-for layer, and their origin.

    Parameters
    ----------
    about
        Tokens, source and run; its ``checks`` have the ``parity`` of a model's own output.
    by_layer
        One ``LayerSummary`` per layer: arrays by head, and by query or key.
    ranking, asked
        Every head considered and the query it was for, where the heads were chosen so.
    """

    about: About
    by_layer: tuple[LayerSummary, ...]
    ranking: tuple[HeadChoice, ...] = ()
    asked: int | None = None

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers' numbers."""
        return tuple(one.layer for one in self.by_layer)

    @property
    def heads(self) -> tuple[int, ...]:
        """The numbers of the query heads, the same in every layer."""
        return self.by_layer[0].heads

    def to_numpy(self) -> dict[str, Numbers]:
        """Return every figure by name, stacked over layers: (layers, heads, …)."""
        names = [
            name for name in _ARRAYS if all(getattr(one, name) is not None for one in self.by_layer)
        ]
        stacked = {
            name.rsplit("_", 1)[0]: np.stack([getattr(one, name) for one in self.by_layer])
            for name in names
        }
        return {**stacked, "distances": self.by_layer[0].distances}

    def to_json(self) -> str:
        """Return figures, strongest links and pooled maps as strict JSON, ``attnviz.summary/1``."""
        from attnviz import registry

        return str(registry.load("formats", "json").dump_summary(self))


@dataclass(frozen=True, slots=True)
class Rectangle(HasAbout):
    """The exact weights of some queries on some keys, ``weights_AHRC`` (layers, heads, rows, keys).

    ``rows`` and ``columns`` are half-open ranges of tokens.
    """

    about: About
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    rows: Span
    columns: Span
    weights_AHRC: Numbers


def mean_entropy(summary: LayerSummary) -> Numbers:
    """Return the mean entropy of the rows that see a key, per head, in bits."""
    return _row_mean(_asked(summary.entropy_HL, "entropy"), summary)


def mean_distance(summary: LayerSummary) -> Numbers:
    """Return how far attention reaches on average, per head: Σ w·|key − query| / Σ w."""
    sums_HD = _asked(summary.distance_HD, "distance")
    return _share(sums_HD @ np.abs(summary.distances).astype(sums_HD.dtype), sums_HD.sum(-1))


def first_share(summary: LayerSummary) -> Numbers:
    """Return the mean weight on the first key, per head, over rows that see a key."""
    return _row_mean(_asked(summary.first_HL, "first"), summary)


def sink_share(summary: LayerSummary) -> Numbers | None:
    """Return the mean share of learned sinks, per head; None where the layer has none."""
    shares_HL = summary.sink_share_HL
    return None if shares_HL is None else np.asarray(shares_HL.mean(-1))


def distance_profile(
    summary: LayerSummary, edges: npt.ArrayLike | None = None
) -> tuple[Places, Numbers]:
    """Return the share of attention per range of distances, into the past and the future alike.

    Parameters
    ----------
    edges
        Rising distances ≥ 0 where ranges begin; powers of two where None: 0, 1, 2, 4, 8, …

    Returns
    -------
    edges : (bins,) int64
    shares_HB : (heads, bins); rows sum to 1

    Examples
    --------
    >>> zero = np.zeros((1, 3))
    >>> one = LayerSummary(0, (0,), 3, 3, zero, zero == 0, distance_HD=np.array([[1.0, 2, 0, 0, 1]]))
    >>> [part.tolist() for part in distance_profile(one)]
    [[0, 1, 2], [[0.0, 0.5, 0.5]]]
    """
    sums_HD = _asked(summary.distance_HD, "distance")
    reach = np.abs(summary.distances)
    if edges is None:
        edges = [0, *(2**power for power in range(int(reach.max()).bit_length()))]
    starts = np.asarray(edges, np.int64)
    bins = np.searchsorted(starts, reach, side="right") - 1
    shares_HB = np.zeros((len(sums_HD), len(starts)), sums_HD.dtype)
    for bin_number in range(len(starts)):
        shares_HB[:, bin_number] = sums_HD[:, bins == bin_number].sum(-1)
    return starts, _share(shares_HB, sums_HD.sum(-1)[:, None])


def share_at(summary: LayerSummary, distance: int) -> Numbers:
    """Return the share of attention at one distance (0 oneself, −1 the token before), per head."""
    sums_HD = _asked(summary.distance_HD, "distance")
    place = distance + summary.n_keys - 1
    inside = 0 <= place < sums_HD.shape[1]
    part = sums_HD[:, place] if inside else np.zeros(len(sums_HD), sums_HD.dtype)
    return _share(part, sums_HD.sum(-1))


def strongest_links(summary: LayerSummary, head: int, n: int = 10) -> list[tuple[int, int, float]]:
    """Return the n strongest links of one head: (query, key, weight), by falling weight.

    Ties go to the earlier query, then to the earlier key. Exact for n up to the number of links
    kept per query, and for any n as long as no row has more among them.
    """
    place = summary.heads.index(head)
    weights_LN = _asked(summary.link_weights_HLN, "links")[place]
    keys_LN = _asked(summary.link_keys_HLN, "links")[place]
    flat = weights_LN.ravel()
    best = by_size(flat, n)
    width = weights_LN.shape[1]
    return [
        (int(at // width), int(keys_LN.flat[at]), float(flat[at]))
        for at in best
        if keys_LN.flat[at] >= 0
    ]


def _asked(a: npt.NDArray[Any] | None, figure: str) -> npt.NDArray[Any]:
    if a is None:
        raise ValueError(f"'{figure}' was not asked for: add it to the figures of the stream")
    return a


def _row_mean(a_HL: Numbers, summary: LayerSummary) -> Numbers:
    seen_HL = summary.seen_HL
    return _share(np.where(seen_HL, a_HL, 0).sum(-1), seen_HL.sum(-1))


def _share(part: Numbers, whole: Numbers) -> Numbers:
    safe = np.where(whole == 0, 1, whole)
    return np.asarray(np.where(whole == 0, 0, part / safe))
