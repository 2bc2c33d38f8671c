"""What a stranger's text may do to a terminal: nothing."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from attnviz.render.tokens import fit, visible

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def test_every_code_point_is_visible() -> None:
    bad = []
    for code in range(sys.maxunicode + 1):
        shown = visible(chr(code))
        if not shown or any(unicodedata.category(c) in HIDDEN for c in shown):
            bad.append(code)
    assert bad == []


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "koi8-r"])
def test_every_code_point_fits_every_encoding(encoding: str) -> None:
    for code in range(0, sys.maxunicode + 1, 7):
        visible(chr(code), encoding).encode(encoding)


def test_known_strings() -> None:
    assert visible("bear") == "bear"
    assert visible("a\nb\t\0") == "a␊b␉␀"
    assert visible("\x7f\x9b") == "␡\\u{9b}"
    assert visible("\u202eabc") == "\\u{202e}abc"
    assert visible("a\u00a0b") == "a\\u{a0}b"
    assert visible("猫🧸") == "猫🧸"
    assert visible("猫", "ascii") == "\\u732b"
    assert visible("\0", "ascii") == "\\u{0}"
    assert visible("\u0301x").startswith("\u25cc")
    assert visible("e" + "\u0301" * 20).count("\u0301") == 8
    assert visible("[red][/red]") == "[red][/red]"


def test_fit_cuts_by_display_width() -> None:
    assert fit("teddy", 5) == "teddy"
    assert fit("teddy", 4) == "ted…"
    assert fit("猫猫", 3) == "猫…"
    assert fit("teddy", 1) == "…"
    assert fit("teddy", 5, ellipsis="...") == "teddy"
    assert fit("reading", 6, ellipsis="...") == "rea..."
