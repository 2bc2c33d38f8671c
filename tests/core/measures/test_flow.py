"""Value-aware norms, rollout and maps without sinks: by hand and against dense algebra."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from attnviz.core.measures.flow import (
    Block,
    rollout,
    rollout_rows,
    value_norms,
    without_sinks,
)


def softmax_rows(seed: int, *shape: int) -> np.ndarray:
    draw = np.random.Generator(np.random.Philox(seed))
    return draw.dirichlet(np.full(shape[-1], 0.5), size=shape[:-1])


def blocks_of(mean: np.ndarray, step: int) -> Iterator[Block]:
    for first in range(0, len(mean), step):
        yield (first, min(first + step, len(mean))), mean[first : first + step]


def test_rollout_of_two_layers_by_hand() -> None:
    first = np.array([[[1.0, 0.0], [0.5, 0.5]]])
    second = np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])
    # A_1 = ½[[1, 0], [.5, .5]] + ½I = [[1, 0], [.25, .75]]
    # mean of layer 2 = [[1, 0], [.5, .5]], A_2 = [[1, 0], [.25, .75]]
    # A_2·A_1 = [[1, 0], [.25 + .75·.25, .75·.75]] = [[1, 0], [.4375, .5625]]
    assert rollout([first, second]).tolist() == [[1.0, 0.0], [0.4375, 0.5625]]


@pytest.mark.parametrize("n_layers", [1, 2, 5])
def test_rollout_rows_equal_the_dense_product(n_layers: int) -> None:
    layers = [softmax_rows(i, 3, 9, 9) for i in range(n_layers)]
    dense = np.eye(9)
    for weights in layers:
        dense = (0.5 * weights.mean(0) + 0.5 * np.eye(9)) @ dense
    assert np.allclose(rollout(layers), dense, atol=1e-12)
    assert np.allclose(dense.sum(-1), 1)
    for step in (4, 9, 20):
        blocks = [partial(blocks_of, w.mean(0), step) for w in layers]
        assert np.allclose(rollout_rows(np.eye(9)[[2, 7]], blocks), dense[[2, 7]], atol=1e-12)


def test_rollout_rescales_rows_that_lost_a_share() -> None:
    """Every row by itself: a learned sink takes more from one query than from another."""
    kept = np.array([1.0, 0.5, 0.1, 0.0])[:, None] * softmax_rows(1, 1, 4, 4)
    for residual in (0.5, 0.25):
        mixed = (1 - residual) * kept[0] + residual * np.eye(4)
        step = mixed / mixed.sum(-1, keepdims=True)
        flow = rollout([kept, kept], residual=residual)
        assert np.allclose(flow, step @ step, atol=1e-15)
        blocks = [partial(blocks_of, kept[0], 3)] * 2
        assert np.allclose(rollout_rows(np.eye(4), blocks, residual=residual), flow, atol=1e-15)


def test_value_norms_equal_the_long_way() -> None:
    draw = np.random.Generator(np.random.Philox(0))
    v, w_o = draw.normal(size=(2, 7, 4)), draw.normal(size=(6 * 4, 10))
    norms = value_norms(v, w_o, n_heads=6)
    for head in range(6):
        through = v[head // 3] @ w_o[head * 4 : head * 4 + 4]
        assert np.allclose(norms[head], np.linalg.norm(through, axis=-1), atol=1e-12)
    assert np.allclose(value_norms(v, n_heads=6)[5], np.linalg.norm(v[1], axis=-1))
    assert np.allclose(value_norms(v), np.linalg.norm(v, axis=-1))
    assert np.allclose(value_norms(v * 1e-3, w_o, n_heads=6), norms * 1e-3, atol=1e-15)
    assert (value_norms(v * 0, w_o, n_heads=6) == 0).all()
    weights = softmax_rows(2, 6, 7, 7)
    each = weights * norms[:, None, :]
    head, query, key = 4, 3, 6
    part = weights[head, query, key] * v[1, key] @ w_o[16:20]
    assert each[head, query, key] == pytest.approx(np.linalg.norm(part))


def test_without_sinks() -> None:
    weights = softmax_rows(4, 2, 5, 5)
    is_sink = np.array([True, False, False, True, False])
    found = without_sinks(weights, is_sink)
    assert np.allclose(found.sum(-1), 1)
    assert (found[..., is_sink] == 0).all()
    kept = weights[..., ~is_sink]
    assert np.allclose(found[..., ~is_sink], kept / kept.sum(-1, keepdims=True))
    only = without_sinks(np.array([[1.0, 0.0]]), np.array([True, False]))
    assert only.tolist() == [[0.0, 0.0]]
