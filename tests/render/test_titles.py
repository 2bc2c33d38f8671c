"""Titles of screens and pictures: two that differ in what they are of differ in their words."""

from __future__ import annotations

from attnviz import explain
from attnviz.render.titles import name_of, sentence_of, title_of, what_if


def test_every_what_if_and_sentence_is_in_the_title() -> None:
    plain = title_of(explain("teddy bear"), "weights")
    assert plain == 'weights · L0.H0 · sample · "teddy bear"'
    changed = [
        title_of(explain("teddy bear", **changes), "weights")
        for changes in ({"causal": True}, {"window": 1}, {"scale": "none"}, {"words": True})
    ]
    changed.append(title_of(explain("teddy bears"), "weights"))
    changed.append(title_of(explain("teddy bear", weights="random", seed=7), "weights"))
    assert len({plain, *changed}) == 7
    assert changed[2] == 'weights · L0.H0 · sample · scale 1 · "teddy bear"'


def test_seed_line_breaks_and_controls() -> None:
    assert name_of(explain("a", weights="random", seed=7).source).endswith(", seed 7")
    assert sentence_of("one\ntwo\x1b[2J") == '"one two␛[2J"'
    assert sentence_of("猫" * 40, 8) == '"猫猫猫…"'
    assert list(what_if({"causal": False, "mask": ""})) == ["not causal"]
