"""Names above columns: all of them where there is room, never wider than the room, none out of place."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from attnviz.render.terminal.names import name_lines

NAMES = ["the", "old", "man", "and", "the", "newspaper", "猫猫", "e\u0301te\u0301", "", "sea"]


@pytest.mark.parametrize("width", range(1, 12))
@pytest.mark.parametrize("centered", [False, True])
def test_lines_stay_within_their_room(width: int, centered: bool) -> None:
    lines = name_lines(NAMES, width, centered=centered)
    assert all(cell_len(line) <= width * len(NAMES) for line in lines)
    assert len(lines) <= (7 if width < 3 else 3)


@pytest.mark.parametrize("width", [4, 5, 6])
def test_names_in_turn_are_whole_and_begin_over_their_columns(width: int) -> None:
    names = ["A", "cute", "teddy", "bear", "is", "reading"]
    lines = name_lines(names, width, room=99)
    for n, name in enumerate(names):
        assert lines[n % len(lines)].find(name, n * width) == n * width + 1


def test_upright_names_read_downwards_in_their_columns() -> None:
    lines = name_lines(["cute", "is", "newspapers"], 2)
    columns = ["".join(line.ljust(6)[at] for line in lines).strip() for at in (1, 3, 5)]
    assert columns == ["cute", "is", "newspap"]


def test_side_by_side_where_they_fit() -> None:
    assert name_lines(["A", "bear"], 6) == ["     A  bear"]
    assert name_lines(["A", "bear"], 6, centered=True) == ["   A   bear"]


def test_nothing_to_name() -> None:
    assert name_lines([], 4) == [""]
