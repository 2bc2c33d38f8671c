"""How many texts share a forward pass of a source, and the figures that come out per text.

What lives here: one text at a time, padded batches, and packed passes, behind one small face. What
does not: running a model (``sources``), the figures' formulas (``core.figures``).

Which texts go together depends on their lengths and order alone, so the numbers of a shard do
not depend on who works on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Protocol

import numpy as np

from attnviz.core.measures.figures import Figures, measure
from attnviz.errors import CheckFailed, InputError
from attnviz.records import LayerHeads, Tokens
from attnviz.sources import Source, TextPacker

Place = Callable[[LayerHeads], LayerHeads]

PACKED_TOKENS = 1024
"""Tokens of one packed pass on a CPU: beyond it nothing is gained, and caches are lost."""

PACKED = 10
"""Packed sums are cut differently: how many times the tolerance they may be off."""

PADDED_TOKENS = 2048
DEVICE_TOKENS = 16384
"""Tokens of one pass on a GPU."""


class Passes(Protocol):
    """Texts → figures, several texts at a time."""

    name: str

    def plan(self, lengths: Sequence[int]) -> list[list[int]]:
        """Return which texts share a pass, by their places; every place once."""

    def run(
        self, texts: Sequence[Tokens], *, n_links: int, with_parity: bool
    ) -> list[list[Figures]]:
        """Return the figures of every text, layer by layer."""


def choose_passes(source: Source, layers: Sequence[int], place: Place) -> Passes:
    """Return the fastest way that gives every text the numbers of its own run."""
    if not source.is_batched:
        return Single(source, layers, place)
    most, packer = source.shared_up_to, source.packer()
    budget = PADDED_TOKENS if packer is None else PACKED_TOKENS
    budget = budget if source.device == "cpu" else DEVICE_TOKENS
    budget = budget if most is None else min(budget, most)
    if packer is not None:
        return Packed(packer, layers, place, budget)
    return Padded(source, layers, place, budget)


class Single:
    """One text at a time: single layers, and whatever cannot share a pass."""

    name = "single"

    def __init__(self, source: Source, layers: Sequence[int], place: Place) -> None:
        self._source, self._layers, self._place = source, layers, place

    def plan(self, lengths: Sequence[int]) -> list[list[int]]:
        return [[i] for i in range(len(lengths))]

    def run(
        self, texts: Sequence[Tokens], *, n_links: int, with_parity: bool
    ) -> list[list[Figures]]:
        found: list[list[Figures]] = []
        tolerance = self._source.tolerance
        for tokens in texts:
            special = special_keys(self._source, tokens)
            own: list[Figures] = []

            def consume(
                heads: LayerHeads, special: Any = special, own: list[Figures] = own
            ) -> None:
                own.append(_measure(self._place(heads), special, n_links, with_parity, tolerance))

            self._source.run(tokens, self._layers, consume)
            found.append(own)
        return found


class Padded:
    """Texts of similar length, padded to the longest, through the model's own batch."""

    name = "padded"

    def __init__(self, source: Source, layers: Sequence[int], place: Place, budget: int) -> None:
        self._source, self._layers, self._place, self._budget = source, layers, place, budget

    def plan(self, lengths: Sequence[int]) -> list[list[int]]:
        return fill(lengths, self._budget, padded=True)

    def run(
        self, texts: Sequence[Tokens], *, n_links: int, with_parity: bool
    ) -> list[list[Figures]]:
        special = [special_keys(self._source, tokens) for tokens in texts]
        tolerance = self._source.tolerance
        found: list[list[Figures]] = [[] for _ in texts]

        def consume(i: int, heads: LayerHeads) -> None:
            found[i].append(
                _measure(self._place(heads), special[i], n_links, with_parity, tolerance)
            )

        self._source.run_batch(texts, self._layers, consume)
        return found


