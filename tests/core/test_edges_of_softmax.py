"""Where the softmax is at its edges: large sinks, blind rows, values that are no numbers, defaults."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attnviz.core import attend, reference
from attnviz.records import LayerHeads, MaskRule


def both(masked: Any, sinks: Any = None) -> list[tuple[Any, Any]]:
    """The softmax of both cores."""
    tensor = None if sinks is None else torch.tensor(sinks, dtype=torch.float64)
    found = attend.softmax(torch.tensor(masked, dtype=torch.float64), tensor)
    plain = reference.softmax(np.array(masked), None if sinks is None else np.array(sinks))
    return [plain, (found[0].numpy(), found[1].numpy())]


def test_a_sink_far_above_or_below_the_scores() -> None:
    for weights, lse in both([[[0.0, 0.0]]] * 2, [1000.0, -1000.0]):
        assert weights.tolist() == [[[0.0, 0.0]], [[0.5, 0.5]]]
        assert lse[:, 0] == pytest.approx([1000.0, math.log(2)])


def test_rows_that_see_nothing_with_and_without_a_sink() -> None:
    hidden = [[[-math.inf, -math.inf], [0.0, -math.inf]]]
    for weights, lse in both(hidden):
        assert weights.tolist() == [[[0.0, 0.0], [1.0, 0.0]]]
        assert lse.tolist() == [[-math.inf, 0.0]]
    for weights, lse in both(hidden, [0.5]):
        assert weights[0, 0].tolist() == [0.0, 0.0]
        assert weights[0, 1, 0] == pytest.approx(1 / (1 + math.exp(0.5)))
        assert lse[0].tolist() == pytest.approx([0.5, math.log(1 + math.exp(0.5))])


def test_caps_of_both_cores() -> None:
    scores = np.array([[[-3.0, 0.0, 8.0]]])
    wanted = [[[2 * math.tanh(x / 2) for x in (-3.0, 0.0, 8.0)]]]
    np.testing.assert_allclose(reference.cap(scores, 2.0), wanted)
    np.testing.assert_allclose(attend.cap(torch.tensor(scores), 2.0), wanted)
    assert reference.cap(scores, None) is scores
    assert attend.cap(torch.tensor(scores), None).tolist() == scores.tolist()


def test_values_that_are_no_numbers_reach_who_looks_and_keep_their_sign() -> None:
    inf, nan = math.inf, math.nan
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.0, 0.75], [1.0, 0.0, 0.0]]])
    v = torch.tensor([[[1.0, 2.0], [inf, 3.0], [-inf, nan]]])
    found = attend.blend(weights, v)[0].tolist()
    assert found[0] == [inf, 2.5]
    assert found[1][0] == -inf
    assert math.isnan(found[1][1])
    assert found[2] == [1.0, 2.0]
    plain = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    assert attend.blend(weights, plain)[0].tolist() == [[2.0, 3.0], [4.0, 5.0], [1.0, 2.0]]


def test_the_reference_leaves_out_only_what_nobody_sees() -> None:
    weights = np.array([[[0.0, 0.25, 0.75]]])
    seen = np.array([[[False, True, True]]])
    v = np.array([[[math.nan], [4.0], [8.0]]])
    assert reference.blend(weights, v, seen).tolist() == [[[7.0]]]


def random_layer(**more: Any) -> LayerHeads:
    draw = np.random.default_rng(5).standard_normal
    return LayerHeads(q=draw((4, 3, 2)), k=draw((2, 5, 2)), v=draw((2, 5, 3)), scale=0.5, **more)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sinks": {"sinks": np.array([0.5, -1.0, 2.0, 700.0])},
    "bias for each head": {"bias": np.random.default_rng(1).standard_normal((4, 3, 5))},
    "one bias": {"bias": np.random.default_rng(1).standard_normal((1, 3, 5))},
    "lazy bias": {"bias": lambda r0, r1: np.random.default_rng(1).standard_normal((4, 3, 5))[:, r0:r1]},
    "cap and bias": {"softcap": 1.5, "bias": np.random.default_rng(1).standard_normal((4, 3, 5))},
    "blind rows": {"visible": MaskRule(cells=np.array([[True] * 5, [False] * 5, [True, False] * 2 + [True]]))},
    "masks by head": {"visible": MaskRule(cells=np.random.default_rng(2).random((4, 3, 5)) > 0.4),
                      "sinks": np.array([0.5, -1.0, 2.0, 0.0])},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_dense_loops_and_torch_agree_on_every_stage(name: str) -> None:
    heads = random_layer(**CASES[name])
    traced = reference.trace_heads(heads)
    ours = attend.trace_heads(heads, dtype=torch.float64)
    assert set(ours) == set(traced)
    for stage, values in traced.items():
        np.testing.assert_allclose(ours[stage], values, atol=1e-13, err_msg=stage)
        assert ours[stage].dtype == (bool if stage == "visible" else np.float64)
    for head in range(4):
        weights, output = reference.attend_by_token(heads, head)
        np.testing.assert_allclose(weights, traced["weights"][head], atol=1e-13)
        np.testing.assert_allclose(output, traced["output"][head], atol=1e-13)
    for stage in ("bias", "capped"):
        assert (stage in traced) == ({"bias": "bias", "capped": "softcap"}[stage] in CASES[name])
    if "softcap" in CASES[name]:
        capped = 1.5 * np.tanh((traced["scaled"] + traced["bias"]) / 1.5)
        np.testing.assert_allclose(traced["capped"], capped, atol=1e-14)
    if "bias" in CASES[name]:
        assert traced["bias"].shape == (4, 3, 5)


def test_torch_works_on_the_cpu_in_float32_unless_told_otherwise() -> None:
    heads = random_layer()
    ours = attend.trace_heads(heads)
    assert ours["q"].tolist() == heads.q.astype(np.float32).tolist()
    given = attend.trace_heads(heads, device=torch.device("cpu"))
    np.testing.assert_array_equal(given["weights"], ours["weights"])
    made = attend.project(np.ones((2, 3)), np.ones((3, 4)), np.arange(4.0), n_heads=2)
    assert (made.dtype, made.device.type, made.shape) == (torch.float32, "cpu", (2, 2, 2))
    assert made.tolist() == [[[3, 4], [3, 4]], [[5, 6], [5, 6]]]
    assert made.is_contiguous()
    meta = attend.project(
        np.ones((2, 3)), np.ones((3, 4)), device=torch.device("cpu"), dtype=torch.bfloat16
    )
    assert (meta.dtype, meta.shape) == (torch.bfloat16, (1, 2, 4))


def test_settings_of_torch_are_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        attend.trace_heads(random_layer())
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_entropy_and_gradient_leave_weights_of_nothing_out() -> None:
    rows = np.array([[0.0, 0.0], [0.5, 0.25], [1.0, 0.0]])
    np.testing.assert_allclose(reference.entropy_bits(rows), [0, 0.5 + 0.5, 0])
    assert not np.signbit(reference.entropy_bits(rows)).any()
    for row, size in zip(rows, reference.softmax_gradient_norm(rows), strict=True):
        assert size == pytest.approx(np.linalg.norm(np.diag(row) - np.outer(row, row)))


def test_projections_and_groups_by_hand() -> None:
    x, w = np.array([[1.0, 2.0], [3.0, 4.0]]), np.arange(12.0).reshape(2, 6)
    found = reference.project(x, w, np.arange(6.0), n_heads=3)
    assert found.shape == (3, 2, 2)
    assert found.flags.c_contiguous
    wanted = x @ w + np.arange(6.0)
    for head in range(3):
        np.testing.assert_array_equal(found[head], wanted[:, 2 * head : 2 * head + 2])
    shared = reference.repeat_kv(np.arange(2.0)[:, None, None], 6)
    assert shared[:, 0, 0].tolist() == [0, 0, 0, 1, 1, 1]
    heads = replace(random_layer(), q=np.ones((6, 3, 2)))
    assert reference.attend_by_token(heads, 5)[0] == pytest.approx(
        reference.trace_heads(heads)["weights"][5]
    )
