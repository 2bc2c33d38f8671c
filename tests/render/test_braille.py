"""Lines between tokens in braille: each ends at its key's line, within the width, three a query."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnviz.render.screen import Screen
from attnviz.render.shapes import Label, Links, Series
from attnviz.render.terminal.braille import can_draw, links_lines, series_lines

NAMES = tuple(Label(name) for name in ("teddy", "猫猫", "bear", "is", "reading"))


def drawn(*links: tuple[int, int, float], width: int = 60) -> list[str]:
    shape = Links("links", NAMES, NAMES, links)
    return list(links_lines(shape, Screen(width=width)))


def is_dot(char: str) -> bool:
    return "\u2800" < char <= "\u28ff"


@pytest.mark.parametrize("query", range(5))
@pytest.mark.parametrize("key", range(5))
def test_a_line_leaves_its_query_and_ends_at_its_key(query: int, key: int) -> None:
    lines = drawn((query, key, 1.0))
    dots = [[at for at, char in enumerate(line) if is_dot(char)] for line in lines]
    begins = [place[0] for place in dots if place]
    assert dots[query][0] == min(begins)
    assert max(range(5), key=lambda n: dots[n][-1] if dots[n] else -1) == key
    low, high = sorted((query, key))
    assert all(bool(place) == (low <= n <= high) for n, place in enumerate(dots))


def test_a_weak_link_has_fewer_dots_than_a_strong_one() -> None:
    counts = [
        sum(bin(ord(char) - 0x2800).count("1") for line in drawn((0, 4, share)) for char in line
            if is_dot(char))
        for share in (0.0, 0.5, 1.0)
    ]  # fmt: skip
    assert counts == sorted(set(counts))


def test_three_links_of_a_query_are_drawn() -> None:
    assert drawn(*((0, key, 1.0) for key in range(5))) == drawn(
        *((0, key, 1.0) for key in range(3))
    )


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_lines_stay_within_the_width(width: int) -> None:
    from rich.cells import cell_len

    assert max(map(cell_len, drawn((0, 4, 1.0), (4, 0, 1.0), width=width))) <= width


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
