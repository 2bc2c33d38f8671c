"""What a stranger's text may do to a terminal: nothing."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from attnviz.render.tokens import encodable, fit, visible

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


# shown as nothing, or as a blank, by fonts: fillers, a joiner, variation selectors
BLANK = {0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, 0x2800}
BLANK |= {*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), *range(0x180B, 0x1810)}


def shown_as(code: int) -> str:
    """What a code point is to be shown as, by the words of the promise."""
    char, kind = chr(code), unicodedata.category(chr(code))
    if kind in HIDDEN or code in BLANK or (kind == "Zs" and char != " "):
        if code <= 0x1F:
            return chr(0x2400 + code)
        return "\u2421" if code == 0x7F else f"\\u{{{code:x}}}"
    return f"\u25cc{char}" if kind.startswith("M") else char


def test_code_points_around_every_edge() -> None:
    edges = {
        0x1F,
        0x20,
        0x7E,
        0x7F,
        0x80,
        0x9F,
        0xA0,
        0xFDFF,
        0xFE10,
        0xE00FF,
        0xE01F0,
        0x180A,
        0x1810,
        0x2000,
        0x3000,
    }
    for code in sorted(edges | BLANK):
        for near in (code - 1, code, code + 1):
            assert visible(chr(near)) == shown_as(near), f"U+{near:04X}"


def test_every_code_point_is_visible_and_only_what_hides_is_changed() -> None:
    for code in range(sys.maxunicode + 1):
        assert visible(chr(code)) == shown_as(code), f"U+{code:04X}"


def test_marks_are_counted_for_each_base() -> None:
    eight = "\u0301" * 8
    assert visible(f"e{eight}") == f"e{eight}"
    assert visible(f"e{eight}\u0300\u0300x") == f"e{eight}\\u{{300}}\\u{{300}}x"
    assert visible(f"e{eight}o{eight}") == f"e{eight}o{eight}"
    assert visible(f"e\ufe0f{eight}") == f"e\\u{{fe0f}}{eight}"
    assert visible("e\u0301x\x07") == "e\u0301x\u2407"
    assert visible("\u0301\u0302x") == "\u25cc\u0301\u0302x"


def test_what_an_encoding_cannot_carry_is_spelled_out_and_the_rest_kept() -> None:
    assert encodable("é猫🧸", "latin-1") == "é\\u732b\\U0001f9f8"
    assert encodable("é猫", "utf-8") == "é猫"
    assert encodable("\udce9", "utf-8") == "\\udce9"
    assert encodable("e", "ascii") == "e"
    assert encodable("猫", "utf-16") == "猫"
    with pytest.raises(LookupError):
        encodable("é", "no such encoding")


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
    assert fit("teddy bear", 7) == "teddy…"
    assert fit("teddy", 3, ellipsis="...") == "..."
    assert fit("teddy", 2, ellipsis="...") == ".."
    assert fit("teddy", 0) == ""
    assert fit("a" * 3, 3) == "aaa"
    assert fit("  teddy", 3) == "…"
