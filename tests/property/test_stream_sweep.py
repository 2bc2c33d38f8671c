"""The stream equals the dense reference on a fixed sweep: every branch of it, in a second or two."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
import torch
from layer_cases import FIGURES, Case, check_stream, dense_figures

from attnviz.core import reference
from attnviz.core.stream import stream as streaming
from attnviz.core.stream.stream import row_logsumexp, stream
from attnviz.errors import InputError
from attnviz.records import LayerHeads, MaskRule

EXACT: dict[str, Any] = {"dtype": torch.float64, "tolerance": 1e-12}


def numbers(seed: int, *shape: int) -> np.ndarray:
    found = np.random.Generator(np.random.Philox(seed)).standard_normal(shape)
    return found.astype(np.float32).astype(float)


def layer(
    n_queries: int, n_keys: int, *, spread: float = 1.0, group: int = 1, **more: Any
) -> LayerHeads:
    return LayerHeads(
        numbers(0, 2 * group, n_queries, 4) * spread, numbers(1, 2, n_keys, 4) * spread,
        numbers(2, 2, n_keys, 3), scale=0.5, **more,
    )  # fmt: skip


def rule_of(name: str, n_queries: int, n_keys: int, n_heads: int) -> MaskRule:
    draw = np.random.Generator(np.random.Philox(9))
    cells = draw.random((n_heads, n_queries, n_keys)) < 0.7
    cells[:, n_queries // 3] = False
    return {
        "all": MaskRule(),
        "causal": MaskRule(causal=True),
        "window": MaskRule(causal=True, window=70),
        "both ways": MaskRule(window=9),
        "chunk": MaskRule(causal=True, chunk=65),
        "padding": MaskRule(key_visible=draw.random(n_keys) < 0.8),
        "late padding": MaskRule(causal=True, key_visible=np.arange(n_keys) < n_keys - 3),
        "cells": MaskRule(cells=cells),
        "where": MaskRule(causal=True, where=lambda h, q, k: (h + q + k) % 3 > 0),
    }[name]


RULES = (
    "all",
    "causal",
    "window",
    "both ways",
    "chunk",
    "padding",
    "late padding",
    "cells",
    "where",
)
HOW: dict[str, dict[str, Any]] = {
    "small blocks": {"n_links": 3, "map_size": 7, "n_rows": 16, "tile": 64, "n_workers": 1},
    "workers": {"n_links": 1, "map_size": 1000, "n_rows": 33, "tile": 128, "n_workers": 3},
    "as planned": {"n_links": 8, "map_size": 2, "n_rows": None, "tile": None, "n_workers": None},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_in_every_kind_of_block(rule: str, how: str) -> None:
    for n_queries, n_keys in ((130, 130), (50, 200), (200, 50)):
        heads = layer(n_queries, n_keys, group=2 if rule == "cells" else 1)
        seen = rule_of(rule, n_queries, n_keys, heads.n_heads)
        check_stream(Case(dataclasses.replace(heads, visible=seen), False, HOW[how]), **EXACT)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])
@pytest.mark.parametrize(
    "kind", ["bias", "lazy bias", "cap", "sinks", "large sinks", "all of them"]
)
def test_every_addition_with_quiet_and_loud_scores(kind: str, spread: float, how: str) -> None:
    bias = numbers(5, 1 if kind == "bias" else 2, 90, 140) * 2
    more: dict[str, Any] = {
        "bias": {"bias": bias},
        "lazy bias": {"bias": lambda first, end: bias[:, first:end]},
        "cap": {"softcap": 1.5},
        "sinks": {"sinks": np.array([0.5, -2.0])},
        "large sinks": {"sinks": np.array([900.0, -900.0])},
        "all of them": {"bias": bias, "softcap": 30.0, "sinks": np.array([0.5, 40.0]), "visible": MaskRule(causal=True, window=70)},
    }[kind]  # fmt: skip
    check_stream(Case(layer(90, 140, spread=spread, **more), False, HOW[how]), **EXACT)


@pytest.mark.parametrize("spread", [1.0, 6.0])
def test_values_that_are_no_numbers_keep_their_sign(spread: float) -> None:
    heads = layer(30, 70, spread=spread, visible=MaskRule(causal=True))
    v = heads.v.copy()
    v[0, 12, 1], v[1, 20, 2] = np.inf, -np.inf
    found = stream(dataclasses.replace(heads, v=v), dtype=torch.float64).output_HLF
    plain = reference.trace_heads(heads)
    for head, key, column, value in ((0, 12, 1, np.inf), (1, 20, 2, -np.inf)):
        looks = plain["weights"][head, :, key] > 0
        assert looks.any()
        np.testing.assert_array_equal(found[head, looks, column], value)
        kept = np.isfinite(found[head])
        assert (~kept).sum() == looks.sum()
        np.testing.assert_allclose(found[head][kept], plain["output"][head][kept], atol=1e-12)


def test_maps_of_whole_windows_and_of_any_size() -> None:
    for n_keys, map_size in ((256, 4), (256, 2), (256, 3), (130, 130), (64, 1), (300, 200)):
        heads = layer(100, n_keys, visible=MaskRule(causal=n_keys == 256))
        how = {"n_links": 2, "map_size": map_size, "n_rows": 48, "tile": 64, "n_workers": 2}
        check_stream(Case(heads, False, how), **EXACT)


def test_links_of_long_rows_and_of_ties() -> None:
    heads = layer(20, 700)
    for n_links in (1, 2, 10, 12):
        how = {"n_links": n_links, "map_size": 3, "n_rows": 7, "tile": 128, "n_workers": 1}
        check_stream(Case(heads, False, how), **EXACT)
        check_stream(Case(heads, False, how), dtype=torch.float32, tolerance=3e-5)
    units = np.eye(4)[np.random.Generator(np.random.Philox(3)).integers(0, 4, (2, 700))]
    check_stream(Case(dataclasses.replace(heads, k=units), True, how), **EXACT)
    check_stream(Case(dataclasses.replace(heads, k=units), True, how), dtype=torch.float32, tolerance=3e-5)  # fmt: skip


@pytest.mark.parametrize("spread", [1.0, 30.0])
@pytest.mark.parametrize("name", FIGURES)
def test_one_figure_alone_is_the_same_figure(name: str, spread: float) -> None:
    heads = layer(60, 150, spread=spread, visible=MaskRule(causal=True), sinks=np.array([0.5, 9.0]))
    found = stream(heads, figures=(name,), dtype=torch.float64, **HOW["small blocks"])
    traced = reference.trace_heads(heads)
    assert found.figures == (name,)
    for field, expected in dense_figures(heads, traced, 7).items():
        ours = getattr(found, field)
        if ours is not None:
            np.testing.assert_allclose(ours, expected, atol=1e-11, err_msg=field)
    np.testing.assert_allclose(found.lse_HL, traced["lse"], atol=1e-12)


def test_heads_in_the_order_asked_for_with_progress_and_facts() -> None:
    heads = dataclasses.replace(layer(50, 70, group=2), layer=7)
    told: list[tuple[int, int]] = []
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    found = stream(heads, subset=[3, 0], n_rows=20, dtype=torch.float64,
                   progress=lambda done, total: told.append((done, total)))  # fmt: skip
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)
    assert told == [(20, 100), (40, 100), (50, 100), (70, 100), (90, 100), (100, 100)]
    traced = reference.trace_heads(heads)
    np.testing.assert_allclose(found.output_HLF, traced["output"][[3, 0]], atol=1e-12)
    assert (found.layer, found.heads, found.n_queries, found.n_keys) == (7, (3, 0), 50, 70)
    assert (found.dtype, found.notices) == ("float64", ())
    assert found.device.startswith("cpu, ")
    with pytest.raises(InputError):
        stream(dataclasses.replace(heads, v=heads.v[:, 1:]))


def test_logsumexps_of_some_rows() -> None:
    for spread in (1.0, 30.0):
        heads = layer(
            100, 130, spread=spread, visible=MaskRule(causal=True), sinks=np.array([1.0, 2.0])
        )
        traced = reference.trace_heads(heads)["lse"]
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-3)):
            from attnviz.core.placing import place_heads, select_heads

            head = place_heads(select_heads(heads, [1]), device=torch.device("cpu"), dtype=dtype)
            for rows in ((0, 100), (17, 19), (99, 100)):
                ours = row_logsumexp(head, rows)
                assert ours.dtype == dtype
                np.testing.assert_allclose(ours, traced[1, slice(*rows)], atol=tolerance)


def test_a_worker_that_fails_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Broken(streaming.Panel):
        def run(self, rows: Any, sums: Any, links: Any = None) -> None:
            seen.append(rows[0])
            if rows[0] == 16:  # the second worker's first
                raise ValueError("broken")
            time.sleep(0.02)

    monkeypatch.setattr(streaming, "Panel", Broken)
    with pytest.raises(ValueError, match="broken"):
        stream(layer(400, 70), n_rows=16, n_workers=1)
    assert seen == [0, 16]
    with pytest.raises(ValueError, match="broken"):
        stream(layer(400, 70), n_rows=16, n_workers=2)
    assert len(seen) <= 6  # the other worker has twelve blocks


def test_there_is_room_for_the_widest_block_wherever_it_is() -> None:
    for n_queries, chunk, n_rows in ((65, 64, 65), (130, 64, 16), (130, 7, 64)):
        heads = layer(n_queries, n_queries, visible=MaskRule(causal=True, chunk=chunk))
        how = {"n_links": 2, "map_size": 3, "n_rows": n_rows, "tile": 64, "n_workers": 1}
        check_stream(Case(heads, False, how), **EXACT)
