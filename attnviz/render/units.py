"""Lengths of time and sizes as people say them.

What lives here: the two words for each. What does not: numbers of attention (``render.text``).
"""

from __future__ import annotations


def say_time(seconds: float) -> str:
    """Return a length of time for people.

    Examples
    --------
    >>> say_time(0.25), say_time(75), say_time(7300)
    ('0.2 s', '1 min 15 s', '2 h 1 min')
    """
    if round(seconds) < 60:
        return f"{seconds:.1f} s" if round(seconds, 1) < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def say_bytes(count: int) -> str:
    """Return a size for people.

    Examples
    --------
    >>> say_bytes(900), say_bytes(1_250_000)
    ('900 B', '1.2 MB')
    """
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if round(size, 1) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
