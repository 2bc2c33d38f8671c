"""The sentence itself, shaded: the same numbers in colours, in words and in records."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import SENTENCE

from attnviz.errors import UsageError
from attnviz.render.colors import color_of
from attnviz.render.formats import plain, table
from attnviz.render.picture.shaded import LINE_PT, WIDTH_PT, shaded_height
from attnviz.render.screen import Screen
from attnviz.render.shapes import Label, Shaded
from attnviz.render.terminal.shaded import shaded_lines
from attnviz.render.views import text
from attnviz.runs.explain import explain

TRACE = explain(SENTENCE)
WEIGHTS = np.asarray(TRACE.stages["weights"])[0, 0]


def shape_of(*queries: int) -> Shaded:
    found = text.view(TRACE, queries=queries).shapes[-1]
    assert isinstance(found, Shaded)
    return found


def test_a_token_shades_the_text_by_its_own_weights() -> None:
    shape = shape_of(2)
    assert shape.shares == pytest.approx(WEIGHTS[2])
    assert (shape.marked, shape.top) == (2, 1.0)
    assert shape.notes[0].startswith("most: bear 99.8 %")


def test_without_a_token_it_is_how_much_each_is_looked_at() -> None:
    shape = shape_of()
    assert shape.shares == pytest.approx(WEIGHTS.mean(axis=0))
    assert shape.top == pytest.approx(WEIGHTS.mean(axis=0).max())
    assert shape.marked is None


def test_words_say_what_colours_say() -> None:
    out = plain.render(text.view(TRACE, queries=(2,)), Screen())
    assert "A cute [teddy] bear (100 %) is reading" in out


@pytest.mark.parametrize("width", [20, 40, 80])
def test_each_token_of_a_terminal_has_the_colour_of_its_share(width: int) -> None:
    out = table.render(text.view(TRACE, queries=(2,)), Screen(width=width, colors="truecolor"))
    painted = re.findall(r"48;2;(\d+);(\d+);(\d+)m([^\x1b]+)", out)
    assert [word for *_, word in painted] == ["A", "cute", "[teddy]", "bear", "is", "reading"]
    for (*rgb, _), share in zip(painted, WEIGHTS[2], strict=True):
        assert tuple(map(int, rgb)) == color_of(float(share))
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in out.splitlines()]
    assert max(map(len, lines[2:])) <= width


def test_a_picture_holds_every_token_on_its_ground(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "text.svg"
    done = cli("view", "text", SENTENCE, "-t", "teddy", "-o", str(path))
    assert done.code == 0, done.err
    svg = path.read_text(encoding="utf-8")
    dark = "#{:02x}{:02x}{:02x}".format(*color_of(float(WEIGHTS[2, 3])))
    assert dark in svg
    assert all(word in svg for word in SENTENCE.split())


def test_a_token_longer_than_a_line_is_cut_and_the_rest_goes_on() -> None:
    shape = Shaded(
        "t", (Label("x" * 50), Label("\x1b[2J"), Label("end")), np.array([0, 0.5, 1.0]), 1
    )
    lines = ["".join(p.text for p in line) for line in shaded_lines(shape, Screen(width=20))]
    assert [len(line) <= 20 for line in lines] == [True] * len(lines)
    assert "\x1b" not in "".join(lines)
    assert lines[-1].endswith("end")


def test_long_texts_go_over_lines_and_very_long_ones_are_refused() -> None:
    words = tuple(Label("word") for _ in range(100))
    shape = Shaded("t", words, np.zeros(100))
    assert shaded_height(shape) >= 100 * 4 * 5 / WIDTH_PT * LINE_PT
    long = explain("word " * 2001, weights="random", seed=0)
    with pytest.raises(UsageError, match="2001 tokens are too many to be read as one text"):
        text.view(long)


def test_records_hold_one_row_per_token(cli: Any) -> None:
    done = cli("view", "text", SENTENCE, "-t", "teddy", "--format", "jsonl")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["key_label"] for row in rows if "share" in row] == SENTENCE.split()
    shares = [row["share"] for row in rows if "share" in row]
    assert shares == pytest.approx(WEIGHTS[2])
