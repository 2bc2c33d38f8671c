"""A cell of tab-separated values reads back exactly, and holds no control character."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from attnviz.render.formats.tsv import cell

_ESCAPE = re.compile(r"\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|(.))", re.S)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}


def read(written: str) -> str:
    return _ESCAPE.sub(
        lambda m: chr(int(m[1] or m[2], 16)) if m[1] or m[2] else _LETTERS[m[3]], written
    )


@given(st.text(st.characters(exclude_categories=())))
def test_text_comes_back(text: str) -> None:
    written = cell(text)
    assert read(written) == text
    assert written.isprintable()


@given(st.floats(allow_nan=False))
def test_numbers_come_back(number: float) -> None:
    assert float(cell(number)) == number


def test_what_is_no_text() -> None:
    assert [cell(value) for value in (None, True, False, 3, float("nan"))] == [
        "", "true", "false", "3", "nan",
    ]  # fmt: skip
