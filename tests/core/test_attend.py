"""One dense block in torch: cases solvable by hand, trouble cases, and precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attnviz.core import attend, reference
from attnviz.errors import InputError, UsageError
from attnviz.records import LayerHeads, MaskRule

BASE = np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])


def layer(q, k=None, v=None, **rest):
    k = q if k is None else k
    v = k if v is None else v
    rest.setdefault("scale", 1 / math.sqrt(np.shape(q)[2]))
    return LayerHeads(
        q=np.asarray(q, float), k=np.asarray(k, float), v=np.asarray(v, float), **rest
    )


def trace(heads, dtype=torch.float64, **rest):
    return attend.trace_heads(heads, dtype=dtype, **rest)


def test_two_keys_share_as_one_over_one_plus_e():
    stages = trace(layer([[[1.0]]], [[[1.0], [0.0]]], [[[1.0], [0.0]]], scale=1.0))
    assert stages["weights"][0, 0] == pytest.approx([math.e / (1 + math.e), 1 / (1 + math.e)])
    assert stages["output"][0, 0, 0] == pytest.approx(0.7310585786300049)
    assert stages["lse"][0, 0] == pytest.approx(math.log(1 + math.e))


def test_base_example():
    stages = trace(layer(BASE))
    assert stages["scores"][0].tolist() == [[1, 0, 1], [0, 1, 1], [1, 1, 2]]
    assert stages["weights"][0] == pytest.approx(
        np.array(
            [
                [0.4011121, 0.1977758, 0.4011121],
                [0.1977758, 0.4011121, 0.4011121],
                [0.2482551, 0.2482551, 0.5034898],
            ]
        ),
        abs=1e-7,
    )


def test_base_example_causal():
    stages = trace(layer(BASE, visible=MaskRule(causal=True)))
    assert stages["weights"][0] == pytest.approx(
        np.array([[1, 0, 0], [0.3302385, 0.6697615, 0], [0.2482551, 0.2482551, 0.5034898]]),
        abs=1e-7,
    )
    assert stages["masked"][0, 0].tolist()[1:] == [-math.inf, -math.inf]


def test_M1_a_query_that_sees_nothing():
    cells = np.array([[1, 0, 0], [0, 0, 0], [1, 1, 1]], bool)
    stages = trace(layer(BASE, visible=MaskRule(cells=cells)))
    assert stages["weights"][0, :2].tolist() == [[1, 0, 0], [0, 0, 0]]
    assert stages["output"][0, 1].tolist() == [0, 0]
    assert stages["lse"][0, 1] == -math.inf
    assert stages["weights"][0, 2] == pytest.approx([0.2482551, 0.2482551, 0.5034898], abs=1e-7)


def test_M5_divided_by_the_root_of_the_width_of_a_head():
    q = np.zeros((1, 1, 64))
    k = np.zeros((1, 2, 64))
    q[0, 0, 0], k[0, :, 0] = 1.0, [16.0, 8.0]
    stages = trace(layer(q, k))
    assert stages["scaled"][0, 0].tolist() == [2.0, 1.0]
    assert stages["weights"][0, 0] == pytest.approx([0.7310586, 0.2689414], abs=1e-7)


@pytest.mark.parametrize("where", ["key", "value"])
def test_M7_nothing_leaks_from_a_hidden_key_that_is_not_a_number(where):
    x = np.array([[[0.0, 1, 2, 3], [4, 5, 6, 7]]])
    k, v = x.copy(), x.copy()
    (k if where == "key" else v)[0, 1, 2] = math.nan
    stages = trace(layer(x, k, v, visible=MaskRule(key_visible=np.array([True, False]))))
    assert stages["weights"][0].tolist() == [[1, 0], [1, 0]]
    assert stages["output"][0].tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_M7_a_visible_value_that_is_not_a_number_is_shown_to_those_who_see_it():
    v = np.ones((2, 4, 3))
    v[1, 2, 1], v[0, 3, 0] = math.nan, math.inf
    rng = np.random.default_rng(1)
    q = rng.normal(size=(2, 4, 3))
    output = trace(layer(q, q, v, visible=MaskRule(causal=True)))["output"]
    found = np.isnan(output)
    assert found.sum() == 2
    assert found[1, 2:, 1].all()
    assert np.isinf(output[0, 3, 0])
    assert np.isfinite(output[0, :3]).all()


def test_P7_softcap_comes_after_the_scale_and_before_the_mask():
    stages = trace(layer([[[1.0]]], [[[100.0], [60.0]]], scale=1.0, softcap=50.0))
    assert stages["capped"][0, 0] == pytest.approx([48.2013790, 41.6827304], abs=1e-7)
    assert stages["weights"][0, 0] == pytest.approx([0.9985265, 0.0014735], abs=1e-7)


def test_P5_a_window_counts_the_query_itself():
    zero = np.zeros((1, 5, 2))
    stages = trace(layer(zero, v=np.eye(5)[None], visible=MaskRule(causal=True, window=3)))
    third = pytest.approx(1 / 3)
    assert stages["output"][0, 4].tolist() == [0, 0, third, third, third]
    assert stages["output"][0, 1].tolist() == [0.5, 0.5, 0, 0, 0]


def test_large_scores_do_not_overflow():
    stages = trace(layer([[[1.0]]], [[[3000.0], [2999.0]]], scale=1.0), dtype=torch.float32)
    assert stages["weights"][0, 0] == pytest.approx([0.7310586, 0.2689414], abs=1e-6)


def test_a_sink_takes_its_share():
    stages = trace(layer([[[0.0]]], [[[1.0], [1.0]]], sinks=np.array([math.log(2.0)])))
    assert stages["weights"][0, 0].tolist() == pytest.approx([0.25, 0.25])
    assert stages["lse"][0, 0] == pytest.approx(math.log(4.0))


def test_half_precision_sums_in_float32():
    x = np.full((1, 2, 64), 300.0)  # q·k = 5.76 million: far beyond float16's 65504
    stages = trace(layer(x), dtype=torch.float16)
    assert stages["scores"][0, 0, 0] == 64 * 300.0**2
    assert stages["weights"][0].tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float16, 10), (torch.bfloat16, 7)])
def test_half_precision_rounds_what_is_stored(dtype, bits):
    x = np.array([[[1 + 2.0**-bits, 1 + 2.0 ** -(bits + 2)]]])
    stages = trace(layer(x), dtype=dtype)
    assert stages["q"][0, 0].tolist() == [1 + 2.0**-bits, 1.0]


def test_a_number_that_half_precision_cannot_hold_is_refused():
    with pytest.raises(UsageError, match="k holds 70000, which float16 cannot"):
        trace(layer(BASE, BASE * 70000), dtype=torch.float16)


def test_project_cuts_heads_as_the_reference_does():
    rng = np.random.default_rng(2)
    x_LD, w_DX, b_X = rng.normal(size=(5, 6)), rng.normal(size=(6, 8)), rng.normal(size=8)
    ours = attend.project(x_LD, w_DX, b_X, n_heads=4, dtype=torch.float64)
    assert ours.shape == (4, 5, 2)
    np.testing.assert_allclose(
        ours.numpy(), reference.project(x_LD, w_DX, b_X, n_heads=4), atol=1e-13
    )


def test_a_subset_keeps_each_head_with_its_own_keys_bias_sink_and_mask():
    rng = np.random.default_rng(3)
    heads = layer(
        rng.normal(size=(6, 4, 3)),
        rng.normal(size=(3, 5, 3)),
        rng.normal(size=(3, 5, 2)),
        bias=rng.normal(size=(6, 4, 5)),
        sinks=rng.normal(size=6),
        visible=MaskRule(
            cells=rng.random((6, 4, 5)) < 0.8, where=lambda h, q, k: (h + q + k) % 3 > 0
        ),
    )
    full = reference.trace_heads(heads)
    part = trace(heads, subset=[5, 2])
    assert set(part) == set(full)
    for name, stage in part.items():
        np.testing.assert_allclose(stage, full[name][[5, 2]], atol=1e-12, err_msg=name)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3), (2, 3), (2, 3)), "three axes"),
        (((1, 2, 3), (1, 2, 4), (1, 2, 4)), "differ in width"),
        (((1, 2, 3), (1, 2, 3), (1, 3, 3)), "one value for every key"),
        (((3, 2, 3), (2, 2, 3), (2, 2, 3)), "cannot share"),
        (((1, 2, 3), (1, 0, 3), (1, 0, 3)), "one key expected"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, message):
    q, k, v = (np.zeros(shape) for shape in shapes)
    with pytest.raises(InputError, match=message):
        attend.trace_heads(LayerHeads(q=q, k=k, v=v, scale=1.0))


def test_a_head_that_is_not_there():
    with pytest.raises(UsageError, match="head 1 does not exist: the layer has 1 heads, 0 to 0"):
        trace(layer(BASE), subset=[1])


@pytest.mark.parametrize("kind", ["big-endian", "read-only", "reversed", "column-major", "torch"])
def test_any_memory_layout_reads_right(kind):
    plain = np.arange(12, dtype=np.float64).reshape(1, 4, 3)
    odd = {
        "big-endian": lambda: plain.astype(">f8"),
        "read-only": lambda: np.frombuffer(plain.tobytes()).reshape(1, 4, 3),
        "reversed": lambda: np.ascontiguousarray(plain[:, ::-1])[:, ::-1],
        "column-major": lambda: np.asfortranarray(plain),
        "torch": lambda: torch.from_numpy(plain),
    }[kind]()
    stages = attend.trace_heads(LayerHeads(q=odd, k=odd, v=odd, scale=1.0), dtype=torch.float64)
    assert (stages["q"] == plain).all()
