"""Comparing traces against loops: aligned rows, cosines, blame, and where they are not known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attnviz
from attnviz.core.measures.compare import (
    align_positions,
    align_words,
    blame,
    compare_traces,
    cosine,
    jensen_shannon_bits,
    spread,
)

PAIRS = [(0, 1), (1, None), (2, 0), (None, 2), (None, 3)]
ROWS = [(0, 1), (2, 2)]


@pytest.fixture(scope="module")
def traces() -> tuple[Any, Any]:
    asked: dict[str, Any] = {
        "weights": "random",
        "n_heads": 2,
        "head": "all",
        "d_k": 3,
        "d_model": 5,
    }
    return attnviz.explain("a b c", **asked), attnviz.explain("b a x y", seed=1, **asked)


def compared(a: Any, b: Any, **more: Any) -> Any:
    return compare_traces(a, b, ROWS, PAIRS, names=("a", "b"), **more)


def bits(p: list[float], q: list[float]) -> float:
    total = 0.0
    for side in (p, q):
        for x, y, z in zip(side, p, q, strict=True):
            total += x * math.log2(x / ((y + z) / 2)) / 2 if x > 0 else 0.0
    return total


def test_every_number_of_a_comparison(traces: tuple[Any, Any]) -> None:
    a, b = (replace(t, about=replace(t.about, notices=("told",))) for t in traces)
    found = compared(a, b)
    assert (found.a, found.b, found.names, found.notices) == (a, b, ("a", "b"), ("told",))
    assert found.rows == tuple(ROWS)
    assert found.key_pairs == tuple(PAIRS)
    for head in range(2):
        for row, (i, j) in enumerate(ROWS):
            w_a, w_b = (t.stages["weights"][0, head, q] for t, q in ((a, i), (b, j)))
            side_a = [0.0 if left is None else w_a[left] for left, _ in PAIRS]
            side_b = [0.0 if right is None else w_b[right] for _, right in PAIRS]
            np.testing.assert_array_equal(found.weights_a[0, head, row], side_a)
            np.testing.assert_array_equal(found.weights_b[0, head, row], side_b)
            assert found.bits[0, head, row] == pytest.approx(bits(side_a, side_b), abs=1e-12)
            z_a, z_b = a.stages["output"][0, head, i], b.stages["output"][0, head, j]
            z = z_a @ z_b / np.linalg.norm(z_a) / np.linalg.norm(z_b)
            assert found.z_cosine[0, head, row] == pytest.approx(z)
            change = z_b - z_a
            for place, (left, right) in enumerate(PAIRS):
                part_a = 0 if left is None else w_a[left] * a.stages["v"][0, head, left]
                part_b = 0 if right is None else w_b[right] * b.stages["v"][0, head, right]
                share = (part_b - part_a) @ change / (change @ change)
                assert found.blame[0, head, row, place] == pytest.approx(share, abs=1e-12)
    for row, (i, j) in enumerate(ROWS):
        x_a, x_b = np.asarray(a.x)[0, i], np.asarray(b.x)[0, j]
        wanted = x_a @ x_b / np.linalg.norm(x_a) / np.linalg.norm(x_b)
        assert found.x_cosine[0, row] == pytest.approx(wanted)
    assert found.largest_bits == pytest.approx(found.bits.mean(-1).max())
    assert (found.source, found.run, found.layers, found.heads) == (a.source, a.run, a.layers, a.heads)  # fmt: skip


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("missing", ["output", "v", "x"])
def test_what_one_side_does_not_know_is_not_compared(
    traces: tuple[Any, Any], side: str, missing: str
) -> None:
    sides = dict(zip("ab", traces, strict=True))
    if missing == "x":
        sides[side] = replace(sides[side], x=None)
    else:
        stages = {n: v for n, v in sides[side].stages.items() if n != missing}
        sides[side] = replace(sides[side], stages=stages)
    found = compared(sides["a"], sides["b"])
    assert (found.x_cosine is None) == (missing == "x")
    assert (found.z_cosine is None) == (found.blame is None) == (missing != "x")


def test_outputs_or_inputs_of_other_widths_are_not_compared(traces: tuple[Any, Any]) -> None:
    a, _ = traces
    wide = attnviz.explain("b a x y", weights="random", n_heads=2, head="all", d_k=4, d_model=6)
    found = compared(a, wide)
    assert found.z_cosine is None
    assert found.blame is None
    assert found.x_cosine is None
    assert found.bits.shape == (1, 2, 2)


def test_rows_that_lost_a_share_to_a_sink_have_a_cell_more() -> None:
    p, q = np.array([0.25, 0.5]), np.array([0.5, 0.5])
    assert jensen_shannon_bits(p, q) == pytest.approx(bits([0.25, 0.5, 0.25], [0.5, 0.5, 0]))
    r = np.array([0.25, 0.0])
    assert jensen_shannon_bits(p, r) == pytest.approx(bits([0.25, 0.5, 0.25], [0.25, 0, 0.75]))
    # what rounding leaves is no share, and a row above 1 has none to lose
    near = np.array([0.5, 0.5 - 1e-10])
    assert jensen_shannon_bits(near, q) < 1e-18
    over = np.array([0.5, 0.5 + 1e-7])
    assert 0 <= jensen_shannon_bits(over, q) < 1e-12
    # a share of more than 1e-9 counts
    lost = np.array([0.5, 0.5 - 4e-9])
    assert jensen_shannon_bits(lost, q) == pytest.approx(4e-9 / 2, rel=1e-3)
    same = np.array([[0.5, 0.5], [1.0, 0.0]])
    np.testing.assert_array_equal(jensen_shannon_bits(same, same[:, ::-1]), [0.0, 1.0])


def test_cosines_stay_within_1_and_zeros_have_none() -> None:
    a = np.array([[3.0, 4.0], [0.0, 0.0], [1e-200, 0.0]])
    found = cosine(a, np.array([[4.0, 3.0], [0.0, 0.0], [0.0, 1.0]]))
    assert found[0] == pytest.approx(24 / 25)
    assert cosine(np.array([3.0, 4.0]), np.array([3.0, 0.0])) == pytest.approx(0.6)
    assert np.isnan(found[1])
    draw = np.random.default_rng(0).standard_normal((200, 3))
    assert (cosine(draw, 3 * draw) <= 1).all()
    assert (cosine(draw, -3 * draw) >= -1).all()
    assert (cosine(draw, draw.copy()) == 1).all()


def test_alignment_in_the_order_of_the_first_text() -> None:
    assert align_words(["x", "Y", "y"], ["y", "z", "Y", "x"]) == [(0, 3), (1, 0), (2, 2), (None, 1)]
    assert align_words([], ["b", "a", "b"]) == [(None, 0), (None, 1), (None, 2)]
    assert align_words(["STRASSE"], ["straße"]) == [(0, 0)]
    assert align_positions(3, 1) == [(0, 0), (1, None), (2, None)]
    assert align_positions(0, 0) == []
    assert align_positions(2, 2) == [(0, 0), (1, 1)]


def test_spread_and_blame_with_nothing() -> None:
    np.testing.assert_array_equal(spread(np.array([[5.0, 7.0]]), [(1, None), (None, 0), (0, 1)], 0), [[7, 0, 5]])  # fmt: skip
    np.testing.assert_array_equal(spread(np.array([5.0, 7.0]), [(1, None), (None, 0)], 1), [0, 5])
    np.testing.assert_array_equal(blame(np.ones((3, 2)), np.ones((3, 2))), [0, 0, 0])
    assert blame(np.zeros((2, 1)), np.array([[3.0], [-1.0]])).tolist() == [1.5, -0.5]
