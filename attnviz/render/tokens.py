"""How text from outside is made visible: the only way a stranger's string reaches a terminal.

What lives here: ``visible`` (controls, escapes, bidi, invisible characters), ``fit`` (cut to a
display width). What does not: escaping for HTML, SVG or CSV, which those formats do by their
own rules.

Sources: Unicode 15 general categories; the Bidi_Control set of UAX #9; "Trojan Source",
CVE-2021-42574.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800")
_MARKS = frozenset({"Mn", "Me", "Mc"})
_MAX_MARKS = 8
_DOTTED_CIRCLE = "\u25cc"


@lru_cache(maxsize=65536)
def visible(text: str, encoding: str = "utf-8") -> str:
    r"""Return ``text`` with everything unseen, or able to steer a terminal, spelled out.

    C0 controls become their pictures (U+2400 …), other controls, format and bidi characters,
    surrogates, private and unassigned code points become ``\u{…}``; blanks other than a space
    too. At most 8 combining marks stay on one base; a mark without a base gets a dotted circle.
    What ``encoding`` cannot carry becomes a Python escape (``\u732b``).

    Parameters
    ----------
    text : any str, lone surrogates included
    encoding : of the stream it goes to

    Returns
    -------
    str without any character of category Cc, Cf, Cs, Co, Cn, Zl or Zp

    Examples
    --------
    >>> visible("a\x1b[2Jb"), visible("x\u202ey")
    ('a␛[2Jb', 'x\\u{202e}y')
    >>> visible("猫", "ascii")
    '\\u732b'
    """
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for char in text:
        category = unicodedata.category(char)
        if category in _MARKS and not _is_invisible(char, category):
            marks += 1
            if marks > _MAX_MARKS:
                shown.append(_escape(char))
                continue
            if not shown:
                shown.append(_DOTTED_CIRCLE)
            shown.append(char)
            continue
        marks = 0
        shown.append(_show(char, category, encoding))
    return encodable("".join(shown), encoding)


def encodable(text: str, encoding: str) -> str:
    r"""Spell out what an encoding cannot carry, as ``\xe9``, ``\u732b`` or ``\U0001f9f8``."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def fit(text: str, width: int, *, ellipsis: str = "…") -> str:
    """Cut an already visible text to a display width, marking the cut.

    Examples
    --------
    >>> fit("reading", 5), fit("猫猫猫", 4)
    ('read…', '猫…')
    """
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    room = max(0, width - cell_len(ellipsis))
    return set_cell_size(text, room).rstrip() + ellipsis if room else ellipsis[:width]


def _is_invisible(char: str, category: str) -> bool:
    code = ord(char)
    return (
        category in _INVISIBLE_CATEGORIES
        or char in _INVISIBLE_LETTERS
        or (category == "Zs" and char != " ")
        or 0xFE00 <= code <= 0xFE0F
        or 0xE0100 <= code <= 0xE01EF
        or 0x180B <= code <= 0x180F
    )


def _show(char: str, category: str, encoding: str) -> str:
    if not _is_invisible(char, category):
        return char
    code = ord(char)
    picture = chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else ""
    if picture and encoding == "utf-8":
        return picture
    return _escape(char)


def _escape(char: str) -> str:
    return f"\\u{{{ord(char):x}}}"
