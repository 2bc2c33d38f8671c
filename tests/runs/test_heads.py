"""``heads``: a score never stands without the weight that it rests on; the map names what the table ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnviz.core.measures.patterns import PATTERNS, excess
from attnviz.render.reports.heads import clear_names, names_of_heads, view
from attnviz.runs.heads import rank_heads

TEXTS = ["A cute teddy bear is reading", "the dog saw the bear and the bear ran"]


def test_H1_what_is_left_beside_the_sinks_is_shown_and_counts() -> None:
    found = rank_heads(TEXTS, weights="sample-8", no_sinks=True)
    assert found.rest is not None
    assert found.rest.shape == (1, 8)
    assert ((found.rest > 0) & (found.rest <= 1)).all()
    whole = excess(found.score, found.null) * found.rest
    assert np.allclose(np.nan_to_num(found.excess), np.nan_to_num(whole))
    plain = rank_heads(TEXTS, weights="sample-8")
    assert plain.rest is None
    whole = excess(plain.score, plain.null)
    assert np.allclose(np.nan_to_num(plain.excess), np.nan_to_num(whole))
    assert "weight left" in str(view(found))
    assert "weight left" not in str(view(plain))


def test_H1_a_head_that_parks_its_weight_is_not_named_after_the_rest() -> None:
    report = rank_heads(TEXTS, weights="sample-8", no_sinks=True)
    ones = np.ones_like(report.score)
    full = replace(report, excess=0.9 * ones, low=ones, null=0 * ones)
    assert names_of_heads(full)[0][0] != "mixed"
    parked = replace(full, excess=0.9 * 0.00017 * ones, score=0 * ones)
    assert names_of_heads(parked)[0][0] == "mixed"


def test_the_map_names_a_second_pattern_that_is_nearly_as_strong() -> None:
    report = rank_heads(TEXTS, weights="sample-8")
    score = np.zeros_like(report.score)
    first, induction = list(PATTERNS).index("first"), list(PATTERNS).index("induction")
    score[first, 0, 2], score[induction, 0, 2] = 0.95, 0.88
    score[first, 0, 3], score[induction, 0, 3] = 0.95, 0.3
    made = replace(report, score=score, excess=score, low=score, null=0 * score - 1)
    assert clear_names(made)[0][2] == ["first", "induction"]
    assert clear_names(made)[0][3] == ["first"]


@pytest.mark.slow
def test_H1_of_smollm2_is_no_induction_head_and_the_strongest_is_on_the_map(smollm2: Path) -> None:
    asked: dict[str, Any] = {"model": str(smollm2), "layer": 18}
    bare = rank_heads(TEXTS, no_sinks=True, **asked)
    place = list(PATTERNS).index("induction")
    assert bare.rest is not None
    assert bare.rest[0, 8] < 0.01
    assert bare.excess[place, 0, 8] < 0.02
    assert "induction" in clear_names(rank_heads(TEXTS, **asked))[0][6]
