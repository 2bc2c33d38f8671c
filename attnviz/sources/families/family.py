"""What every family gives: its sizes, its tensors, and one layer as a function of the one before.

A family is a class with the steps of a textbook: ``embed``, ``layer`` (once per layer), ``finish``,
and ``logits`` where the model writes. Attention itself is handed in (``Pass.attend``), so the same
few lines serve one text, many texts packed into one row, and writing token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnviz.records import LayerHeads, MaskRule
from attnviz.sources.families.parts import Floats, Whole, layer_norm, linear
from attnviz.sources.families.ropes import Rope
from attnviz.sources.families.settings import NotOurs, check_sizes
from attnviz.sources.families.weights import Layer, Weights

MAX_LAYERS = 1024
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


class Family:
    """A model of one family, by its config; it holds no weights.

    Parameters
    ----------
    s
        Its settings by the config's keys.

    Raises
    ------
    NotOurs
        A config that the family does not know.

    Notes
    -----
    ``prefixes`` are how the names of its tensors may begin in a file, the usual one first; ``layers``
    and ``attention`` are the names of its layers, and of attention within one.
    """

    prefixes: tuple[str, ...] = ("",)
    layers = "layers."
    attention = ""
    is_causal = False
    ropes: Sequence[Rope] = ()
    n_positions: int | None
    eps: float

    def __init__(self, s: Any, *, d_model: int, n_heads: int, n_layers: int, d_head: int | None = None,
                 n_kv_heads: int | None = None, **sizes: int) -> None:  # fmt: skip
        check_sizes(
            d_model=d_model, n_heads=n_heads, n_layers=n_layers, n_vocab=s.vocab_size, **sizes
        )
        if n_layers > MAX_LAYERS:
            raise NotOurs(f"{n_layers} layers: at most {MAX_LAYERS} are read")
        if d_head is None and d_model % n_heads:
            raise NotOurs(f"{n_heads} heads in {d_model} numbers")
        self.s = s
        self.n_layers, self.n_heads, self.d_model = n_layers, n_heads, d_model
        self.n_kv_heads = n_kv_heads or n_heads
        self.d_k = self.d_v = d_head or d_model // n_heads
        check_sizes(n_kv_heads=self.n_kv_heads, d_head=self.d_k)
        if n_heads % self.n_kv_heads:
            raise NotOurs(f"{n_heads} heads over {self.n_kv_heads}")
        self.n_vocab = s.vocab_size
        self.n_positions = sizes.get("n_positions")
        self.windows: list[int | None] = [None] * n_layers
        self.eos_ids = ids_of(s.eos_token_id)

    def tensors(self) -> Shapes:
        """Return name → shape of every tensor outside of layers; the embedding comes first."""
        raise NotImplementedError

    def prefix(self, layer: int) -> str:
        """Return how the names of a layer's tensors begin."""
        return f"{self.layers}{layer}."

    def layer_tensors(self, layer: int) -> Shapes:
        """Return short name → shape of a layer's tensors."""
        raise NotImplementedError

    def place(self, ids: Sequence[int]) -> Whole:
        """Return the positions of a text's tokens, as the model counts them."""
        return np.arange(len(ids))

    def embed(self, weights: Weights, step: Pass) -> Floats:
        """Return what the first layer reads: (L, D)."""
        raise NotImplementedError

    def layer(self, layer: int, w: Layer, x_LD: Floats, step: Pass) -> Floats:
        """Return what the next layer reads: (L, D)."""
        raise NotImplementedError

    def finish(self, weights: Weights, x_LD: Floats) -> Floats:
        """Return the final states: (L, D)."""
        return x_LD

    def logits(self, weights: Weights, x_LD: Floats) -> Floats | None:
        """Return a score for every word: (L, V); None where the model does not write."""
        return None

    # -- what families share ------------------------------------------------------------------

    def _linear(self, w: Layer, name: str, x_LD: Floats) -> Floats:
        return linear(x_LD, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def _norm(self, w: Layer, name: str, x: Floats) -> Floats:
        return layer_norm(x, w[f"{name}.weight"], w.get(f"{name}.bias"), eps=self.eps)

    def _attend(
        self, layer: int, w: Layer, step: Pass, out: str, qkv: tuple[Floats, Floats, Floats],
        *, turned: bool = False, scale: float | None = None, **more: Any,
    ) -> Floats:  # fmt: skip
        """Hand a layer's heads on, and mix what attention gives by the matrix ``out``: (L, D).

        Parameters
        ----------
        qkv
            (H, L, E), (K, L, E) and (K, L, F).
        more
            Other fields of ``LayerHeads``.
        """
        q, k, v = qkv
        w_o = w[f"{out}.weight"]
        heads = LayerHeads(
            q=q, k=k, v=v, scale=self.d_k**-0.5 if scale is None else scale,
            visible=MaskRule(causal=self.is_causal, window=self.windows[layer]),
            w_o=w_o if turned else w_o.T, layer=layer,
            name=f"{self.prefix(layer)}{self.attention}".rstrip("."), **more,
        )  # fmt: skip
        return linear(step.attend(heads), w_o.T if turned else w_o, w.get(f"{out}.bias"))


def shapes(
    matrices: Mapping[str, tuple[int, ...]], biased: Callable[[str], bool] = lambda _: False
) -> dict[str, tuple[int, ...]]:
    """Return the tensors of modules: a weight each, and a bias of as many rows where there is one."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in matrices.items():
        found[f"{name}.weight"] = shape
        if biased(name):
            found[f"{name}.bias"] = shape[:1]
    return found


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
