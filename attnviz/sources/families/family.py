"""What every family gives: its sizes, its tensors, and one layer as a function of the one before.

A family is a class with the steps of a textbook: ``embed``, ``layer`` (once per layer), ``finish``,
and ``logits`` where the model writes. Attention itself is handed in (``Pass.attend``), so the same
few lines serve one text, many texts packed into one row, and writing token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from attnviz.records import LayerHeads
from attnviz.sources.families.parts import Floats, Whole
from attnviz.sources.families.ropes import Rope
from attnviz.sources.families.weights import Layer, Weights

Shapes = Mapping[str, tuple[int, ...]]


@dataclass
class Pass:
    """One forward pass over a row of tokens.

    Parameters
    ----------
    ids, positions
        Of the tokens at hand, (L,) each; positions count within a token's own text.
    n_tokens
        How many tokens the longest text has, those of before included.
    attend
        Takes a layer's heads, returns what attention gives: (L, H · F).
    """

    ids: Whole
    positions: Whole
    n_tokens: int
    attend: Callable[[LayerHeads], Floats]
    _tables: dict[int, tuple[Floats, Floats]] = field(default_factory=dict)

    def turn(self, rope: Rope, a_HLE: Floats) -> Floats:
        """Turn q or k by this pass's positions."""
        if id(rope) not in self._tables:
            self._tables[id(rope)] = rope.table(self.positions, self.n_tokens)
        return rope.turn(a_HLE, self._tables[id(rope)])


class Family(Protocol):
    """A model of one family, by its config; it holds no weights.

    ``s`` are its settings by the config's keys; ``prefixes`` are how the names of its tensors may begin in a file, the usual one first.
    """

    s: Any
    prefixes: tuple[str, ...]
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_k: int
    d_v: int
    n_vocab: int
    n_positions: int | None
    is_causal: bool
    ropes: Sequence[Rope]
    windows: Sequence[int | None]
    eos_ids: tuple[int, ...]

    def tensors(self) -> Shapes:
        """Return name → shape of every tensor outside of layers."""

    def prefix(self, layer: int) -> str:
        """Return how the names of a layer's tensors begin."""

    def layer_tensors(self, layer: int) -> Shapes:
        """Return short name → shape of a layer's tensors."""

    def place(self, ids: Sequence[int]) -> Whole:
        """Return the positions of a text's tokens, as the model counts them."""

    def embed(self, weights: Weights, step: Pass) -> Floats:
        """Return what the first layer reads: (L, D)."""

    def layer(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        """Return what the next layer reads: (L, D)."""

    def finish(self, weights: Weights, x_LD: Floats) -> Floats:
        """Return the final states: (L, D)."""

    def logits(self, weights: Weights, x_LD: Floats) -> Floats | None:
        """Return a score for every word: (L, V); None where the model does not write."""


def project(
    weights: Weights, name: str, x_LD: Floats, scale: float = 1.0, bias: str | None = None
) -> Floats:
    """Compute scores of all words, the matrix read in pieces: (L, V)."""
    scores = np.concatenate([x_LD @ piece.T for piece in weights.chunks(name)], -1)
    if bias is not None:
        scores = scores + weights.read(bias)
    return scores * np.float32(scale)


def ids_of(value: Any) -> tuple[int, ...]:
    """Return a config's ``eos_token_id`` as numbers."""
    listed = value if isinstance(value, list) else [value]
    return tuple(i for i in listed if isinstance(i, int) and not isinstance(i, bool))
