"""What a user asks for, read: a scale, a layer, heads, tokens by word or index, a text.

What lives here: words of a request → numbers, with errors that list what there is. What does
not: computing (``pipeline``), or parsing a command line (``cli``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import IO

from attnviz import memory
from attnviz.errors import InputError, ResourceError, UsageError
from attnviz.records import Span, Tokens

_AT_ONCE = 1 << 20
_BYTES_PER_BYTE = 8
"""A text takes its bytes twice while it is read, up to four times as characters, and some more."""


def parse_scale(scale: str | float | None) -> float | None:
    """Return the factor a user asked for: ``none`` is 1 (not divided at all)."""
    if scale is None:
        return None
    try:
        number = 1.0 if scale == "none" else float(scale)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise UsageError(f"--scale {scale} is not a factor: give a number above 0, or none")
    return number


def parse_layer(layer: str | int) -> int:
    """Return the number of one layer of a weight file.

    Raises
    ------
    UsageError
        Not a number.
    """
    if isinstance(layer, int):
        return layer
    if not (layer.isascii() and layer.isdigit() and len(layer) < 10):
        raise UsageError(
            f"--layer {layer[:40]!r} is no number: a weight file is read one layer at a time"
        )
    return int(layer)


def choose_heads(head: str | int | None, n_heads: int) -> tuple[int, ...]:
    """Return the numbers of the heads to compute.

    Examples
    --------
    >>> choose_heads(None, 8), choose_heads("all", 3), choose_heads("1-2", 3)
    ((0,), (0, 1, 2), (1, 2))
    """
    if head is None or head == "auto":
        return (0,)
    return choose_range(head, n_heads, what="head")


def choose_layers(
    layer: str | int | None, available: Sequence[int], n_layers: int
) -> tuple[int, ...]:
    """Return the numbers of a model's layers to run: those that have attention.

    Parameters
    ----------
    layer
        A number, a range, ``all``, or None, which is all.
    available
        Numbers of the layers that have attention, rising.
    n_layers
        How many layers there are in all.

    Raises
    ------
    UsageError
        A layer that does not exist or has no attention.

    Examples
    --------
    >>> choose_layers("1-3", (1, 3, 5), 6), choose_layers(None, (1, 3, 5), 6)
    ((1, 3), (1, 3, 5))
    """
    if layer is None:
        return tuple(available)
    wanted = choose_range(layer, n_layers, what="layer")
    found = tuple(n for n in wanted if n in available)
    if not found:
        listed = ", ".join(map(str, available[:12])) + (", …" if len(available) > 12 else "")
        raise UsageError(f"layer {layer} has no attention: choose from {listed}")
    return found


def choose_range(wanted: str | int, count: int, *, what: str) -> tuple[int, ...]:
    """Read ``3``, ``all`` or ``2-5`` as numbers below ``count``."""
    text = str(wanted).strip()
    if text in ("all", "mean"):
        return tuple(range(count))
    first, dash, last = text.partition("-")
    try:
        numbers = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        raise UsageError(
            f"--{what} {text!r} is no number: give 0 to {count - 1}, a range like 0-3, or all"
        ) from None
    if not numbers or numbers[0] < 0 or numbers[-1] >= count:
        raise UsageError(
            f"{what} {text} does not exist: there {'is 1' if count == 1 else f'are {count}'}, "
            f"0 to {count - 1}; use --{what} {count - 1} for the last"
        )
    return tuple(numbers)


def parse_span(option: str, wanted: str) -> Span:
    """Read ``100-200`` (both ends included) or ``7`` as a half-open range of tokens.

    Examples
    --------
    >>> parse_span("rows", "100-200"), parse_span("keys", "7")
    ((100, 201), (7, 8))
    """
    first, dash, last = wanted.strip().partition("-")
    try:
        start, end = int(first), int(last if dash else first)
    except ValueError:
        start, end = 0, -1
    if not 0 <= start <= end:
        raise UsageError(
            f"--{option} {wanted} is no range of tokens: give two numbers as in 100-200, or one"
        )
    return start, end + 1


def find_tokens(tokens: Tokens, wanted: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of ``--token`` values: an index, or a word found in the text.

    Raises
    ------
    UsageError
        No such token, or a word that stands in several places (they are listed).
    """
    return tuple(_find_token(tokens, word) for word in wanted)


