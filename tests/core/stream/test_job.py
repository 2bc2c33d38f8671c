"""When scores need their maximum subtracted: exactly where they could leave the safe range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from attnviz.core.placing import place_heads
from attnviz.core.stream import stream as streaming
from attnviz.core.stream.job import LOG2_E, SAFE_POWER, not_finite
from attnviz.core.stream.plan import plan_stream
from attnviz.records import LayerHeads

EDGE = 40 / math.log2(math.e)  # 27.7: 2^±40


def job_of(q: Any, k: Any, scale: float = 1.0, **more: Any) -> Any:
    q, k = np.asarray(q, float)[None], np.asarray(k, float)[None]
    heads = LayerHeads(q=q, k=k, v=np.ones((*k.shape[:2], 1)), scale=scale, **more)
    placed = place_heads(heads, device=torch.device("cpu"), dtype=torch.float64)
    return streaming._job(placed, plan_stream(placed, figures=(), dtype=torch.float64), ())


@pytest.mark.parametrize(
    ("q", "k", "more", "needs"),
    [
        ([[EDGE - 0.01, 0]], [[1, 0]], {}, False),
        ([[EDGE + 0.01, 0]], [[1, 0]], {}, True),
        ([[1, 0]], [[1, 0]], {"scale": -EDGE - 0.01}, True),
        ([[1, 0]], [[1, 0]], {"scale": -EDGE + 0.01}, False),
        ([[3, 4], [0, 0]], [[0, 0], [3, 4]], {"scale": (EDGE + 0.1) / 25}, True),
        ([[3, 4], [0, 0]], [[0, 0], [3, 4]], {"scale": (EDGE - 0.1) / 25}, False),
        ([[1, 0]] * 9, [[1, 0]] * 9, {"scale": EDGE - 0.1}, False),
        ([[99, 0]], [[1, 0]], {"softcap": EDGE - 0.1}, False),
        ([[99, 0]], [[1, 0]], {"softcap": EDGE + 0.1}, True),
        ([[1, 0]], [[1, 0]], {"softcap": 2 * EDGE}, False),
        ([[1, 0]], [[1, 0]], {"sinks": np.array([EDGE - 0.1])}, False),
        ([[1, 0]], [[1, 0]], {"sinks": np.array([-EDGE - 0.1])}, True),
        ([[1, 0]], [[1, 0]], {"bias": np.zeros((1, 1, 1))}, True),
        ([[math.nan, 0]], [[1, 0]], {}, True),
    ],
)
def test_a_maximum_is_looked_for_beyond_40_powers_of_two(
    q: Any, k: Any, more: Any, needs: bool
) -> None:
    job = job_of(q, k, **more)
    assert job.needs_maximum is needs
    factor = 1 / more["softcap"] if "softcap" in more else 1.0 if needs else LOG2_E
    assert job.q_factor == pytest.approx(more.get("scale", 1.0) * factor)
    assert job.bias_factor == pytest.approx(factor)
    assert job.unit == (1.0 if needs else LOG2_E)
    assert (job.sink is None) == ("sinks" not in more)
    assert SAFE_POWER == 40.0


def test_values_that_are_no_numbers_are_found_by_key() -> None:
    v = torch.ones(4, 2)
    assert not_finite(v) == {}
    v[1, 0], v[3, 1] = math.nan, -math.inf
    found = not_finite(v)
    assert list(found) == [1, 3]
    assert found[3].tolist() == [1.0, -math.inf]
    large = torch.full((2, 2), 3e38)
    assert not_finite(large) == {}  # only their sum is infinite
