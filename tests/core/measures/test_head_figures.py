"""Figures of a head: by hand, against loops that share no code, and the same for every block size."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attnviz.core import reference
from attnviz.core.measures import figures
from attnviz.core.measures.figures import measure
from attnviz.records import LayerHeads, MaskRule

RULES = {
    "all": MaskRule(),
    "causal": MaskRule(causal=True),
    "window": MaskRule(causal=True, window=2),
    "blind row": MaskRule(cells=np.arange(36).reshape(6, 6) % 7 > 2),
    "padding": MaskRule(key_visible=np.array([True, True, True, True, False, False])),
}
RULES["blind row"].cells[4] = False  # type: ignore[index]


def layer(rule: str, *, n_keys: int = 6, sinks: bool = False, seed: int = 0) -> LayerHeads:
    rng = np.random.default_rng(seed)
    return LayerHeads(
        q=rng.standard_normal((4, 6, 3)),
        k=rng.standard_normal((2, n_keys, 3)),
        v=rng.standard_normal((2, n_keys, 3)),
        scale=0.7,
        visible=RULES[rule],
        sinks=np.array([0.0, 1.0, -1.0, 0.5]) if sinks else None,
    )


def by_loops(weights: Any, visible: Any, special: Any, offset: int) -> dict[str, float]:
    """Every figure of one head, cell by cell."""
    n_queries, n_keys = weights.shape
    rows = [i for i in range(n_queries) if visible[i].any()]
    total = sum(weights[i, j] for i in rows for j in range(n_keys))

    def mean_at(shift: int) -> float:
        taken = [weights[i, i + offset + shift] for i in rows if 0 <= i + offset + shift < n_keys]
        return sum(taken) / len(taken) if taken else math.nan

    entropy = [-sum(w * math.log2(w) for w in weights[i] if w > 0) for i in rows]
    received = [sum(weights[i, j] for i in rows) for j in range(n_keys)]
    return {
        "entropy_H": sum(entropy) / len(rows),
        "distance_H": sum(
            weights[i, j] * abs(j - i - offset) for i in rows for j in range(n_keys)
        ) / total,
        "first_H": received[0] / len(rows),
        "self_H": mean_at(0),
        "previous_H": mean_at(-1),
        "next_H": mean_at(1),
        "special_H": sum(received[j] for j in range(n_keys) if special[j]) / len(rows),
        "sink_H": 1 - total / len(rows),
        "received_H": max(received) / len(rows),
        "received_key_H": received.index(max(received)),
    }  # fmt: skip


@pytest.mark.parametrize("core", ["numpy", "torch"])
@pytest.mark.parametrize("block_cells", [1, 48, 1 << 20])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_figures_are_those_of_loops(rule: str, sinks: bool, block_cells: int, core: str) -> None:
    heads = layer(rule, sinks=sinks)
    stages = reference.trace_heads(heads)
    special = np.array([1, 0, 0, 0, 0, 1], bool)
    given = heads
    if core == "torch":
        given = replace(
            heads,
            **{n: torch.tensor(getattr(heads, n)) for n in ("q", "k", "v")},
            sinks=None if heads.sinks is None else torch.tensor(heads.sinks),
            visible=replace(
                heads.visible,
                **{
                    n: None if getattr(heads.visible, n) is None
                    else torch.tensor(getattr(heads.visible, n))
                    for n in ("cells", "key_visible")
                },
            ),
        )  # fmt: skip
    found = measure(given, special_HS=np.tile(special, (4, 1)), n_links=4, block_cells=block_cells)
    for head in range(4):
        weights = stages["weights"][head]
        wanted = by_loops(weights, stages["visible"][head], special, 0)
        for name, value in wanted.items():
            assert getattr(found, name)[head] == pytest.approx(value, abs=1e-6, nan_ok=True), name
        cells = sorted(
            (-w, i, j) for (i, j), w in np.ndenumerate(weights) if w > 0
        )[:4]  # fmt: skip
        links = zip(
            found.link_weights_HN[head], found.link_queries_HN[head], found.link_keys_HN[head]
        )
        assert [(i, j) for _, i, j in links] == [(i, j) for _, i, j in cells]


def test_two_tokens_by_hand() -> None:
    # q·k = [[ln 3, 0], [0, 0]]: weights [[3/4, 1/4], [1/2, 1/2]]
    q = np.array([[[1.0], [0.0]]])
    k = np.array([[[math.log(3)], [0.0]]])
    found = measure(LayerHeads(q=q, k=k, v=k, scale=1.0), n_links=9)
    row = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert found.entropy_H[0] == pytest.approx((row + 1) / 2)
    assert found.distance_H[0] == pytest.approx((0.25 + 0.5) / 2)
    assert found.first_H[0] == pytest.approx(0.625)
    assert found.self_H[0] == pytest.approx(0.625)
    assert found.previous_H[0] == pytest.approx(0.5)
    assert found.next_H[0] == pytest.approx(0.25)
    assert (found.received_key_H[0], found.received_H[0]) == (0, pytest.approx(0.625))
    assert found.link_queries_HN[0].tolist() == [0, 1, 1, 0, *[-1] * 5]
    assert found.link_keys_HN[0].tolist() == [0, 0, 1, 1, *[-1] * 5]


def test_one_token_has_no_neighbours() -> None:
    one = np.ones((1, 1, 1))
    found = measure(LayerHeads(q=one, k=one, v=one, scale=1.0))
    assert np.isnan(found.previous_H[0])
    assert np.isnan(found.next_H[0])
    assert (found.entropy_H[0], found.distance_H[0], found.self_H[0]) == (0, 0, 1)


def test_the_last_query_stands_at_the_last_key() -> None:
    heads = layer("causal", n_keys=8)
    stages = reference.trace_heads(heads)
    found = measure(heads, block_cells=20)
    for head in range(4):
        wanted = by_loops(stages["weights"][head], stages["visible"][head], [0] * 8, 2)
        for name, value in wanted.items():
            assert getattr(found, name)[head] == pytest.approx(value, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("rule", ["all", "causal", "window"])
def test_joined_texts_are_texts_alone(rule: str) -> None:
    texts = [layer(rule, seed=seed) for seed in range(3)]
    joined = replace(
        texts[0], **{n: np.concatenate([getattr(t, n) for t in texts]) for n in ("q", "k", "v")}
    )
    together = measure(joined)
    for place, text in enumerate(texts):
        alone = measure(text)
        part = slice(4 * place, 4 * place + 4)
        for name in ("entropy_H", "distance_H", "received_key_H", "link_keys_HN"):
            np.testing.assert_array_equal(getattr(together, name)[part], getattr(alone, name))


def test_parity_is_the_largest_difference() -> None:
    heads = layer("causal")
    own = reference.trace_heads(heads)["output"]
    assert measure(replace(heads, own_output=own), with_parity=True).parity < 1e-12  # type: ignore[operator]
    own[2, 3, 1] += 0.25
    off = measure(replace(heads, own_output=own), with_parity=True, block_cells=30)
    assert off.parity == pytest.approx(0.25)
    assert measure(heads, with_parity=True).parity is None


def test_bias_and_cap_enter_the_weights() -> None:
    heads = replace(
        layer("causal"), softcap=1.5, bias=np.random.default_rng(3).standard_normal((4, 6, 6))
    )
    wanted = reference.trace_heads(heads)["weights"]
    np.testing.assert_allclose(figures.weigh(heads, (2, 5))[0], wanted[:, 2:5], atol=1e-12)
    torch_heads = replace(heads, **{n: torch.tensor(getattr(heads, n)) for n in ("q", "k", "v")})
    np.testing.assert_allclose(figures.weigh(torch_heads, (2, 5))[0], wanted[:, 2:5], atol=1e-12)