class Packed:
    """Texts one behind the other in one row without padding, each seeing only itself."""

    name = "packed"

    def __init__(
        self, packer: TextPacker, layers: Sequence[int], place: Place, budget: int
    ) -> None:
        self._packer, self._layers, self._place, self._budget = packer, layers, place, budget
        self._alone = Single(packer.source, layers, place)

    def plan(self, lengths: Sequence[int]) -> list[list[int]]:
        return fill(lengths, self._budget)

    def run(
        self, texts: Sequence[Tokens], *, n_links: int, with_parity: bool
    ) -> list[list[Figures]]:
        if len(texts) == 1 and len(texts[0]) > self._budget:  # what was tried is shorter
            return self._alone.run(texts, n_links=n_links, with_parity=with_parity)
        try:
            return self._run(texts, n_links=n_links, with_parity=with_parity)
        except InputError:  # CLIP counts the whole row against its positions
            return self._alone.run(texts, n_links=n_links, with_parity=with_parity)

    def _run(
        self, texts: Sequence[Tokens], *, n_links: int, with_parity: bool
    ) -> list[list[Figures]]:
        found: list[list[Figures]] = [[] for _ in texts]
        tolerance = PACKED * self._packer.source.tolerance

        def consume(places: Sequence[int], heads: LayerHeads) -> None:
            n_heads = heads.n_heads // len(places)
            special = np.array([texts[i].special for i in places])
            joined = _measure(
                self._place(heads),
                np.repeat(special, n_heads, axis=0),
                n_links,
                with_parity,
                tolerance,
            )
            for i, figures in zip(places, split_figures(joined, len(places)), strict=True):
                found[i].append(figures)

        self._packer.run(texts, self._layers, consume)
        return found


def fill(lengths: Sequence[int], budget: int, *, padded: bool = False) -> list[list[int]]:
    """Return groups of places, short texts first, each of at most ``budget`` tokens.

    Parameters
    ----------
    lengths
        Tokens of every text.
    budget
        A longer text has a group of its own.
    padded
        Every text counts as long as the longest of its group.

    Examples
    --------
    >>> fill([3, 9, 2, 4], 9), fill([3, 9, 2, 4], 9, padded=True)
    ([[2, 0, 3], [1]], [[2, 0], [3], [1]])
    """
    groups: list[list[int]] = []
    total = 0
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        n_after = len(groups[-1]) + 1 if groups else 1
        after = n_after * lengths[i] if padded else total + lengths[i]
        if not groups or after > budget:
            groups.append([])
            total = 0
        groups[-1].append(i)
        total += lengths[i]
    return groups


def special_keys(source: Source, tokens: Tokens) -> Any:
    """Return which keys of a text are special tokens: (S,) bool."""
    return np.array(source.sides(tokens)[1].special)


def split_figures(joined: Figures, n_texts: int) -> list[Figures]:
    """Cut the figures of joined texts apart: views of H heads each."""
    names = [field.name for field in fields(Figures) if field.name != "parity"]
    arrays = [getattr(joined, name) for name in names]
    apart = [a.reshape(n_texts, len(a) // n_texts, *a.shape[1:]) for a in arrays]
    return [
        Figures(**dict(zip(names, parts, strict=True)), parity=joined.parity)
        for parts in zip(*apart, strict=True)
    ]


def _measure(
    heads: LayerHeads, special_S: Any, n_links: int, with_parity: bool, tolerance: float
) -> Figures:
    if special_S.ndim == 1:
        special_S = np.repeat(special_S[None], heads.n_heads, axis=0)
    figures = measure(heads, special_HS=special_S, n_links=n_links, with_parity=with_parity)
    if figures.parity is not None and heads.own_output is not None:
        size = max(1.0, float(abs(heads.own_output).max()))
        if not figures.parity <= tolerance * size:
            raise CheckFailed(
                f"layer {heads.layer}: output not equal to the model's own; it differs by "
                f"{figures.parity / size:.1e} of the largest number, at most {tolerance:.0e} is allowed"
            )
    return figures
