"""Figures where there is nothing to see, and by the two ways softmax is computed for many heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attnviz.core import reference
from attnviz.core.measures import figures
from attnviz.core.measures.figures import measure
from attnviz.records import LayerHeads, MaskRule

ZEROS = ("entropy_H", "distance_H", "first_H", "self_H", "special_H", "sink_H", "received_H")


def as_torch(heads: LayerHeads) -> LayerHeads:
    named = {name: torch.tensor(getattr(heads, name)) for name in ("q", "k", "v")}
    rule = heads.visible
    cells = None if rule.cells is None else torch.tensor(rule.cells)
    return replace(heads, **named, visible=replace(rule, cells=cells))  # type: ignore[arg-type]


@pytest.mark.parametrize("core", ["numpy", "torch"])
@pytest.mark.parametrize("sinks", [False, True])
def test_a_head_that_sees_nothing_has_figures_of_0(core: str, sinks: bool) -> None:
    x = np.ones((2, 3, 2))
    rule = MaskRule(cells=np.zeros((3, 3), bool))
    heads = LayerHeads(q=x, k=x, v=x, scale=1.0, visible=rule, sinks=np.zeros(2) if sinks else None)
    if core == "torch":
        heads = replace(
            as_torch(heads), sinks=torch.zeros(2, dtype=torch.float64) if sinks else None
        )
    found = measure(heads, special_HS=np.ones((2, 3), bool), n_links=2)
    for name in ZEROS:
        assert getattr(found, name).tolist() == [0.0, 0.0], name
    assert np.isnan(found.previous_H).all()
    assert np.isnan(found.next_H).all()
    assert found.link_queries_HN.tolist() == found.link_keys_HN.tolist() == [[-1, -1]] * 2
    assert found.link_weights_HN.tolist() == [[0, 0]] * 2
    assert found.received_key_H.dtype == np.int64


def test_more_queries_than_keys_and_the_other_way_round() -> None:
    draw = np.random.default_rng(0).standard_normal
    for n_queries, n_keys in ((5, 2), (2, 5), (4, 1)):
        heads = LayerHeads(
            q=draw((1, n_queries, 2)), k=draw((1, n_keys, 2)), v=draw((1, n_keys, 2)), scale=1.0
        )
        weights = reference.trace_heads(heads)["weights"][0]
        found = measure(heads)
        for name, shift in (("self_H", 0), ("previous_H", -1), ("next_H", 1)):
            places = [(i, i + n_keys - n_queries + shift) for i in range(n_queries)]
            taken = [weights[i, j] for i, j in places if 0 <= j < n_keys]
            wanted = np.mean(taken) if taken else (0.0 if name == "self_H" else np.nan)
            assert getattr(found, name)[0] == pytest.approx(wanted, nan_ok=True)


@pytest.mark.parametrize("n_keys", [5, 64, 65])
@pytest.mark.parametrize("n_heads", [31, 32, 40])
def test_both_ways_to_a_softmax_give_the_same_weights(n_heads: int, n_keys: int) -> None:
    draw = np.random.default_rng(0).standard_normal
    heads = LayerHeads(
        q=draw((n_heads, 3, 2)),
        k=draw((n_heads, n_keys, 2)),
        v=draw((n_heads, n_keys, 2)),
        scale=0.7,
    )
    weights, visible = figures.weigh(as_torch(heads), (1, 3))
    assert visible is None
    wanted = reference.trace_heads(heads)["weights"][:, 1:3]
    np.testing.assert_allclose(np.asarray(weights), wanted, atol=1e-12)


def test_fewer_cells_than_links_and_blocks_of_any_size() -> None:
    draw = np.random.default_rng(1).standard_normal
    heads = LayerHeads(q=draw((2, 3, 2)), k=draw((2, 2, 2)), v=draw((2, 2, 2)), scale=1.0)
    found: Any = [measure(heads, n_links=9, block_cells=cells) for cells in (0, 1, 5, 100)]
    assert found[0].link_weights_HN.shape == (2, 9)
    assert (found[0].link_weights_HN[:, 6:] == 0).all()
    assert (found[0].link_queries_HN[:, 6:] == -1).all()
    for other in found[1:]:
        np.testing.assert_allclose(other.link_weights_HN, found[0].link_weights_HN)
        np.testing.assert_array_equal(other.link_keys_HN, found[0].link_keys_HN)
        np.testing.assert_allclose(other.entropy_H, found[0].entropy_H)
    assert measure(heads).link_weights_HN.shape == (2, 3)
    assert measure(heads, n_links=7).link_keys_HN.shape == (2, 7)
