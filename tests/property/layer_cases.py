"""Random layers, and what a stream of them must equal: plain sums over the dense matrix.

``ATTNVIZ_EXAMPLES=10`` runs ten times as many examples.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnviz.core import reference
from attnviz.core.stream.stream import stream
from attnviz.core.stream.summary import FIGURES as FIGURES
from attnviz.core.stream.summary import LayerSummary
from attnviz.records import LayerHeads, MaskRule

FACTOR = int(os.environ.get("ATTNVIZ_EXAMPLES", "1"))
CPU = torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and how to stream it.

    ``ties`` where many scores are equal to the last bit in any order of summation: every key is
    one of a few unit vectors, so that each score has a single term.
    """

    heads: LayerHeads
    ties: bool
    how: dict[str, Any]


@st.composite
def cases(draw: st.DrawFn, *, largest: int = 180, loud: bool = True) -> Case:
    """Any shape, mask, grouping, bias, cap and sink; blocks, tiles and workers of any size."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_kv_heads, group = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 3), (2, 2)]))
    n_heads = n_kv_heads * group
    n_queries = draw(st.integers(1, largest))
    n_keys = n_queries if draw(st.booleans()) else draw(st.integers(1, largest))
    d_k, d_v = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    ties = draw(st.integers(0, 4)) == 0
    spread = draw(st.sampled_from([0.3, 1.0, 3.0] if loud else [0.3, 1.0]))

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32).astype(float)

    bias: Any = numbers(draw(st.sampled_from([1, n_heads])), n_queries, n_keys)
    kind = "none" if ties else draw(st.sampled_from(["none", "none", "array", "lazy"]))
    k = numbers(n_kv_heads, n_keys, d_k) * spread
    if ties:
        k = np.eye(d_k)[rng.integers(0, d_k, (n_kv_heads, n_keys))]
    lazy = {"none": None, "array": bias, "lazy": lambda row0, row1: bias[:, row0:row1]}[kind]
    heads = LayerHeads(
        numbers(n_heads, n_queries, d_k) * spread,
        k,
        numbers(n_kv_heads, n_keys, d_v),
        scale=draw(st.sampled_from([d_k**-0.5, 1.0, -0.25])),
        visible=draw(rules(rng, n_heads, n_queries, n_keys)),
        softcap=draw(st.sampled_from([None, None, 3.0, 50.0])),
        bias=lazy,
        sinks=numbers(n_heads) if draw(st.integers(0, 3)) == 0 else None,
    )
    how = {
        "n_links": draw(st.sampled_from([1, 2, 8])),
        "map_size": draw(st.sampled_from([1, 2, 7, 16, 1000])),
        "n_rows": draw(st.sampled_from([1, 3, 16, 64, 100, None])),
        "tile": draw(st.sampled_from([64, 128, None])),
        "n_workers": draw(st.sampled_from([1, 1, 1, 2, 3])),
    }
    if how["n_rows"] == 1 and n_queries > 40:
        how["n_rows"] = 5
    return Case(heads, ties, how)


@st.composite
def rules(
    draw: st.DrawFn, rng: np.random.Generator, n_heads: int, n_queries: int, n_keys: int
) -> MaskRule:
    """Any combination of the parts of a rule; often none, often just one."""
    parts = draw(st.sampled_from(["", "", "c", "c", "cw", "w", "p", "k", "cp", "x", "h", "cwpkxh"]))
    at_random = rng.random((n_heads if "h" in parts else 1, n_queries, n_keys)) < 0.7
    period = draw(st.integers(2, 5))
    return MaskRule(
        causal="c" in parts,
        window=draw(st.integers(1, 150)) if "w" in parts else None,
        chunk=draw(st.integers(1, 100)) if "k" in parts else None,
        key_visible=rng.random(n_keys) < 0.8 if "p" in parts else None,
        cells=(at_random if draw(st.booleans()) else at_random[0]) if "x" in parts else None,
        where=(lambda head, query, key: (head + query + key) % period > 0)
        if "h" in parts
        else None,
    )


def dense_figures(
    heads: LayerHeads, traced: dict[str, np.ndarray], map_size: int
) -> dict[str, np.ndarray]:
    """Compute every figure from the dense matrix, by the definitions."""
    weights = traced["weights"]
    n_heads, n_queries, n_keys = weights.shape
    query, key = np.indices((n_queries, n_keys))
    map_rows, map_keys = min(map_size, n_queries), min(map_size, n_keys)
    row_cell = np.arange(n_queries) * map_rows // n_queries
    key_cell = np.arange(n_keys) * map_keys // n_keys
    counts = np.zeros((map_rows, map_keys))
    np.add.at(counts, (row_cell[:, None], key_cell[None]), 1)
    total, top = np.zeros((n_heads, map_rows, map_keys)), np.zeros((n_heads, map_rows, map_keys))
    distance = np.zeros((n_heads, n_queries + n_keys - 1))
    for head in range(n_heads):
        np.add.at(total[head], (row_cell[:, None], key_cell[None]), weights[head])
        np.maximum.at(top[head], (row_cell[:, None], key_cell[None]), weights[head])
        distance[head] = np.bincount(
            (key - query + n_queries - 1).ravel(),
            weights[head].ravel(),
            minlength=n_queries + n_keys - 1,
        )
    return {
        "lse_HL": traced["lse"],
        "output_HLF": traced["output"],
        "entropy_HL": reference.entropy_bits(weights),
        "received_HS": weights.sum(axis=1),
        "distance_HD": distance,
        "first_HL": weights[:, :, 0],
        "map_mean_HRR": total / counts,
        "map_max_HRR": top,
    }


def check_stream(
    case: Case, *, dtype: torch.dtype, tolerance: float, device: torch.device = CPU
) -> LayerSummary:
    """Hold every figure of a streamed layer to the dense reference."""
    heads, how = case.heads, case.how
    found = stream(heads, dtype=dtype, device=device, **how)
    traced = reference.trace_heads(heads)
    for name, expected in dense_figures(heads, traced, how["map_size"]).items():
        ours = getattr(found, name)
        assert ours.shape == expected.shape, name
        size = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
        np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance * size, err_msg=name)
    seen = traced["visible"].any(-1)
    np.testing.assert_array_equal(found.seen_HL, seen)
    sums = traced["weights"].sum(-1)
    np.testing.assert_allclose(found.received_HS.sum(-1), sums.sum(-1), rtol=1e-5)
    if heads.sinks is None:
        np.testing.assert_allclose(sums.sum(-1), seen.sum(-1), rtol=1e-12)
        assert found.sink_share_HL is None
    else:
        np.testing.assert_allclose(found.sink_share_HL, 1 - sums, atol=10 * tolerance)
    check_links(found, traced, ties=case.ties, tolerance=tolerance)
    return found


def check_links(
    found: LayerSummary, traced: dict[str, np.ndarray], *, ties: bool, tolerance: float
) -> None:
    """Hold the strongest links to a stable sort of the dense rows."""
    keys, ours = found.link_keys_HLN, found.link_weights_HLN
    weights = traced["weights"]
    n_links = min(keys.shape[-1], weights.shape[-1])
    order = np.argsort(-weights, axis=-1, kind="stable")[..., :n_links]
    best = np.take_along_axis(weights, order, -1)
    np.testing.assert_allclose(ours[..., :n_links], best, rtol=0, atol=tolerance)
    held = keys >= 0
    assert not ours[~held].any()
    assert (ours[held] > 0).all()
    if ties:
        clear = best > 0
        np.testing.assert_array_equal(keys[..., :n_links][clear], order[clear])
        return
    at_keys = np.take_along_axis(weights, np.maximum(keys, 0), -1)
    np.testing.assert_allclose(np.where(held, at_keys, 0), ours, rtol=0, atol=tolerance)
    ranked = np.sort(np.where(held, keys, -1 - np.arange(keys.shape[-1])), -1)
    assert (np.diff(ranked, axis=-1) > 0).all(), "a link is listed twice"
