"""Which layers and heads a request means; ``auto`` is the head that tells most about a token.

What lives here: reading the request, and running a source over all layers to rank its heads. What
does not: what makes a head telling (``core.choose``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from attnviz.errors import ResourceError
from attnviz.records import HeadChoice, LayerHeads
from attnviz.runs.limits import check_dense_size, fitting_cells
from attnviz.runs.opening import Opened
from attnviz.runs.pool_words import group_words, join_tokens, pool
from attnviz.runs.request import choose_heads, choose_layers

AUTO_MAX_CELLS = 1 << 28
"""Cells of all heads together that ``auto`` looks at before it asks for a head's number."""

_AT_ONCE_CELLS = 1 << 22
_KEPT_NUMBERS = 1 << 25


@dataclass(frozen=True, slots=True)
class Chosen:
    """The layers and heads to show.

    Parameters
    ----------
    ranking
        Every head considered, the most telling first, where the choice was ours.
    kept
        Layers that were run on the way, by number.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    ranking: tuple[HeadChoice, ...] = ()
    kept: Mapping[int, LayerHeads] = field(default_factory=dict)


def choose(
    opened: Opened,
    *,
    layer: str | int | None,
    head: str | int | None,
    query: int | None,
    words: bool = False,
) -> Chosen:
    """Return the layers and heads that a request means.

    Parameters
    ----------
    layer
        A number, a range, ``all``, or None: all of a model's, where one head is to be chosen the
        most telling.
    head
        A number, a range, ``all``, ``mean``, ``auto`` or None, which is auto for a model.
    query
        Index of the token that ``auto`` asks about; any where None. Of the word, with ``words``.
    words
        Rank by the weights of words instead of tokens.

    Raises
    ------
    UsageError
        A layer or head that does not exist.
    ResourceError
        More cells than ``auto`` looks at.
    """
    is_model = opened.model is not None
    layers = opened.layers
    if is_model:
        layers = choose_layers(layer, opened.layers, opened.source.info.n_layers)
    is_auto = head == "auto" or (head is None and is_model)
    heads = choose_heads("all" if is_auto else head, opened.source.info.n_heads)
    is_one = str(head).isdigit() and layer is None  # a head's number alone: in which layer?
    if not (is_auto or is_one) or len(layers) * len(heads) == 1:
        return Chosen(layers, heads)
    ranking, kept = rank(opened, layers, heads, query, words=words)
    best = ranking[0]
    kept = {best.layer: kept[best.layer]} if best.layer in kept else {}
    return Chosen((best.layer,), (best.head,), ranking, kept)


def rank(
    opened: Opened,
    layers: Sequence[int],
    heads: Sequence[int],
    query: int | None,
    *,
    words: bool = False,
) -> tuple[tuple[HeadChoice, ...], dict[int, LayerHeads]]:
    """Run the layers and rank their heads; small layers are kept for what comes next.

    Notes
    -----
    One layer at a time; of each head O(S) numbers stay.
    """
    from attnviz.core.measures.choose import Ranking

    n_queries, n_keys = len(opened.queries), len(opened.keys)
    cells = n_queries * n_keys * len(heads) * len(layers)
    if cells > AUTO_MAX_CELLS:
        raise ResourceError(
            f"{n_queries} tokens, {len(layers)} layers and {len(heads)} heads make {cells} cells: "
            "too many to find the most telling head; choose with --layer N --head N"
        )
    check_dense_size(n_queries, n_keys, 1)
    groups = (group_words(opened.queries), group_words(opened.keys)) if words else None
    queries, keys = opened.queries, opened.keys
    if groups is not None:
        queries, keys = (join_tokens(t, g) for t, g in zip((queries, keys), groups))
    ranking = Ranking(
        keys.special,
        query,
        n_queries=len(queries),
        special_queries=None if opened.key_tokens is None else queries.special,
    )
    kept: dict[int, LayerHeads] = {}
    room = _KEPT_NUMBERS

    def consume(found: LayerHeads) -> None:
        nonlocal room
        room -= sum(int(np.prod(part.shape)) for part in (found.q, found.k, found.v))
        if room >= 0:
            kept[found.layer] = found
        step = max(1, fitting_cells(_AT_ONCE_CELLS) // (n_queries * n_keys))
        for first in range(0, len(heads), step):
            some = tuple(heads[first : first + step])
            narrowed, places = narrow(found, some)
            weights_HLS = np.asarray(opened.computing.trace_heads(narrowed)["weights"])
            weights_HLS = weights_HLS[list(places)]
            if groups is not None:
                weights_HLS = pool(weights_HLS, *groups)
            ranking.add(found.layer, some, weights_HLS)

    opened.source.run(opened.tokens, tuple(layers), consume)
    return ranking.ranked(), kept


def narrow(layer: LayerHeads, heads: Sequence[int]) -> tuple[LayerHeads, tuple[int, ...]]:
    """Return a layer with only these heads, and where they stand in it.

    Arrays of numpy, which are small, stay whole, so that nothing heavy is imported.
    """
    if isinstance(layer.q, np.ndarray) or tuple(heads) == tuple(range(layer.n_heads)):
        return layer, tuple(heads)
    from attnviz.core.placing import select_heads

    return select_heads(layer, heads), tuple(range(len(heads)))
