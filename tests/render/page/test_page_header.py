"""What stands in a page's header, and what a dense trace becomes on the way to it."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from synthetic import make_layer, make_stack, make_tokens
from test_page_encode import ODD, unpack

import attnviz
from attnviz.core import reference
from attnviz.errors import ResourceError, UsageError
from attnviz.records import HeadChoice, LayerHeads, MaskRule, RunInfo, Tokens
from attnviz.render.page import encode as encoding
from attnviz.render.page.encode import encode, source_to_dict, stack_of, to_script_json
from attnviz.render.page.rules import describe_bias, describe_mask, expand_bias


def test_the_header_says_everything_the_page_needs_to_know() -> None:
    layers = [make_layer(5, seed=n, softcap=(None, 2.0)[n], sinks=(None, np.array([1.0, -2]))[n])
              for n in range(2)]  # fmt: skip
    made = make_stack(layers, ["a", "\x1b[2J", "bear", "\u202e", "z"])
    run = RunInfo("1.2", "cpu", "float32", "dense", {"scale": 2.0})
    about = replace(made.about, run=run, notices=("cut at 5 tokens",))
    stack = replace(made, about=about)
    links = [
        HeadChoice(1, 0, 3, 2, 0.75, 0.0, 0.0, 0.7),
        HeadChoice(0, 1, 4, 1, 0.5, 0.0, 0.0, 0.4),
    ]
    header = encode(stack, links=links, budget_mb=64).header
    assert header["schema"] == "attnviz.page/1"
    first, second = ({"layer": 1, "head": 0, "query": 3, "key": 2},
                     {"layer": 0, "head": 1, "query": 4, "key": 1})  # fmt: skip
    offered = [{**first, "weight": 0.75}, {**second, "weight": 0.5}]
    assert header["start"] == {**first, "links": offered}
    asked = encode(stack, query=1, links=links, budget_mb=64).header["start"]
    assert asked == {"layer": 1, "head": 0, "query": 1, "links": offered}
    assert encode(stack, budget_mb=64).header["start"] == {"query": None}
    assert header["run"] == {"version": "1.2", "device": "cpu", "dtype": "float32", "core": "dense",
                             "overrides": {"scale": 2.0}}  # fmt: skip
    assert header["notices"] == ["cut at 5 tokens"]
    assert header["heads"] == [0, 1]
    assert header["source_numbers"] == header["numbers"] == "float32"
    assert header["has_values"] is True
    assert header["key_tokens"] is None
    assert header["tokens"] == {
        "ids": [0, 1, 2, 3, 4],
        "labels": ["a", "\x1b[2J", "bear", "\u202e", "z"],
        "shown": [None, "␛[2J", None, "\\u{202e}", None],
        "spans": [None] * 5,
        "special": [],
    }
    assert [layer["softcap"] for layer in header["layers"]] == [None, 2.0]
    assert [layer["sinks"] for layer in header["layers"]] == [None, [1.0, -2.0]]
    assert [(layer["layer"], layer["d_k"], layer["d_v"]) for layer in header["layers"]] == [
        (0, 8, 8),
        (1, 8, 8),
    ]
    assert header["layers"][0]["scale"] == pytest.approx(8**-0.5)
    assert source_to_dict(stack)["name"] == header["source"]["name"] == "patterns"
    assert not any("path" in name for name in header["source"])


def test_spans_and_special_tokens_are_told() -> None:
    tokens = Tokens("a b", (7, 8), ("a", "b"), ("a", "b"), ((0, 1), None), (False, True))
    found = encoding.tokens_to_dict(tokens)
    assert found["spans"] == [[0, 1], None]
    assert found["special"] == [1]
    assert found["ids"] == [7, 8]


def test_other_tokens_along_the_keys_have_their_own_columns() -> None:
    layer = make_layer(3)
    keys = make_tokens(["x", "y", "z", "w"])
    wide = replace(layer, k=np.ones((2, 4, 8), "f4"), v=np.ones((2, 4, 8), "f4"))
    made = make_stack([wide])
    stack = replace(made, about=replace(made.about, key_tokens=keys))
    assert encode(stack, budget_mb=64).header["key_tokens"]["labels"] == ["x", "y", "z", "w"]


def test_the_page_is_refused_one_byte_above_its_budget() -> None:
    cells = np.random.default_rng(0).random((1200, 1200)) > 0.5
    stack = make_stack([make_layer(1200, n_heads=1, d_k=1, visible=MaskRule(cells=cells))])
    n_bytes = encode(stack, budget_mb=64).n_bytes
    budgets = [n_bytes / 1e6 + n * 1e-13 for n in range(-9, 9)]
    assert any(budget * 1e6 == n_bytes for budget in budgets)
    for budget in budgets:
        if budget * 1e6 >= n_bytes:
            assert encode(stack, budget_mb=budget).n_bytes == n_bytes
    with pytest.raises(ResourceError, match="masks and biases included"):
        encode(stack, budget_mb=(n_bytes - 1) / 1e6)


def test_layers_share_a_mask_and_a_bias_but_nothing_else() -> None:
    bias = np.random.default_rng(0).standard_normal((2, 9, 9))
    layers = [make_layer(9, seed=n, visible=MaskRule(cells=ODD), bias=bias) for n in (0, 1)]
    data = encode(make_stack(layers), budget_mb=64)
    first, second = (layer["blocks"] for layer in data.header["layers"])
    assert first["mask"] == second["mask"] == "mask-0"
    assert first["bias"] == second["bias"] == "bias-0"
    assert first["q"], second["q"] == ("q-0", "q-1")
    assert set(data.blocks) == {f"{name}-{n}" for name in "qkv" for n in (0, 1)} | {"mask-0", "bias-0"}  # fmt: skip


def test_norms_of_values_come_along() -> None:
    stack = make_stack([make_layer(3), make_layer(3, seed=1)])
    norms = (np.arange(6.0).reshape(2, 3), np.ones((2, 3)))
    data = encode(replace(stack, value_norms=norms), budget_mb=64)
    assert unpack(data, "reach-0", "<f4").tolist() == [0, 1, 2, 3, 4, 5]
    assert unpack(data, "reach-1", "<f4").tolist() == [1] * 6


def test_a_page_too_large_for_its_values_carries_their_lengths() -> None:
    layer = make_layer(1200, n_heads=1, d_k=1, d_v=1500)
    data = encode(make_stack([layer]), budget_mb=64)
    assert data.header["has_values"] is False
    assert "v-0" not in data.blocks
    np.testing.assert_allclose(
        unpack(data, "v_lengths-0", "<f4"), np.linalg.norm(layer.v[0], axis=-1), rtol=1e-6
    )


def test_script_json_is_strict_and_has_no_markup() -> None:
    assert to_script_json({"a": "<&>", "b": [1, None]}) == (
        '{"a":"\\u003c\\u0026\\u003e","b":[1,null]}'
    )
    assert to_script_json("猫\ud800") == '"\\u732b\\ud800"'
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            to_script_json([number])


def trace_of(layer: LayerHeads, **more: Any) -> Any:
    """Make a dense trace of one layer whose heads each have their own keys and values."""
    stages, share = reference.trace_heads(layer), more.pop("sink_share", None)
    seen = np.broadcast_to(stages["visible"], stages["weights"].shape)[None]
    made = attnviz.explain("a b c", weights="random", n_heads=2, head="all", d_k=8)
    names = [name for name in ("q", "k", "v", "masked", "bias", "weights") if name in stages]
    info = replace(made.source, n_heads=layer.n_heads, n_kv_heads=layer.n_heads)
    said = {name: more.pop(name) for name in ("key_tokens", "notices") if name in more}
    about = replace(made.about, source=info, **said)
    return replace(
        made, about=about, layers=(layer.layer,), heads=tuple(range(layer.n_heads)), scale=(layer.scale,),
        softcap=(layer.softcap,), stages={name: np.asarray(stages[name])[None] for name in names},
        visible=seen, sink_share=share, **more,
    )  # fmt: skip


def test_a_trace_keeps_bias_cap_mask_and_keys_on_the_way_to_a_page() -> None:
    bias = np.random.default_rng(0).standard_normal((2, 3, 3))
    cells = np.array([[True, False, True], [True, True, False], [False, True, True]])
    layer = make_layer(
        3, seed=5, dtype=np.float64, bias=bias, softcap=1.5, visible=MaskRule(cells=cells)
    )
    keys = make_tokens(["x", "y", "z"])
    stack = stack_of(trace_of(layer, key_tokens=keys, notices=("told",)))
    again = reference.trace_heads(stack.layers[0])["weights"]
    np.testing.assert_allclose(again, reference.trace_heads(layer)["weights"], atol=1e-15)
    assert stack.key_tokens == keys
    assert stack.notices == ("told",)
    assert stack.layers[0].layer == layer.layer == 5
    plain = stack_of(trace_of(make_layer(3, dtype=np.float64)))
    assert plain.layers[0].bias is None
    assert plain.layers[0].sinks is None
    assert plain.layers[0].visible.cells is None


@pytest.mark.parametrize("missing", ["q", "k"])
def test_a_trace_without_q_or_k_has_no_page_of_vectors(missing: str) -> None:
    trace = trace_of(make_layer(3))
    stages = {name: values for name, values in trace.stages.items() if name != missing}
    with pytest.raises(UsageError, match="shows q and k"):
        stack_of(replace(trace, stages=stages))


def test_sinks_are_solved_for_where_the_share_is_neither_0_nor_1() -> None:
    masked = np.array([[[-900.0, -900.0], [1.0, -900.0], [800.0, 1.0]]])
    sink = 0.25
    share = np.array([[1.0, np.exp(sink) / (np.exp(sink) + np.e), 0.0]])
    found = encoding._sinks(
        SimpleNamespace(sink_share=[share], stages={"masked": [masked]}),
        0,  # type: ignore[arg-type]
    )
    assert found == pytest.approx([sink])
    none = SimpleNamespace(sink_share=[share * 0], stages={"masked": [masked]})
    assert encoding._sinks(none, 0) is None  # type: ignore[arg-type]


def test_a_mask_that_differs_in_one_cell_is_no_rule() -> None:
    for size in (9, 300):
        cells = np.tril(np.ones((size, size), bool))
        cells[size - 2, 0] = False
        assert describe_mask(make_layer(size, visible=MaskRule(cells=cells))).facts["n_maps"] == 1  # type: ignore[index]
    facts = describe_mask(make_layer(9, visible=MaskRule(causal=True, chunk=4))).facts
    assert facts == {"causal": True, "before": None, "after": None, "chunk": 4, "n_maps": 0}
    nothing = describe_mask(make_layer(9, visible=MaskRule(key_visible=np.ones(9, bool))))
    assert nothing.facts["n_maps"] == 0  # type: ignore[index]
    one = describe_mask(make_layer(1, visible=MaskRule(cells=np.ones((1, 1), bool))))
    assert one.facts["causal"] is False  # type: ignore[index]
    dark = describe_mask(make_layer(9, visible=MaskRule(cells=np.zeros((9, 9), bool))))
    assert dark.facts["n_maps"] == 1  # type: ignore[index]
    assert not dark.arrays["mask"].any()


def test_maps_of_keys_and_of_rows_are_packed_lowest_bit_first() -> None:
    seen = np.arange(9) % 3 == 0
    found = describe_mask(make_layer(9, visible=MaskRule(key_visible=seen)))
    bits = np.unpackbits(found.arrays["mask"], axis=-1, bitorder="little")[..., :9]
    assert found.arrays["mask"].shape == (1, 9, 2)
    assert (bits == seen).all()
    cells = np.random.default_rng(0).random((2, 300, 300)) > 0.5
    found = describe_mask(make_layer(300, visible=MaskRule(cells=cells)))
    assert found.arrays["mask"].shape == (2, 300, 38)
    bits = np.unpackbits(found.arrays["mask"], axis=-1, bitorder="little")[..., :300]
    assert (bits == cells).all()


def test_a_bias_that_differs_in_one_cell_of_a_late_block_is_held_whole() -> None:
    key, query = np.arange(300)[None, :], np.arange(300)[:, None]
    by_distance = np.random.default_rng(0).standard_normal((2, 599))[:, key - query + 299]
    by_distance[1, 299, 7] += 1
    by_distance[1, 280, 7] += 1
    layer = make_layer(300, bias=by_distance)
    found = describe_bias(layer)
    assert found.facts == {"kind": "cells", "n": 2}
    np.testing.assert_array_equal(
        expand_bias("cells", found.arrays["bias"], layer, 5, 200), by_distance[:, 5:200]
    )
    whole = np.random.default_rng(0).standard_normal((2, 599))[:, key - query + 299]
    assert describe_bias(make_layer(300, bias=whole)).facts == {"kind": "distance", "n": 2}
    constant = describe_bias(make_layer(4, bias=np.full((1, 4, 4), 2.0)))
    assert constant.facts == {"kind": "key", "n": 1}
    assert constant.arrays["bias"].tolist() == [[2.0] * 4]
    json.dumps(constant.facts)
