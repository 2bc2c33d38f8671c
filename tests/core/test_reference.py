"""The reference core on cases that are solved on paper, and on what must hold for all."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnviz.core import reference as r
from attnviz.masks import reachable_keys, visible_block
from attnviz.records import LayerHeads, MaskRule

BASE = np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
BASE_WEIGHTS = [
    [0.4011121, 0.1977758, 0.4011121],
    [0.1977758, 0.4011121, 0.4011121],
    [0.2482551, 0.2482551, 0.5034898],
]
BASE_OUTPUT = [[0.8022242, 0.5988879], [0.5988879, 0.8022242], [0.7517449, 0.7517449]]
CAUSAL_WEIGHTS = [[1, 0, 0], [0.3302385, 0.6697615, 0], [0.2482551, 0.2482551, 0.5034898]]
CAUSAL_OUTPUT = [[1, 0], [0.3302385, 0.6697615], [0.7517449, 0.7517449]]


def base(**changes: object) -> LayerHeads:
    parts: dict[str, object] = {"q": BASE, "k": BASE, "v": BASE, "scale": 2**-0.5, **changes}
    return LayerHeads(**parts)  # type: ignore[arg-type]


def equal_scores(n: int, visible: MaskRule) -> np.ndarray:
    """Weights of n tokens whose scores are all 0."""
    nought, one = np.zeros((1, n, 1)), np.eye(n)[None]
    traced = r.trace_heads(LayerHeads(nought, nought, one, 1.0, visible))
    np.testing.assert_array_equal(traced["output"], traced["weights"])
    return traced["weights"][0]


def random_heads(seed: int, **changes: object) -> LayerHeads:
    draw = np.random.default_rng(seed).standard_normal
    parts: dict[str, object] = {
        "q": draw((4, 5, 3)) * 3,
        "k": draw((2, 7, 3)) * 3,
        "v": draw((2, 7, 2)),
        "scale": 3**-0.5,
        **changes,
    }
    return LayerHeads(**parts)  # type: ignore[arg-type]


def test_two_keys_give_one_over_one_plus_e() -> None:
    weights, lse = r.softmax(np.array([[[0.0, 1.0]]]))
    assert weights[0, 0] == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)], abs=1e-15)
    assert lse[0, 0] == pytest.approx(math.log(1 + math.e), abs=1e-15)


def test_base_and_causal_base() -> None:
    plain = r.trace_heads(base())
    np.testing.assert_array_equal(plain["scores"][0], [[1, 0, 1], [0, 1, 1], [1, 1, 2]])
    np.testing.assert_allclose(plain["weights"][0], BASE_WEIGHTS, atol=1e-7)
    np.testing.assert_allclose(plain["output"][0], BASE_OUTPUT, atol=1e-7)
    causal = r.trace_heads(base(visible=MaskRule(causal=True)))
    np.testing.assert_allclose(causal["weights"][0], CAUSAL_WEIGHTS, atol=1e-7)
    np.testing.assert_allclose(causal["output"][0], CAUSAL_OUTPUT, atol=1e-7)
    assert causal["masked"][0, 0, 1] == -np.inf


def test_M1_a_query_that_may_look_at_nothing() -> None:
    cells = np.array([[1, 0, 0], [0, 0, 0], [1, 1, 1]], bool)
    traced = r.trace_heads(base(visible=MaskRule(cells=cells)))
    np.testing.assert_array_equal(traced["weights"][0, :2], [[1, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(traced["output"][0, 1], [0, 0])
    np.testing.assert_allclose(traced["weights"][0, 2], BASE_WEIGHTS[2], atol=1e-7)
    assert traced["lse"][0, 1] == -np.inf
    assert all(np.isfinite(traced[n]).all() for n in ("weights", "output"))


def test_M1_masks_are_combined_as_booleans() -> None:
    both = MaskRule(causal=True, key_visible=np.array([False, True, True]))
    weights = equal_scores(3, both)
    np.testing.assert_allclose(weights, [[0, 0, 0], [0, 1, 0], [0, 0.5, 0.5]], atol=1e-15)


def test_M3_true_means_may_attend() -> None:
    upper = np.triu(np.ones((3, 3), bool), 1)
    third = 1 / 3
    np.testing.assert_allclose(
        equal_scores(3, MaskRule(cells=~upper)), [[1, 0, 0], [0.5, 0.5, 0], [third] * 3]
    )
    np.testing.assert_allclose(
        equal_scores(3, MaskRule(cells=upper)), [[0, 0.5, 0.5], [0, 0, 1], [0, 0, 0]]
    )


def test_M5_the_divisor_is_the_root_of_the_heads_width() -> None:
    q, k = np.full((1, 1, 64), 0.25), np.stack([np.full(64, 1.0), np.full(64, 0.5)])[None]
    traced = r.trace_heads(LayerHeads(q, k, k, 64**-0.5))
    np.testing.assert_array_equal(traced["scores"][0, 0], [16, 8])
    np.testing.assert_array_equal(traced["scaled"][0, 0], [2, 1])
    np.testing.assert_allclose(traced["weights"][0, 0], [0.7310586, 0.2689414], atol=1e-7)
    loose = r.trace_heads(LayerHeads(q, k, k, 1.0))
    np.testing.assert_allclose(loose["weights"][0, 0], [0.9996646, 0.0003354], atol=1e-7)


@pytest.mark.parametrize("where", ["k", "v"])
def test_M7_nan_behind_a_mask_stays_there(where: str) -> None:
    tokens = np.array([[[0.0, 1, 2, 3], [4, 5, 6, 7]]])
    poisoned = tokens.copy()
    poisoned[0, 1, 0 if where == "k" else 2] = np.nan
    parts = {"q": tokens, "k": tokens, "v": tokens, where: poisoned}
    visible = MaskRule(key_visible=np.array([True, False]))
    with np.errstate(invalid="ignore"):
        traced = r.trace_heads(LayerHeads(**parts, scale=0.5, visible=visible))
    np.testing.assert_array_equal(traced["weights"][0], [[1, 0], [1, 0]])
    np.testing.assert_array_equal(traced["output"][0], [[0, 1, 2, 3]] * 2)


def test_M7_nan_in_a_visible_key_is_not_hidden() -> None:
    tokens = np.array([[[0.0, np.nan]]])
    assert np.isnan(r.trace_heads(LayerHeads(tokens, tokens, tokens, 1.0))["weights"]).all()


def test_P5_a_window_of_three_shows_three_keys() -> None:
    h, t = 0.5, 1 / 3
    rows = [[1, 0, 0, 0, 0], [h, h, 0, 0, 0], [t, t, t, 0, 0], [0, t, t, t, 0], [0, 0, t, t, t]]
    np.testing.assert_allclose(equal_scores(5, MaskRule(causal=True, window=3)), rows)
    np.testing.assert_array_equal(
        equal_scores(5, MaskRule(causal=True, window=5)), equal_scores(5, MaskRule(causal=True))
    )
    both_ways = equal_scores(5, MaskRule(window=3))
    np.testing.assert_allclose(both_ways[2], [0, t, t, t, 0])
    assert (equal_scores(6, MaskRule(window=4)) > 0).sum(axis=1).max() == 4


def test_P7_soft_capped_scores() -> None:
    q, k = np.array([[[1.0]]]), np.array([[[100.0], [60.0]]])
    traced = r.trace_heads(LayerHeads(q, k, k, 1.0, softcap=50.0))
    np.testing.assert_allclose(traced["capped"][0, 0], [48.2013790, 41.6827304], atol=1e-7)
    np.testing.assert_allclose(traced["weights"][0, 0], [0.9985265, 0.0014735], atol=1e-7)


def test_grouped_heads_read_their_own_kv_head() -> None:
    traced = r.trace_heads(random_heads(1))
    alone = random_heads(1)
    for head in range(4):
        one = LayerHeads(
            alone.q[head : head + 1],
            alone.k[head // 2 : head // 2 + 1],
            alone.v[head // 2 : head // 2 + 1],
            alone.scale,
        )
        np.testing.assert_allclose(
            r.trace_heads(one)["output"][0], traced["output"][head], atol=1e-14
        )


def test_large_scores_do_not_overflow() -> None:
    weights, _ = r.softmax(np.array([[[5000.0, 5000.0 - math.log(3)], [-5000.0, -5000.0]]]))
    np.testing.assert_allclose(weights[0], [[0.75, 0.25], [0.5, 0.5]], atol=1e-12)


def test_a_sink_takes_its_share() -> None:
    weights, lse = r.softmax(np.zeros((1, 1, 3)), np.array([0.0]))
    np.testing.assert_allclose(weights[0, 0], [0.25] * 3)
    assert lse[0, 0] == pytest.approx(math.log(4))


@pytest.mark.parametrize("seed", range(20))
def test_properties_of_every_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    heads = random_heads(seed, visible=MaskRule(causal=True, window=int(rng.integers(1, 8))))
    traced = r.trace_heads(heads)
    weights = traced["weights"]
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-14)
    assert (weights >= 0).all()
    assert (weights[~traced["visible"]] == 0).all()
    shifted, _ = r.softmax(traced["masked"] + 17.25)
    np.testing.assert_allclose(shifted, weights, atol=1e-14)
    for head in range(4):
        loop_weights, loop_output = r.attend_by_token(heads, head)
        np.testing.assert_allclose(loop_weights, weights[head], atol=1e-13)
        np.testing.assert_allclose(loop_output, traced["output"][head], atol=1e-13)


@pytest.mark.parametrize("seed", range(5))
def test_permuted_keys_permute_columns(seed: int) -> None:
    heads = random_heads(seed)
    order = np.random.default_rng(seed).permutation(7)
    moved = random_heads(seed, k=heads.k[:, order], v=heads.v[:, order])
    before, after = r.trace_heads(heads), r.trace_heads(moved)
    np.testing.assert_allclose(after["weights"], before["weights"][:, :, order], atol=1e-14)
    np.testing.assert_allclose(after["output"], before["output"], atol=1e-14)


def test_a_causal_row_ignores_what_follows() -> None:
    draw = np.random.default_rng(3).standard_normal
    k, v = draw((1, 6, 4)), draw((1, 6, 4))
    heads = LayerHeads(draw((1, 6, 4)), k, v, 0.5, MaskRule(causal=True))
    changed_k, changed_v = k.copy(), v.copy()
    changed_k[:, 3:], changed_v[:, 3:] = 99, -99
    changed = LayerHeads(heads.q, changed_k, changed_v, 0.5, MaskRule(causal=True))
    np.testing.assert_array_equal(
        r.trace_heads(heads)["output"][:, :3], r.trace_heads(changed)["output"][:, :3]
    )


def test_fewer_queries_than_keys_align_at_the_end() -> None:
    seen = visible_block(MaskRule(causal=True), n_queries=2, n_keys=5)[0]
    np.testing.assert_array_equal(seen, [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])


def test_a_block_of_a_rule_is_a_block_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n_keys = int(rng.integers(1, 12))
        n_queries = int(rng.integers(1, n_keys + 1))
        rule = MaskRule(
            causal=bool(rng.integers(2)),
            window=int(rng.integers(1, 12)) if rng.integers(2) else None,
            chunk=int(rng.integers(1, 5)) if rng.integers(2) else None,
        )
        whole = visible_block(rule, n_queries=n_queries, n_keys=n_keys)[0]
        row0 = int(rng.integers(n_queries))
        row1 = int(rng.integers(row0 + 1, n_queries + 1))
        key0 = int(rng.integers(n_keys))
        block = visible_block(
            rule, n_queries=n_queries, n_keys=n_keys, rows=(row0, row1), keys=(key0, n_keys)
        )[0]
        np.testing.assert_array_equal(block, whole[row0:row1, key0:])
        start, end = reachable_keys(rule, n_queries=n_queries, n_keys=n_keys, rows=(row0, row1))
        assert not whole[row0:row1, :start].any()
        assert not whole[row0:row1, end:].any()


def test_entropy_and_gradient_of_known_rows() -> None:
    rows = np.array([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]])
    np.testing.assert_allclose(r.entropy_bits(rows), [2, 0, 1], atol=1e-15)
    for row, size in zip(rows, r.softmax_gradient_norm(rows), strict=True):
        jacobian = np.diag(row) - np.outer(row, row)
        assert size == pytest.approx(np.linalg.norm(jacobian), abs=1e-15)


def test_projection_cuts_heads_in_order() -> None:
    x, w = np.array([[3.0, 5.0]]), np.array([[1.0, 0, 2, 0], [0, 1, 0, 2]])
    np.testing.assert_array_equal(r.project(x, w, n_heads=2), [[[3, 5]], [[6, 10]]])
    np.testing.assert_array_equal(r.project(x, w, np.ones(4), n_heads=2)[1], [[7, 11]])
