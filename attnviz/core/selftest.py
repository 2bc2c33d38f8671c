"""Attention solved by hand, to test the arithmetic of the machine it runs on.

What lives here: five cases small enough for paper, and their right values. What does not: pytest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attnviz.core import reference
from attnviz.records import LayerHeads, MaskRule


@dataclass(frozen=True, slots=True)
class Case:
    """One solved case: what it is, and the largest distance between ours and the right value."""

    name: str
    error: float

    @property
    def is_right(self) -> bool:
        return self.error <= 1e-12


def run_cases() -> Iterator[Case]:
    """Compute every case with the reference core and compare it with the solution on paper."""
    e = math.e
    two = _trace([[0.0, 1.0]], keys=[[1.0, 0.0], [0.0, 1.0]], scale=1.0)
    yield _case("two keys, scores 0 and 1: 1/(1+e), e/(1+e)", two, [[1 / (1 + e), e / (1 + e)]])

    flat = _trace([[0.0, 0.0]], keys=[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    yield _case("query 0: every key alike, 1/4", flat, [[0.25] * 4])

    one = _trace([[3.0, -2.0]], keys=[[1.0, 5.0]])
    yield _case("one key: weight 1", one, [[1.0]])

    causal = _trace(
        [[0.0], [0.0], [0.0]], keys=[[1.0], [1.0], [1.0]], visible=MaskRule(causal=True)
    )
    right: list[list[float]] = [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]]
    yield _case("causal, equal scores: 1, 1/2, 1/3", causal, right)

    large = _trace([[1000.0]], keys=[[1.0], [1.0 - math.log(2) / 1000]], scale=1.0)
    yield _case("scores of 1000 apart by ln 2: 2/3, 1/3", large, [[2 / 3, 1 / 3]])


def _trace(
    queries: list[list[float]],
    *,
    keys: list[list[float]],
    scale: float | None = None,
    visible: MaskRule | None = None,
) -> reference.Numbers:
    q_HLE, k_HSE = np.array([queries]), np.array([keys])
    heads = LayerHeads(
        q_HLE,
        k_HSE,
        k_HSE,
        scale=q_HLE.shape[-1] ** -0.5 if scale is None else scale,
        visible=visible or MaskRule(),
    )
    weights_LS: reference.Numbers = reference.trace_heads(heads)["weights"][0]
    return weights_LS


def _case(name: str, weights_LS: reference.Numbers, right: list[list[float]]) -> Case:
    return Case(name, float(np.abs(weights_LS - np.array(right)).max()))
