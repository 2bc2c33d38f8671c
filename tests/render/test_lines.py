"""Links as lines of text: a line for each query, its strongest keys first, within the width; curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len

from attnviz.render.screen import Screen
from attnviz.render.shapes import Label, Links, Series
from attnviz.render.terminal.lines import can_draw, links_lines, series_lines

NAMES = tuple(Label(name) for name in ("teddy", "猫猫", "bear", "is", "reading"))
LINKS = ((0, 2, 0.998), (4, 3, 0.645), (4, 0, 0.23), (4, 1, 0.11), (4, 2, 0.02), (1, 1, 0.5))


def drawn(width: int = 80, encoding: str = "utf-8") -> list[str]:
    shape = Links("links", NAMES, NAMES, LINKS)
    return list(links_lines(shape, Screen(width=width, encoding=encoding)))


def test_a_line_says_where_its_query_looks_most_strongest_first() -> None:
    lines = drawn()
    assert len(lines) == len(NAMES)
    assert lines[0].split()[:6] == ["0", "teddy", "→", "bear", "99.8", "%"]
    words = lines[4].split()
    assert [words.index(key) for key in ("is", "teddy", "猫猫")] == [3, 7, 11]
    assert "bear" not in lines[4], "three keys at most"
    assert lines[3] == "3 is ·", "no link, no key"


def test_a_stronger_link_has_a_longer_bar() -> None:
    bars = [sum(c in "█▌" for c in line) for line in drawn(50)]
    assert bars[0] > bars[4] > 0


def test_keys_stand_below_each_other() -> None:
    lines = drawn()
    places = {cell_len(line[: line.index("→")]) for line in lines if "→" in line}
    assert len(places) == 1


@pytest.mark.parametrize("width", [24, 40, 80, 200])
def test_lines_stay_within_the_width(width: int) -> None:
    assert max(map(cell_len, drawn(width))) <= width


def test_a_poor_encoding_has_bars_too() -> None:
    assert all(line.isascii() for line in drawn(encoding="ascii") if "\\u" not in line)
    assert "->" in drawn(encoding="ascii")[0]


def test_a_curve_is_pooled_by_what_is_farthest_from_0() -> None:
    values = np.zeros(1000)
    values[137], values[801] = 2.0, -1.0
    curve = Series("c", np.arange(1000.0), {"a": values}, "place", "value")
    line, told = series_lines(curve, Screen(width=40))
    assert "█" in line
    assert "▁" in line
    assert "from −1 to 2; place 0 to 999" in told
    assert can_draw(Screen())
    assert not can_draw(replace(Screen(), encoding="latin-1"))
