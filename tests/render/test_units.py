"""Lengths of time and sizes read as people say them, at the edges of every unit as well."""

from __future__ import annotations

import pytest

from attnviz.render.units import say_bytes, say_time


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0.0 s"), (0.94, "0.9 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"),
        (59.6, "1 min 0 s"), (3599.4, "59 min 59 s"), (3599.6, "1 h 0 min"), (86_400, "24 h 0 min"),
    ],
)  # fmt: skip
def test_time(seconds: float, said: str) -> None:
    assert say_time(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"),
        (999_999_999, "1.0 GB"), (10**12, "1.0 TB"), (5 * 10**15, "5000.0 TB"),
    ],
)  # fmt: skip
def test_sizes(count: int, said: str) -> None:
    assert say_bytes(count) == said
