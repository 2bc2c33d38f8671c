"""On a GPU, in full float32, the cores equal the same dense reference as on a CPU."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from layer_cases import FACTOR, Case, cases, check_stream

from attnviz.core import attend, reference
from attnviz.core.device import choose_device
from attnviz.core.stream.rectangle import rectangle
from attnviz.core.stream.stream import stream

# the device is the same for every example
some = settings(
    max_examples=150 * FACTOR,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
TOLERANCES = [(torch.float64, 1e-12), (torch.float32, 1e-5)]


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@some
@given(case=cases(loud=False))
def test_stream(cuda: torch.device, dtype: torch.dtype, tolerance: float, case: Case) -> None:
    check_stream(case, dtype=dtype, tolerance=tolerance, device=cuda)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@some
@given(case=cases(largest=60, loud=False))
def test_attend(cuda: torch.device, dtype: torch.dtype, tolerance: float, case: Case) -> None:
    found = attend.trace_heads(case.heads, device=cuda, dtype=dtype)
    for name, expected in reference.trace_heads(case.heads).items():
        size = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
        np.testing.assert_allclose(
            found[name], expected, rtol=0, atol=tolerance * size, err_msg=name
        )


def test_tf32_asked_for_elsewhere_does_not_reach_the_cores(cuda: torch.device) -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 512, 64))
    heads = cases_layer(q, k, v)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = attend.trace_heads(heads, device=cuda)
        streamed = stream(heads, device=cuda)
    finally:
        torch.set_float32_matmul_precision(before)
    expected = reference.trace_heads(heads)
    np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-4)
    np.testing.assert_allclose(streamed.output_HLF, expected["output"], atol=1e-5)


def test_a_rectangle_on_the_device(cuda: torch.device) -> None:
    rng = np.random.default_rng(1)
    heads = cases_layer(*rng.standard_normal((3, 1, 300, 16)))
    part = rectangle(heads, 0, rows=(10, 20), keys=(100, 300), device=cuda)
    expected = reference.trace_heads(heads)["weights"][0, 10:20, 100:300]
    np.testing.assert_allclose(part, expected, atol=1e-6)


def test_same_bytes_twice(cuda: torch.device) -> None:
    rng = np.random.default_rng(2)
    heads = cases_layer(*rng.standard_normal((3, 1, 3000, 32)))
    first, second = stream(heads, device=cuda), stream(heads, device=cuda)
    for field in dataclasses.fields(first):
        ours, again = getattr(first, field.name), getattr(second, field.name)
        if isinstance(ours, np.ndarray):
            assert ours.tobytes() == again.tobytes(), field.name


def test_auto_takes_the_gpu(cuda: torch.device) -> None:
    assert choose_device("auto") == cuda


def cases_layer(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> reference.LayerHeads:
    return reference.LayerHeads(q, k, v, q.shape[-1] ** -0.5)