def _find_token(tokens: Tokens, word: str) -> int:
    places = _places_of(tokens, word)
    if len(places) == 1:
        return places[0]
    if places:
        where = ", ".join(f"{i}:{tokens.labels[i]}" for i in places)
        raise UsageError(f"the token {word!r} stands in several places: choose one of {where}")
    try:
        index = int(word)
    except ValueError:
        raise UsageError(_no_such_token(tokens, word)) from None
    if not -len(tokens) <= index < len(tokens):
        raise UsageError(f"token {index} does not exist: the text has 0 to {len(tokens) - 1}")
    return index % len(tokens)


def _places_of(tokens: Tokens, word: str) -> list[int]:
    """Find a word by its label, its vocabulary's spelling (``Ġbear``, ``##ing``), or plainly."""
    for names in (tokens.labels, tokens.pieces):
        places = [i for i, name in enumerate(names) if name == word]
        if places:
            return places
    plain = [_plain(label) for label in tokens.labels]
    return [i for i, name in enumerate(plain) if name and name == _plain(word)]


def _plain(label: str) -> str:
    """Drop the marks of spaces and of continued words, and case."""
    bare = label.strip()
    return (bare.lstrip("␣Ġ▁ ").removeprefix("##").removeprefix("·") or bare).casefold()


def _no_such_token(tokens: Tokens, word: str) -> str:
    start = tokens.text.casefold().find(word.strip().casefold()) if word.strip() else -1
    if start >= 0:
        end = start + len(word.strip())
        parts = [
            f"{i}:{tokens.labels[i]}"
            for i, span in enumerate(tokens.spans)
            if span is not None and span[0] < end and start < span[1]
        ]
        if parts:
            listed = ", ".join(parts[:12])
            if len(parts) == 1:
                return f"{word!r} is a part of the token {listed}: choose it by its number"
            return (
                f"{word!r} is cut into {len(parts)} tokens, {listed}: choose one by its number, or "
                "pool them with --words"
            )
    listed = ", ".join(f"{i}:{label}" for i, label in enumerate(tokens.labels[:24]))
    more = ", …" if len(tokens) > 24 else ""
    return f"no token {word!r} in this text: there are {listed}{more}"


def _read_all(source: IO[bytes], shown: str) -> bytes:
    """Read to the end, or to the point where the text would not fit into memory any more."""
    room = memory.free_bytes()
    most = None if room is None else room // _BYTES_PER_BYTE
    parts: list[bytes] = []
    n_bytes = 0
    while part := source.read(_AT_ONCE):
        parts.append(part)
        n_bytes += len(part)
        if most is not None and n_bytes > most:
            raise ResourceError(
                f"{shown} is longer than {most / 1e6:,.0f} MB: there is no memory for more text; "
                f"give a shorter one, or {memory.cure()}"
            )
    return b"".join(parts)


def read_text(path: str) -> str:
    """Read a text from a file, or from standard input for ``-``; must be UTF-8.

    Raises
    ------
    InputError
        Not readable, or bytes that are not UTF-8 (named with their place).
    ResourceError
        More than memory has room for; a device may never end.
    """
    if path == "-" and sys.stdin is None:
        raise InputError("standard input is closed: give the text itself, or --file PATH")
    try:
        if path == "-":
            data = _read_all(sys.stdin.buffer, "standard input")
        else:
            with open(path, "rb") as file:
                data = _read_all(file, path)
    except (OSError, ValueError) as fault:
        reason = getattr(fault, "strerror", None) or str(fault)
        raise InputError(f"cannot read {path}: {reason}") from fault
    try:
        return data.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise InputError(
            f"{'standard input' if path == '-' else path} is not UTF-8: byte 0x{data[fault.start]:02X} "
            f"at offset {fault.start} (line {line}); convert it, for example with iconv -t UTF-8"
        ) from None
