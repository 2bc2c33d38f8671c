"""Random matrices: the mechanism without meaning, the same on every machine.

What lives here: drawing W_Q, W_K, W_V and word vectors from a seed. What does not: any other
random number of the program.

All numbers come from ``numpy.random.Generator(numpy.random.Philox(…))`` on the CPU, never from
torch, whose normals differ between devices and processors for one seed. x ~ N(0, 1) and
w ~ N(0, 1/d_model), so that entries of q and k are near N(0, 1) and scores near N(0, d_k).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from attnviz.errors import UsageError
from attnviz.records import Array, SourceInfo, Tokens
from attnviz.sources import Project
from attnviz.sources.layers.layer import Layer, LayerSource
from attnviz.sources.text.tokenize import WordSplitter

_MAX_WIDTH = 1 << 16
_MAX_ENTRIES = 1 << 28


def open_random(
    *,
    seed: int = 0,
    d_model: int = 512,
    d_k: int = 64,
    n_heads: int = 1,
    n_kv_heads: int | None = None,
    project: Project,
) -> LayerSource:
    """Open a layer of random weights; words are split by the bundled rule.

    Parameters
    ----------
    seed : 0 … 2⁶⁴ − 1
    d_model, d_k : ≥ 1; d_v = d_k
    n_heads, n_kv_heads : n_heads is a multiple of n_kv_heads (default: equal)

    Raises
    ------
    UsageError
        A size that cannot be.
    """
    matrices = draw_matrices(
        seed=seed, d_model=d_model, d_k=d_k, n_heads=n_heads, n_kv_heads=n_kv_heads
    )
    groups = n_kv_heads or n_heads
    layer = Layer(
        **matrices,
        n_heads=n_heads,
        n_kv_heads=groups,
        scale=d_k**-0.5,
        embed=lambda tokens: word_vectors(tokens, seed=seed, d_model=d_model),
    )
    info = SourceInfo(
        kind="random weights",
        name=f"philox-{seed}",
        sha256=digest(matrices),
        n_layers=1,
        n_heads=n_heads,
        n_kv_heads=groups,
        d_model=d_model,
        d_k=d_k,
        d_v=d_k,
        seed=seed,
        tokenizer="words and punctuation, each word's vector drawn from the seed",
        origin="drawn, not learned: shows the mechanism, means nothing",
    )
    return LayerSource(info, layer, WordSplitter(), project)


def draw_matrices(
    *, seed: int, d_model: int, d_k: int, n_heads: int = 1, n_kv_heads: int | None = None
) -> dict[str, Array]:
    """Draw ``w_q`` (D, H·E), ``w_k`` and ``w_v`` (D, K·E), float64, in this order.

    Examples
    --------
    >>> w = draw_matrices(seed=0, d_model=4, d_k=2)
    >>> w["w_q"].shape, round(float(w["w_q"][0, 0]), 4)
    ((4, 2), -0.103)
    """
    groups = n_heads if n_kv_heads is None else n_kv_heads
    check_sizes(seed=seed, d_model=d_model, d_k=d_k, n_heads=n_heads, n_kv_heads=groups)
    draw = np.random.Generator(np.random.Philox(seed)).standard_normal
    spread = d_model**-0.5
    return {
        "w_q": draw((d_model, n_heads * d_k)) * spread,
        "w_k": draw((d_model, groups * d_k)) * spread,
        "w_v": draw((d_model, groups * d_k)) * spread,
    }


def check_sizes(*, seed: int, d_model: int, d_k: int, n_heads: int, n_kv_heads: int) -> None:
    """Refuse sizes that cannot be, before anything is allocated."""
    for name, value in (("d-model", d_model), ("d-k", d_k)):
        if not 1 <= value <= _MAX_WIDTH:
            raise UsageError(f"--{name} {value} is out of range: 1 to {_MAX_WIDTH}")
    if not 1 <= n_heads <= 1024:
        raise UsageError(f"--n-heads {n_heads} is out of range: 1 to 1024")
    if n_kv_heads < 1 or n_heads % n_kv_heads:
        divisors = [n for n in range(1, n_heads + 1) if n_heads % n == 0]
        raise UsageError(
            f"--n-kv-heads {n_kv_heads} does not divide --n-heads {n_heads}: "
            f"choose from {', '.join(map(str, divisors))}"
        )
    if d_model * d_k * n_heads > _MAX_ENTRIES:
        raise UsageError(
            f"w_q of {d_model} × {n_heads * d_k} is too large to draw: at most {_MAX_ENTRIES} entries"
        )
    if not 0 <= seed < 1 << 64:
        raise UsageError(f"--seed {seed} is out of range: 0 to 18446744073709551615")


def word_vectors(tokens: Tokens, *, seed: int, d_model: int) -> Array:
    """Draw one vector per word from the seed and the word alone: (L, D) float64.

    The same word (lower-cased) always gets the same vector, in every text.
    """
    rows: dict[str, Array] = {}
    for piece in tokens.pieces:
        if piece not in rows:
            word = hashlib.sha256(piece.encode("utf-8", "surrogatepass")).digest()
            key = np.array([seed, int.from_bytes(word[:8], "little")], dtype=np.uint64)
            rows[piece] = np.random.Generator(np.random.Philox(key=key)).standard_normal(d_model)
    return np.stack([rows[piece] for piece in tokens.pieces])


def digest(matrices: dict[str, Array]) -> str:
    """Return the SHA-256 of matrices: names, shapes and little-endian float64 bytes, in order."""
    total = hashlib.sha256()
    for name, values in matrices.items():
        total.update(f"{name}{values.shape}".encode())
        total.update(np.ascontiguousarray(values, dtype="<f8").tobytes())
    return total.hexdigest()


def draw_layer(
    *,
    seed: int,
    d_model: int,
    d_k: int,
    n_heads: int,
    n_kv_heads: int | None,
    words: Sequence[str] = (),
    causal: bool = False,
) -> tuple[dict[str, Array], dict[str, str]]:
    """Draw a layer for a file: (arrays, metadata), with an embedding where words are given.

    A word's row is the vector that random weights of the same seed give that word.
    """
    arrays = draw_matrices(
        seed=seed, d_model=d_model, d_k=d_k, n_heads=n_heads, n_kv_heads=n_kv_heads
    )
    metadata = {
        "n_heads": str(n_heads),
        "n_kv_heads": str(n_kv_heads or n_heads),
        "scale": repr(d_k**-0.5),
        "causal": "true" if causal else "false",
        "origin": f"attnviz weights new, seed {seed}",
    }
    if words:
        pieces = tuple(word.lower() for word in words)
        nothing = (0,) * len(pieces)
        tokens = Tokens("", nothing, pieces, pieces, (None,) * len(pieces), (False,) * len(pieces))
        arrays["embedding"] = word_vectors(tokens, seed=seed, d_model=d_model)
        metadata["vocab"] = json.dumps(list(words))
    return arrays, metadata
