"""What a page carries: the numbers come back, rules stay rules, a large page is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pytest
from synthetic import make_info, make_layer, make_stack, make_tokens

import attnviz
from attnviz.core import reference
from attnviz.errors import ResourceError, UsageError
from attnviz.masks import visible_block
from attnviz.records import LayerHeads, MaskRule, Tokens
from attnviz.render.page import numbers as stored
from attnviz.render.page.build import build_page, bundle
from attnviz.render.page.encode import encode, stack_of
from attnviz.render.page.rules import describe_bias, describe_mask, expand_bias
from attnviz.runs import page as gathering
from attnviz.runs.run import Place
from attnviz.sources import Source


def unpack(data, name, kind):
    return np.frombuffer(base64.b64decode(data.blocks[name]), kind)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_q_and_k_come_back_bit_for_bit(dtype):
    stack = make_stack([make_layer(7, n_heads=4, n_kv_heads=2, dtype=dtype)])
    data = encode(stack, budget_mb=64)
    kind = np.dtype(dtype).newbyteorder("<")
    assert data.header["numbers"] == np.dtype(dtype).name
    np.testing.assert_array_equal(unpack(data, "q-0", kind), stack.layers[0].q.ravel())
    np.testing.assert_array_equal(unpack(data, "k-0", kind), stack.layers[0].k.ravel())
    assert data.header["weight_error"] == 0
    assert data.header["kv_index"] == [0, 0, 1, 1]


def test_the_error_of_a_compact_page_is_the_error_of_its_weights():
    stack = make_stack([make_layer(12, d_k=16, visible=MaskRule(causal=True)) for _ in range(2)])
    data = encode(stack, compact=True, budget_mb=64)
    worst = 0.0
    for n, layer in enumerate(stack.layers):
        q, k = (
            unpack(data, f"{x}-{n}", "<i2").reshape(2, 12, 16)
            * unpack(data, f"{x}_steps-{n}", "<f4").reshape(2, 12, 1).astype(float)
            for x in "qk"
        )
        rounded = LayerHeads(q=q, k=k, v=layer.v, scale=layer.scale, visible=layer.visible)
        given, held = (reference.trace_heads(h)["weights"] for h in (layer, rounded))
        worst = max(worst, np.abs(given - held).max())
    assert 0 < worst < 1e-3
    assert data.header["weight_error"] == pytest.approx(worst, rel=1e-9)


def test_sixteen_bits_with_a_step_are_closer_than_float16():
    values = np.random.default_rng(0).standard_normal((500, 64)) * 3
    whole, steps = stored.quantize(values)
    ours = np.abs(whole * steps[:, None].astype(float) - values)
    half = np.abs(values.astype(np.float16).astype(float) - values)
    assert np.sqrt((ours**2).mean()) < 0.4 * np.sqrt((half**2).mean())


def test_a_row_of_zeros_and_the_largest_numbers_survive_rounding():
    whole, steps = stored.quantize(np.array([[0.0, 0.0], [3e38, -3e38], [1e-30, 0]]))
    assert whole.tolist() == [[0, 0], [32767, -32767], [32767, 0]]
    assert np.isfinite(steps).all()


ODD = np.random.default_rng(1).random((9, 9)) > 0.4


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        (MaskRule(), (False, None, None, 0)),
        (MaskRule(causal=True), (True, None, None, 0)),
        (MaskRule(causal=True, window=3), (True, 2, 0, 0)),
        (MaskRule(window=4), (False, 2, 1, 0)),
        (MaskRule(cells=np.tril(np.ones((9, 9), bool))), (True, None, None, 0)),
        (MaskRule(where=lambda h, q, k: k <= q), (True, None, None, 0)),
        (MaskRule(where=lambda h, q, k: (k <= q) & (k > q - 4)), (True, 3, 0, 0)),
        (MaskRule(cells=ODD), (False, None, None, 1)),
        (MaskRule(cells=np.stack([ODD, ~ODD])), (False, None, None, 2)),
        (MaskRule(cells=np.stack([ODD, ODD])), (False, None, None, 1)),
        (MaskRule(causal=True, key_visible=np.arange(9) < 7), (True, None, None, 1)),
    ],
)
def test_a_mask_that_is_a_rule_stays_one(rule, facts):
    layer = make_layer(9, visible=rule)
    found = describe_mask(layer)
    named = found.facts
    assert (named["causal"], named["before"], named["after"], named["n_maps"]) == facts
    if named["n_maps"] and rule.key_visible is None:
        bits = np.unpackbits(found.arrays["mask"], axis=-1, bitorder="little")[..., :9].astype(bool)
        seen = visible_block(rule, n_queries=9, n_keys=9, n_heads=2)
        np.testing.assert_array_equal(np.broadcast_to(bits, seen.shape), seen[: len(seen)])


@pytest.mark.parametrize("kind", ["distance", "key", "cells"])
def test_a_bias_is_held_by_what_it_depends_on(kind):
    draw = np.random.default_rng(0).standard_normal
    key, query = np.arange(300)[None, :], np.arange(300)[:, None]
    bias = {
        "distance": lambda: draw((2, 599))[:, key - query + 299],
        "key": lambda: np.broadcast_to(draw((2, 1, 300)), (2, 300, 300)),
        "cells": lambda: draw((2, 300, 300)),
    }[kind]()
    layer = make_layer(300, bias=lambda first, end: bias[:, first:end])
    found = describe_bias(layer)
    assert found.facts == {"kind": kind, "n": 2}
    np.testing.assert_array_equal(expand_bias(kind, found.arrays["bias"], layer, 0, 300), bias)
    assert describe_bias(make_layer(3)).facts is None


@pytest.mark.parametrize(("n_tokens", "exact_mb", "compact_mb"), [(128, 16, 8), (512, 64, 32)])
def test_a_page_of_144_heads_stays_within_its_size(n_tokens, exact_mb, compact_mb):
    layer = make_layer(n_tokens, n_heads=12, d_k=64, visible=MaskRule(causal=True))
    stack = make_stack([layer] * 12)
    sizes = stored.sizes_of(stack)
    page = build_page(stack)
    assert len(page.encode()) <= exact_mb * 1e6
    assert len(page) == pytest.approx(stored.page_bytes(sizes, "float32"), rel=0.02)
    if n_tokens == 128:
        compact = build_page(stack, compact=True)
        assert len(compact.encode()) <= compact_mb * 1e6
    assert stored.page_bytes(sizes, "int16") <= compact_mb * 1e6


def test_a_page_grows_with_the_text_not_with_its_square():
    sizes = [
        len(build_page(make_stack([make_layer(n, n_heads=1, visible=MaskRule(causal=True))])))
        for n in (1000, 2000)
    ]
    shell = len(build_page(make_stack([make_layer(1, n_heads=1)])))
    assert (sizes[1] - shell) / (sizes[0] - shell) == pytest.approx(2, rel=0.05)


def test_a_page_that_is_too_large_is_refused_with_what_fits():
    sizes = stored.Sizes(48, 32, 8, 1000, 1000, 128, 128)
    with pytest.raises(ResourceError, match=r"would take .* MB: at most 64 MB; choose") as refused:
        stored.check_budget(sizes, compact=False, budget_mb=64)
    words = str(refused.value)
    n_layers = int(re.search(r"--layer, (\d+) of 48 fit", words)[1])
    for n, fits in ((n_layers, True), (n_layers + 1, False)):
        size = stored.page_bytes(stored.Sizes(n, 32, 8, 1000, 1000, 128, 128), "float32")
        assert (size <= 64e6) is fits
    assert "tokens fit" in words
    assert "--budget" in words
    with pytest.raises(ResourceError, match="2049 tokens are too many"):
        stored.check_budget(stored.Sizes(1, 1, 1, 2049, 2049, 1, 1), compact=False, budget_mb=64)


def test_a_dense_odd_mask_counts_towards_the_budget():
    cells = np.random.default_rng(0).random((1200, 1200)) > 0.5
    stack = make_stack([make_layer(1200, n_heads=1, d_k=1, visible=MaskRule(cells=cells))])
    budget_mb = stored.page_bytes(stored.sizes_of(stack), "float32") / 1e6
    encode(make_stack([make_layer(1200, n_heads=1, d_k=1)]), budget_mb=budget_mb)
    with pytest.raises(ResourceError, match="masks and biases included"):
        encode(stack, budget_mb=budget_mb)


class FakeSource(Source):
    """Four query heads on two key/value heads, three layers; counts what is alive."""

    info = make_info(3, 4, 2, 8, 8)

    def tokenize(self, text: str) -> Tokens:
        return make_tokens(text.split())

    def run(self, tokens, layers, consume):
        for layer in layers:
            consume(make_layer(len(tokens), n_heads=4, n_kv_heads=2, seed=layer))


def test_chosen_heads_keep_their_key_value_head():
    stack = gathering.gather_stack(
        Place(FakeSource(), (0, 2), "cpu", "float64").send("a b c"), (1, 2, 3)
    )
    assert [h.layer for h in stack.layers] == [0, 2]
    assert stack.kv_heads == (0, 1)
    assert stack.kv_index == (0, 1, 1)
    whole = make_layer(3, n_heads=4, n_kv_heads=2, seed=2)
    np.testing.assert_array_equal(stack.layers[1].q, whole.q[1:])
    only = gathering.gather_stack(Place(FakeSource(), (1,), "cpu", "float64").send("a b c"), (3,))
    assert only.kv_heads == (1,)
    assert only.kv_index == (0,)
    np.testing.assert_array_equal(
        only.layers[0].k[0], make_layer(3, n_heads=4, n_kv_heads=2, seed=1).k[1]
    )


def test_tensors_and_rules_of_a_model_arrive_as_numpy():
    torch = pytest.importorskip("torch")
    found = make_layer(5, n_heads=4, n_kv_heads=2)
    tensors = LayerHeads(
        q=torch.from_numpy(found.q).to(torch.bfloat16),
        k=torch.from_numpy(found.k),
        v=torch.from_numpy(found.v),
        scale=found.scale,
        visible=MaskRule(
            where=lambda h, q, k: torch.logical_and(torch.le(k, q), torch.ne(h, 2)),
            key_visible=torch.ones(5, dtype=torch.bool),
        ),
        sinks=torch.arange(4.0),
        bias=lambda first, end: torch.zeros(4, end - first, 5),
    )
    picked = gathering.pick_heads(tensors, (2, 3), (1,))
    assert picked.q.dtype == np.float32
    np.testing.assert_array_equal(picked.sinks, [2, 3])
    seen = visible_block(picked.visible, n_queries=5, n_keys=5, n_heads=2)
    assert not seen[0].any()
    np.testing.assert_array_equal(seen[1], np.tril(np.ones((5, 5), bool)))
    assert picked.bias(1, 3).shape == (2, 2, 5)


def test_a_trace_becomes_the_same_layers():
    trace = attnviz.explain(
        "A cute teddy bear is reading", weights="random", n_heads=4, n_kv_heads=2, head="all",
        causal=True, d_k=8,
    )  # fmt: skip
    stack = stack_of(trace)
    assert stack.kv_index == (0, 0, 1, 1)
    again = reference.trace_heads(stack.layers[0])
    np.testing.assert_allclose(again["weights"], trace.stages["weights"][0], atol=1e-15)
    assert describe_mask(stack.layers[0]).facts["causal"] is True


def test_the_sink_of_a_trace_is_found_again():
    from attnviz.runs import explain

    layer = make_layer(6, n_heads=2, dtype=np.float64, sinks=np.array([0.7, -40.0]))

    class One(FakeSource):
        info = make_info(1, 2, 2, 8, 8)

        def run(self, tokens, layers, consume):
            consume(layer)

    run = Place(One(), (0,), "cpu", "float64").send("a b c d e f")
    trace = explain.gather(run, (0, 1))
    again = reference.trace_heads(stack_of(trace).layers[0])
    np.testing.assert_allclose(again["weights"], trace.stages["weights"][0], atol=1e-12)


def test_the_mean_over_heads_has_no_page():
    trace = attnviz.explain("a b", weights="random", n_heads=2, head="mean")
    with pytest.raises(UsageError, match="mean over heads"):
        stack_of(trace)
    assert trace._repr_html_() is None
    with pytest.raises(UsageError, match="mean over heads"):
        gathering.collect("a b", weights="random", n_heads=2, head="mean")


def test_the_same_numbers_make_the_same_bytes_and_name_no_place():
    stack = make_stack([make_layer(4)])
    assert build_page(stack) == build_page(stack)
    page = build_page(gathering.collect("a b c", weights="random"))
    for word in (str(Path.home()), str(Path.cwd()), gettempdir(), "\\u002f"):
        assert word not in page
    header = json.loads(re.search(r'id="page-header">(.*?)</script>', page)[1])
    assert header["source"]["sha256"] == gathering.collect("x", weights="random").source.sha256
    assert header["run"]["version"] == attnviz.__version__


def test_the_script_is_one_closure_and_can_touch_no_network():
    script = bundle()
    assert "import " not in script
    assert re.search(r"^export ", script, re.MULTILINE) is None
    for word in (
        "innerHTML",
        "eval(",
        "fetch(",
        "XMLHttpRequest",
        "document.write",
        "http:",
        "https:",
    ):
        # the namespace of SVG is a name, not an address
        assert word not in script.replace('"http://www.w3.org/2000/svg"', "")
    assert "</script" not in script
    page = build_page(make_stack([make_layer(1)]))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    assert policy == (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; "
        f"style-src 'sha256-{digest(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
