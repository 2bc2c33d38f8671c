"""Run a family's layers over a row of tokens, one layer's weights in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from attnviz.records import LayerHeads
from attnviz.sources.families.attending import Attend, Done
from attnviz.sources.families.family import Family, Pass
from attnviz.sources.families.parts import Floats
from attnviz.sources.families.weights import Weights

Consume = Callable[[Sequence[int], LayerHeads], None]
Tell = Callable[[int, int], None]

_FOUND_LATER = np.errstate(over="ignore", invalid="ignore", divide="ignore")
"""What overflows is refused by name where a layer or a word's score is handed on."""


@dataclass
class Engine:
    """A family and a model's weights, ready to run.

    Parameters
    ----------
    tell
        Told, after every layer, how many of how many are done.
    """

    family: Family
    weights: Weights
    tell: Tell | None = None
    _runs: int = field(default=0, repr=False)

    def run(self, ids: Sequence[int], layers: Sequence[int], consume: Consume) -> None:
        """Run one text and hand the asked-for layers on; it ends behind the last of them."""
        self.run_packed([ids], layers, consume)

    def run_packed(
        self, texts: Sequence[Sequence[int]], layers: Sequence[int], consume: Consume
    ) -> None:
        """Run texts in one row, each seeing only itself; equal lengths are handed on together.

        Parameters
        ----------
        consume
            ``consume(places, heads)``: n texts of equal length, joined along the heads.
        """
        if not layers:
            return
        order = sorted(range(len(texts)), key=lambda i: (len(texts[i]), i))
        groups: list[tuple[int, int, int, tuple[int, ...]]] = []
        start = 0
        for length in sorted({len(text) for text in texts}):
            places = tuple(i for i in order if len(texts[i]) == length)
            groups.append((start, length, len(places), places))
            start += length * len(places)
        attend = Attend(frozenset(layers), consume, groups)
        self._forward([texts[i] for i in order], attend)

    def can_pack(self, longest: int) -> bool:
        """True where texts up to this length have the frequencies of short ones."""
        return all(not rope.grows or longest <= rope.reach() for rope in self.family.ropes)

    @_FOUND_LATER
    def states(
        self,
        ids: Sequence[int],
        layers: Sequence[int] = (),
        consume: Consume = lambda _places, _heads: None,
        *,
        n_layers: int | None = None,
    ) -> Floats:
        """Run one text through all layers, or the first ``n_layers``: the final states (L, D)."""
        groups = [(0, len(ids), 1, (0,))]
        attend = Attend(frozenset(layers), consume, groups, goes_on=True)
        x_LD = self._forward([ids], attend, n_layers=n_layers)
        assert x_LD is not None
        return self.family.finish(self.weights, x_LD)

    def can_write(self) -> bool:
        """True where the model has scores for words."""
        family = self.family
        names = ("lm_head.weight", "embed_out.weight")
        has_own = any(name in self.weights.tensors for name in names)
        return family.is_causal and (has_own or bool(family.s.tie_word_embeddings))

    def n_rows(self) -> int:
        """Return how many words the model has vectors for."""
        shape = self.weights.shape(next(iter(self.family.tensors())))
        assert shape is not None
        return shape[0]

    def layer_bytes(self) -> int:
        """Return what the largest layer takes as float32, all its experts counted."""
        return max(
            4 * sum(math.prod(shape) for shape in self.family.layer_tensors(layer).values())
            for layer in range(self.family.n_layers)
        )

    def top_bytes(self) -> int:
        """Return what lies outside of layers, as float32."""
        return 4 * sum(math.prod(shape) for shape in self.family.tensors().values())

    @_FOUND_LATER
    def next_scores(
        self, ids: Sequence[int], past: dict[int, tuple[Floats, Floats]]
    ) -> Floats | None:
        """Return a score per word for what follows: (V,); only tokens beyond ``past`` are run.

        Parameters
        ----------
        ids
            The whole text so far.
        past
            Layer → k and v of the tokens run before; extended here. Empty at first.
        """
        n_before = past[0][0].shape[1] if past else 0
        groups = [(0, len(ids) - n_before, 1, (0,))]
        attend = Attend(frozenset(), lambda _p, _h: None, groups, goes_on=True, past=past)
        x_LD = self._forward([ids], attend, skip=n_before)
        assert x_LD is not None
        scores = self.family.logits(self.weights, self.family.finish(self.weights, x_LD[-1:]))
        return None if scores is None else scores[0]

    @_FOUND_LATER
    def _forward(
        self,
        texts: Sequence[Sequence[int]],
        attend: Attend,
        *,
        skip: int = 0,
        n_layers: int | None = None,
    ) -> Floats | None:
        """Run layer by layer; None where it ended behind the last wanted one."""
        self._runs += 1
        if self._runs == 2:
            self.weights.keep_if_small()
        family, weights = self.family, self.weights
        positions = np.concatenate([family.place(text) for text in texts])[skip:]
        ids = np.array([i for text in texts for i in text][skip:], np.int64)
        step = Pass(ids, positions, max(len(text) for text in texts), attend)
        if n_layers is None:
            n_layers = family.n_layers if attend.goes_on else attend.last + 1
        x_LD = family.embed(weights, step)
        for layer in range(n_layers):
            try:
                x_LD = family.layer(layer, weights.layer(family.prefix(layer)), x_LD, step)
            except Done:
                return None
            finally:
                weights.release()
            if self.tell is not None:
                self.tell(layer + 1, n_layers)
        return x_LD
