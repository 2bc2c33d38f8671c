"""One attention layer as matrices, and the source that runs a text through it.

What lives here: ``Layer`` (what every weight file is read into, and what random weights make),
and x → q, k, v for it. What does not: reading files (``weights``), drawing random numbers
(``random_``), cutting text (``tokenize``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from attnviz.errors import InputError
from attnviz.records import Array, LayerHeads, MaskRule, SourceInfo, Tokens
from attnviz.sources import Project, Source

STRETCH = 1 << 14
"""Tokens projected at once; of a longer text x is not kept."""


class Vocabulary(Protocol):
    """Cuts text into tokens whose ids are rows of the embedding."""

    def tokenize(self, text: str) -> Tokens: ...


@dataclass(frozen=True, slots=True)
class Layer:
    """The matrices of one self-attention layer; see DESIGN "Weight files" for the format.

    Parameters
    ----------
    w_q : (D, H·E), w_k : (D, K·E), w_v : (D, K·F), w_o : (H·F, D) or None
        Head after head along the columns.
    b_q, b_k, b_v, b_o
        (width,) or None.
    embedding
        (V, D), possibly memory-mapped; only the rows of the text's tokens are read. None where
        ``embed`` makes vectors from tokens directly.
    positions
        (P, D) added to the embedding of the token at each position, or None.
    embed
        ``embed(tokens) -> (L, D)`` where there is no embedding table (random weights).
    scale
        scaled = scores · scale.
    causal
        Whether a query is kept from looking at later tokens.
    """

    w_q: Array
    w_k: Array
    w_v: Array
    n_heads: int
    n_kv_heads: int
    scale: float
    causal: bool = False
    w_o: Array | None = None
    b_q: Array | None = None
    b_k: Array | None = None
    b_v: Array | None = None
    b_o: Array | None = None
    embedding: Array | None = None
    positions: Array | None = None
    embed: Callable[[Tokens], Array] | None = None

    @property
    def d_model(self) -> int:
        return int(self.w_q.shape[0])

    @property
    def d_k(self) -> int:
        return int(self.w_q.shape[1]) // self.n_heads

    @property
    def d_v(self) -> int:
        return int(self.w_v.shape[1]) // self.n_kv_heads


@dataclass(frozen=True, slots=True)
class LayerSource(Source):
    """A source of exactly one layer: vocabulary, matrices, and the projection of the core."""

    info: SourceInfo
    layer: Layer
    vocabulary: Vocabulary
    project: Project
    config_sha256: str | None = None

    def tokenize(self, text: str) -> Tokens:
        """Cut a text with the layer's vocabulary."""
        tokens = self.vocabulary.tokenize(text)
        if not len(tokens):
            raise InputError(f"no tokens in {text[:40]!r}: give a text with at least one word")
        return tokens

    def run(
        self, tokens: Tokens, layers: Sequence[int], consume: Callable[[LayerHeads], None]
    ) -> None:
        """Project the text; the one layer has no number of its own."""
        for _ in layers:
            consume(self._heads(tokens))

    def _heads(self, tokens: Tokens) -> LayerHeads:
        layer = self.layer
        if layer.positions is not None and len(tokens) > len(layer.positions):
            raise InputError(
                f"{len(tokens)} tokens, but the layer has positions for {len(layer.positions)}: "
                "shorten the text"
            )
        import numpy as np

        with np.errstate(over="ignore", invalid="ignore"):  # told below, by name
            if len(tokens) > STRETCH:
                q, k, v = self._project_by_stretches(tokens)
                x_LD = None
            else:
                x_LD = embed(layer, tokens)
                q, k, v = self._project(x_LD)
        check_range(self.info.name, {"q": q, "k": k, "v": v}, layer.w_o)
        return LayerHeads(
            q=q,
            k=k,
            v=v,
            scale=layer.scale,
            visible=MaskRule(causal=layer.causal),
            x=x_LD,
            w_o=layer.w_o,
        )

    def _project(self, x_LD: Array) -> tuple[Array, Array, Array]:
        layer = self.layer
        return (
            self.project(x_LD, layer.w_q, layer.b_q, n_heads=layer.n_heads),
            self.project(x_LD, layer.w_k, layer.b_k, n_heads=layer.n_kv_heads),
            self.project(x_LD, layer.w_v, layer.b_v, n_heads=layer.n_kv_heads),
        )

    def _project_by_stretches(self, tokens: Tokens) -> tuple[Array, Array, Array]:
        """Project a long text in stretches: x, the widest of all, is never held whole."""
        whole: list[Array] = []
        for start in range(0, len(tokens), STRETCH):
            span = slice(start, start + STRETCH)
            parts = self._project(embed(self.layer, cut(tokens, span), start=start))
            if not whole:
                whole = [_room(part, len(tokens)) for part in parts]
            for room, part in zip(whole, parts, strict=True):
                room[:, span] = part
        q, k, v = whole
        return q, k, v


def check_range(name: str, projected: Mapping[str, Array], w_o: Array | None) -> None:
    """Refuse numbers whose products, or sums of squares, leave the range of their type.

    Raises
    ------
    InputError
        Names the first of q, k, v that is too large, and what it reaches.
    """
    for part, values in projected.items():
        limit = 1e16 if values.dtype.itemsize <= 4 else 1e150
        reached = _largest(values)
        if w_o is not None and part == "v":
            reached = max(reached, reached * _largest(w_o) * values.shape[-1], key=_rank)
        if not reached <= limit:
            raise InputError(
                f"{name}: {part} reaches {reached:.3g}: wanted numbers up to {limit:.0e}, whose "
                f"products {str(values.dtype).removeprefix('torch.')} can hold; these are no "
                "trained weights"
            )


def _largest(values: Array) -> float:
    """Return the largest magnitude, NaN where there is one, without a copy of the array."""
    if 0 in values.shape:
        return 0.0
    return max(float(values.max()), -float(values.min()), key=_rank)


def _rank(number: float) -> float:
    return number if number == number else float("inf")


def cut(tokens: Tokens, span: slice) -> Tokens:
    """Return a stretch of tokens; spans still point into the whole text."""
    return replace(
        tokens,
        ids=tokens.ids[span],
        pieces=tokens.pieces[span],
        labels=tokens.labels[span],
        spans=tokens.spans[span],
        special=tokens.special[span],
    )


def _room(part: Array, n_tokens: int) -> Array:
    """Return an empty array like ``part`` (numpy's or torch's) for all tokens."""
    import numpy as np

    shape = (part.shape[0], n_tokens, part.shape[2])
    is_numpy = isinstance(part, np.ndarray)
    return np.empty(shape, part.dtype) if is_numpy else part.new_empty(shape)


def embed(layer: Layer, tokens: Tokens, *, start: int = 0) -> Array:
    """Look up x, one row per token, and add the positions where the layer has them: (L, D).

    ``start`` is the position of the first token in its text.
    """
    import numpy as np

    if layer.embed is not None:
        x_LD = layer.embed(tokens)
    elif layer.embedding is not None:
        x_LD = np.asarray(layer.embedding[list(tokens.ids)], np.float64)
    else:
        raise InputError("the layer has no embedding: there is nothing to look the tokens up in")
    if layer.positions is None:
        return x_LD
    return x_LD + np.asarray(layer.positions[start : start + len(tokens)], np.float64)
