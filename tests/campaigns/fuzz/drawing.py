"""Changes to numbers, texts, bytes and JSON values that the kinds share, all drawn from a seed."""

from __future__ import annotations

import random
from typing import Any

NUMBERS = (
    0, 1, 2, 3, 7, 8, 31, 32, 33, 64, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 16, (1 << 31) - 1,
    1 << 31, (1 << 32) - 1, 1 << 33, 1 << 40, (1 << 53) - 1, 1 << 53, 1 << 62, (1 << 63) - 1,
    1 << 63, (1 << 64) - 1, 10**30, -1, -2, -(1 << 31), -(1 << 63),
)  # fmt: skip
TEXTS = (
    "", "x", "\0", "a\0", "../../etc/passwd", "/etc/passwd", "..", "a/b", "a\\b", "-rf", "[pad]", "[/INST]",
    "\x1b[2J", "\x9b31m", "\u202ex", "\u2028", "a\nb", "\r", "\t", "\ufeff", "猫", "🧸", "e\u0301",
    "=1+1", "<script>", "%s", "{}", "NaN", "a" * 300, "a" * 5000, "\U0010ffff", "\ud83d", "__metadata__",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *NUMBERS, *TEXTS, 0.0, 0.5, -0.0, 1e-300, -1e300, 1e999, float("nan"), True, False, None,
    [], [0], [[]], [1 << 31] * 3, {}, {"a": {}}, [None], ["a", 1],
)  # fmt: skip


def change_number(number: int, draw: random.Random) -> int:
    """Return a number near the given one, or a notable one."""
    if draw.random() < 0.5:
        return number + draw.choice((-1, 1, 2, 8, -8, number, -number))
    return draw.choice(NUMBERS)


def change_value(value: Any, draw: random.Random) -> Any:
    """Return another value of the same type, most of the time."""
    if isinstance(value, bool) or draw.random() < 0.15:
        return draw.choice(VALUES)
    if isinstance(value, int):
        return change_number(value, draw)
    if isinstance(value, float):
        return draw.choice((0.0, -value, value * 1e30, value / 1e30, 1e999, float("nan"), 1))
    if isinstance(value, str):
        return change_text(value, draw)
    return draw.choice(VALUES)


def change_text(text: str, draw: random.Random) -> str:
    """Return a text with a part dropped, doubled, or replaced by something notable."""
    place = draw.randrange(len(text) + 1)
    change = draw.random()
    if change < 0.3:
        return draw.choice(TEXTS)
    if change < 0.5:
        return text[:place] + draw.choice(TEXTS) + text[place:]
    if change < 0.7:
        return text[:place] + text[place + draw.randint(1, 4) :]
    return text * draw.choice((0, 2, 3)) if len(text) < 200 else text[:place]


def change_json(value: Any, draw: random.Random, values: tuple[Any, ...] = VALUES) -> Any:
    """Change one random place of a JSON value: a key lost, renamed or doubled, a value replaced."""
    if isinstance(value, dict) and value and draw.random() < 0.93:
        made = dict(value)
        key = draw.choice(list(made))
        change = draw.random()
        if change < 0.08:
            del made[key]
        elif change < 0.14:
            made[change_text(key, draw)] = made.pop(key)
        elif change < 0.2:
            made[draw.choice(list(made))] = made[key]
        else:
            made[key] = change_json(made[key], draw, values)
        return made
    if isinstance(value, list) and value and draw.random() < 0.9:
        made = list(value)
        place = draw.randrange(len(made))
        change = draw.random()
        if change < 0.1:
            del made[place]
        elif change < 0.2:
            made.insert(place, draw.choice(made))
        elif change < 0.23:
            made *= draw.choice((2, 50))
        else:
            made[place] = change_json(made[place], draw, values)
        return made
    return change_value(value, draw) if draw.random() < 0.6 else draw.choice(values)


def change_bytes(data: bytes, draw: random.Random, *, most: int = 4) -> bytes:
    """Overwrite, insert or cut a few bytes; sometimes cut off or double the end."""
    made = bytearray(data)
    for _ in range(draw.randint(1, most)):
        place = draw.randrange(len(made) + 1)
        width = draw.choice((1, 1, 2, 4, 8))
        number = draw.choice((*NUMBERS[:26], draw.getrandbits(64)))
        raw = (number & ((1 << 8 * width) - 1)).to_bytes(width, draw.choice(("little", "big")))
        change = draw.random()
        if change < 0.7:
            made[place : place + width] = raw[: max(0, len(made) - place)]
        elif change < 0.85:
            made[place:place] = raw
        else:
            del made[place : place + width]
    end = draw.random()
    if end < 0.1:
        del made[draw.randrange(len(made) + 1) :]
    elif end < 0.13:
        made += made[draw.randrange(len(made) + 1) :]
    return bytes(made)


def often(draw: random.Random) -> range:
    """Return over how many changes to go: one mostly, seldom none or many."""
    return range(draw.choice((0, 1, 1, 1, 1, 1, 2, 2, 3, 6)))
