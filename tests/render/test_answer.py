"""The answer of a walk: what is said of each query, of several heads and of long texts."""

from __future__ import annotations

import pytest

from attnviz import explain
from attnviz.render import answer
from attnviz.render.screen import Screen
from attnviz.render.shapes import Heatmap, Table
from attnviz.render.text import write_text


def remarks(shape: Heatmap) -> list[str]:
    return [write_text(text, Screen()) for text in shape.remarks]


def test_each_query_has_its_key_and_share() -> None:
    (shape,) = answer.shapes(explain("A cute teddy bear is reading"))
    assert isinstance(shape, Heatmap)
    assert remarks(shape)[1:3] == ["cute → is 46.8 %", "teddy → bear 99.8 %"]


def test_itself_and_what_if_are_named() -> None:
    (shape,) = answer.shapes(explain("teddy bear", causal=True, scale=0.5))
    assert isinstance(shape, Heatmap)
    assert remarks(shape)[0] == "teddy → itself 100.0 %"
    assert shape.title.startswith("sample · scores / 2 · causal · checked: row sums ±1e-")


def test_several_heads_are_columns_and_the_rest_is_counted() -> None:
    trace = explain("teddy bear", weights="random", n_heads=10, head="all")
    (shape,) = answer.shapes(trace)
    assert isinstance(shape, Table)
    assert [str(c.name) for c in shape.columns] == ["query", *(f"L0.H{n}" for n in range(8))]
    assert shape.notes[0].startswith("2 more heads")


def test_a_long_text_is_pooled_and_its_links_are_those_between_words() -> None:
    text = " ".join(["the teddy bear is reading a book about", "the sea and the old man"] * 5)
    (shape,) = answer.shapes(explain(text))
    assert isinstance(shape, Heatmap)
    assert shape.pooled == 6
    assert len(shape.panels[0].values) == 12
    assert len(shape.remarks) <= 9
    assert all(" → " in remark and "→ itself" not in remark for remark in remarks(shape))
    assert len({remark.partition(":")[2] for remark in remarks(shape)}) == len(shape.remarks)


@pytest.mark.parametrize("label", ["\x1b[2J", "\u202ex"])
def test_names_are_visible(label: str) -> None:
    (shape,) = answer.shapes(explain(f"a {label} b", weights="random"))
    assert isinstance(shape, Heatmap)
    assert "\x1b" not in "".join(remarks(shape))
    assert "\u202e" not in "".join(remarks(shape))
