"""The torch core equals the reference for random shapes, masks, groupings, scales and types."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnviz.core import reference
from attnviz.records import LayerHeads, MaskRule

torch = pytest.importorskip("torch")


@st.composite
def layers(draw: st.DrawFn) -> LayerHeads:
    """One layer of any shape: groups, causal rules, windows, padding, caps, sinks, bias."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n_heads = n_kv_heads * group
    n_keys = draw(st.integers(1, 9))
    n_queries = draw(st.integers(1, n_keys))
    d_k, d_v = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    spread = draw(st.sampled_from([0.1, 1.0, 10.0]))
    rule = MaskRule(
        causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, 10)),
        chunk=draw(st.none() | st.integers(1, 5)),
        key_visible=rng.random(n_keys) < 0.8 if draw(st.booleans()) else None,
        cells=rng.random((n_queries, n_keys)) < 0.7 if draw(st.booleans()) else None,
    )
    normal = rng.standard_normal
    return LayerHeads(
        normal((n_heads, n_queries, d_k)) * spread,
        normal((n_kv_heads, n_keys, d_k)) * spread,
        normal((n_kv_heads, n_keys, d_v)),
        scale=draw(st.sampled_from([d_k**-0.5, 1.0, 0.01])),
        visible=rule,
        softcap=draw(st.none() | st.sampled_from([5.0, 50.0])),
        bias=normal((n_heads, n_queries, n_keys)) if draw(st.booleans()) else None,
        sinks=normal(n_heads) if draw(st.booleans()) else None,
    )


def compare(heads: LayerHeads, dtype: object, tolerance: float) -> None:
    from attnviz.core import attend

    expected = reference.trace_heads(heads)
    found = attend.trace_heads(heads, device=torch.device("cpu"), dtype=dtype)
    for name, values in expected.items():
        ours = np.asarray(found[name], dtype=values.dtype)
        size = max(1.0, float(np.abs(values[np.isfinite(values)]).max(initial=0.0)))
        np.testing.assert_allclose(ours, values, rtol=0, atol=tolerance * size, err_msg=name)


@settings(max_examples=200, deadline=None)
@given(layers())
def test_float64_is_the_reference(heads: LayerHeads) -> None:
    compare(heads, torch.float64, 1e-12)


@settings(max_examples=200, deadline=None)
@given(layers())
def test_float32_is_near_it(heads: LayerHeads) -> None:
    narrow = LayerHeads(
        *(np.asarray(a, np.float32).astype(np.float64) for a in (heads.q, heads.k, heads.v)),
        scale=heads.scale,
        visible=heads.visible,
        softcap=heads.softcap,
        bias=heads.bias,
        sinks=heads.sinks,
    )
    compare(narrow, torch.float32, 2e-5)


@settings(max_examples=100, deadline=None)
@given(layers())
def test_the_loop_is_the_matrix_form(heads: LayerHeads) -> None:
    traced = reference.trace_heads(heads)
    for head in range(heads.n_heads):
        weights, output = reference.attend_by_token(heads, head)
        np.testing.assert_allclose(weights, traced["weights"][head], atol=1e-11)
        np.testing.assert_allclose(output, traced["output"][head], atol=1e-11)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_finite_and_rows_sum_to_one(dtype: str) -> None:
    from attnviz.runs.explain import explain

    trace = explain("a b c d", weights="random", dtype=dtype)
    weights = trace.stages["weights"]
    assert np.isfinite(weights).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=2e-2)
    exact = explain("a b c d", weights="random").stages["weights"]
    np.testing.assert_allclose(weights, exact, atol=5e-2)


def test_M1_M7_hold_in_torch() -> None:
    from attnviz.core import attend

    tokens = np.array([[[0.0, 1, 2, 3], [4, 5, 6, 7]]])
    poisoned = tokens.copy()
    poisoned[0, 1, 2] = np.nan
    for q, k, v in ((tokens, poisoned, tokens), (tokens, tokens, poisoned)):
        rule = MaskRule(key_visible=np.array([True, False]))
        found = attend.trace_heads(
            LayerHeads(q, k, v, 0.5, rule), device=torch.device("cpu"), dtype=torch.float32
        )
        np.testing.assert_array_equal(np.asarray(found["output"])[0], [[0, 1, 2, 3]] * 2)
    blind = MaskRule(cells=np.array([[True, False], [False, False]]))
    found = attend.trace_heads(
        LayerHeads(tokens, tokens, tokens, 0.5, blind),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    np.testing.assert_array_equal(np.asarray(found["weights"])[0], [[1, 0], [0, 0]])
    np.testing.assert_array_equal(np.asarray(found["output"])[0, 1], [0, 0, 0, 0])
