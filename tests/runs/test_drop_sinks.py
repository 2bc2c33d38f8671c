"""Weights without attention sinks: rows rescaled, what remained said in every title and record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import SENTENCE, Result

from attnviz import explain
from attnviz.core.measures.flow import kept_share, sinks_of
from attnviz.errors import UsageError
from attnviz.runs.compare import compare
from attnviz.runs.drop_sinks import drop_sinks


def test_rows_are_the_rest_rescaled_and_say_how_much_that_was() -> None:
    whole = explain(SENTENCE)
    found = drop_sinks(whole)
    weights, before = found.stages["weights"][0, 0], whole.stages["weights"][0, 0]
    assert not weights[:, 0].any()
    assert np.allclose(weights.sum(axis=-1), 1)
    assert np.allclose(weights[3, 1:] / weights[3, 2], before[3, 1:] / before[3, 2])
    assert found.run.overrides["kept_weight"] == pytest.approx(1 - before[:, 0].mean())
    assert not found.visible[..., 0].any()
    assert found.visible[..., 1:].all()


def test_a_row_that_looks_only_at_the_sink_is_zero() -> None:
    found = drop_sinks(explain(SENTENCE, causal=True))
    assert not found.stages["weights"][0, 0, 0].any()
    assert not found.visible[0, 0, 0].any()


def test_special_tokens_are_sinks_and_one_token_is_none_to_show() -> None:
    assert sinks_of(explain("[CLS] a").tokens).tolist()[0]
    assert kept_share(np.array([[0.0, 0.0]]), np.array([True, False])).tolist() == [1.0]
    with pytest.raises(UsageError, match="no token of this text"):
        drop_sinks(explain("teddy"))


def test_both_sides_of_a_comparison_lose_theirs() -> None:
    found = compare("the bear ate honey", "I cannot bear the noise", token="bear", no_sinks=True)
    assert found.z_cosine is None
    assert found.weights_a[0, 0, 0].sum() == pytest.approx(1)
    plain = compare("the bear ate honey", "I cannot bear the noise", token="bear")
    assert plain.weights_a[0, 0, 0].max() < found.weights_a[0, 0, 0].max()


@pytest.mark.parametrize("view", ["links", "grid", "entropy", "heatmap", "text"])
def test_every_view_of_weights_says_what_remained(cli: Callable[..., Result], view: str) -> None:
    done = cli("view", view, SENTENCE, "--no-sinks")
    assert done.code == 0
    assert "no sinks, 91 % of weight" in done.out


def test_other_views_refuse(cli: Callable[..., Result]) -> None:
    done = cli("view", "neuron", SENTENCE, "-t", "bear", "-k", "is", "--no-sinks")
    assert done.code == 2
    assert "entropy, grid, heatmap, links, text" in done.err


def test_screens_pictures_and_records_of_the_rest_are_told_apart(
    cli: Callable[..., Result], tmp_path: Path
) -> None:
    assert "91 % of its weight" in cli("heatmap", SENTENCE, "--no-sinks", "--width", "200").out
    compared = cli("compare", SENTENCE, "a bear is reading", "-t", "bear", "--no-sinks").out
    assert f"A: {SENTENCE} · no sinks, 91 % of weight" in compared
    path = tmp_path / "l.png"
    assert cli("view", "links", SENTENCE, "--no-sinks", "-o", str(path)).code == 0
    with Image.open(path) as picture:
        facts = json.loads(picture.info["Description"])
    assert "left out" in facts["overrides"]["no_sinks"]
