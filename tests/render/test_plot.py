"""``Trace.plot``: the numbers, colours and labels of a stage in axes of the caller's."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from attnviz.errors import UsageError
from attnviz.render.colors import color_of, masked_color
from attnviz.runs.explain import explain


def test_axes_hold_the_weights_with_labels_that_are_no_mathematics() -> None:
    trace = explain("$ x $ cute", weights="random", causal=True)
    figure = Figure(figsize=(4, 4), dpi=100)
    ax = trace.plot(ax=figure.subplots())
    (image,) = ax.get_images()
    shown = image.get_array()
    seen = trace.visible[0, 0]
    assert np.array_equal(np.ma.getmaskarray(shown), ~seen)
    assert np.array_equal(shown[seen], trace.stages["weights"][0, 0][seen])
    assert image.get_clim() == (0.0, 1.0)
    figure.canvas.draw()
    assert [t.get_text() for t in ax.get_yticklabels()] == ["$", "x", "$", "cute"]
    assert not any(t.get_parse_math() for t in (*ax.get_xticklabels(), *ax.get_yticklabels()))
    rgba = image.to_rgba(shown, bytes=True)
    assert tuple(rgba[0, 3, :3]) == masked_color("weights")
    assert tuple(rgba[0, 0, :3]) == color_of(1.0, "weights")


def test_many_tokens_are_labelled_at_every_nth() -> None:
    trace = explain(" ".join(["bear"] * 130), weights="random")
    ax = trace.plot(ax=Figure(figsize=(12, 12)).subplots(), stage="scores")
    assert list(ax.get_yticks()) == list(range(0, 130, 3))
    small = trace.plot(ax=Figure().subplots(), stage="scores")
    assert list(small.get_yticks()) == list(range(0, 130, 5))
    low, high = ax.get_images()[0].get_clim()
    assert low == -high


def test_vectors_and_whole_figures() -> None:
    trace = explain("a cute bear", weights="random", n_heads=4, head="all")
    assert isinstance(trace.plot(), Figure)
    with pytest.raises(UsageError, match="axes hold one head, this trace has 4"):
        trace.plot(ax=Figure().subplots())
    one = explain("a cute bear", weights="random")
    assert one.plot(ax=Figure().subplots(), stage="q").get_images()[0].get_array().shape == (3, 64)
    with pytest.raises(UsageError, match="stage"):
        one.plot(stage="nothing")
