"""One line of progress on stderr: drawn over itself in a terminal, now and then elsewhere.

What lives here: how far, how fast, how long still. What does not: counting (``runs``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attnviz.cli import terminal

if TYPE_CHECKING:
    from attnviz.runs.batch import Progress

_PAUSE_S = 10.0


class Meter:
    """Shows a batch's progress; ``say`` prints a line without tearing it."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._is_drawn = False
        self._last: Progress | None = None
        self._told_at = time.monotonic()

    def show(self, now: Progress) -> None:
        """Show where a batch is."""
        self._last = now
        if self._is_quiet:
            return
        if terminal.is_terminal(terminal.stderr()):
            self._is_drawn = terminal.draw(line(now)[: self._width()])
        elif time.monotonic() - self._told_at >= _PAUSE_S and now.texts < now.n_texts:
            self._told_at = time.monotonic()
            terminal.say(line(now))

    def say(self, message: str) -> None:
        """Print a notice on a line of its own."""
        if not self._is_quiet:
            self.end()
            terminal.say(message)

    def end(self) -> None:
        """Take the line away."""
        if self._is_drawn:
            terminal.erase()
            self._is_drawn = False

    def so_far(self) -> str:
        """Return how many texts are safe, in words."""
        if self._last is None:
            return "no shard of this run is complete yet"
        return f"{self._last.texts:,} of {self._last.n_texts:,} texts are complete"

    def _width(self) -> int:
        import shutil

        return max(10, shutil.get_terminal_size().columns - 1)


def line(now: Progress) -> str:
    """Return one line: how far, how long still, how fast; what matters most stands first.

    Examples
    --------
    >>> from attnviz.runs.batch import Progress
    >>> line(Progress(500, 2000, 1, 0, rate=250.0, left_s=6.0))
    '25 %, 6.0 s left, 1 failed, 250 texts/s, 500 of 2,000'
    """
    from attnviz.render.views.batch import say_time

    parts = [f"{100 * now.texts // now.n_texts} %"]
    if now.left_s is not None and now.texts < now.n_texts:
        parts.append(f"{say_time(now.left_s)} left")
    if now.failed:
        parts.append(f"{now.failed:,} failed")
    if now.rate:
        parts.append(f"{now.rate:,.0f} texts/s" if now.rate >= 10 else f"{now.rate:.2g} texts/s")
    return ", ".join((*parts, f"{now.texts:,} of {now.n_texts:,}"))
