"""One line on stderr that says how far long work is: drawn over itself on a terminal, now and then elsewhere.

What lives here: the line and its pace. What does not: work, counting (``runs``), results.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attnviz.cli import terminal
from attnviz.render.units import say_time

if TYPE_CHECKING:
    from attnviz.runs.batch.run import Progress as BatchProgress
    from attnviz.runs.summarize import Work

_FIRST_S, _SLOW_S = 2.0, 3.0
_TERMINAL_S, _PIPE_S = 0.2, 10.0


class Line:
    """Call ``show`` as often as you like; it draws after two seconds, then now and then."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._is_terminal = terminal.is_terminal(terminal.stderr())
        self._is_drawn = False
        self._next_at = time.monotonic() + _FIRST_S

    @property
    def is_due(self) -> bool:
        """Tell whether it is time to show something again."""
        return not self.quiet and time.monotonic() >= self._next_at

    def show(self, line: str) -> None:
        """Show where the work is, if that is due."""
        if not self.is_due:
            return
        self._next_at = time.monotonic() + (_TERMINAL_S if self._is_terminal else _PIPE_S)
        if self._is_terminal:
            width = max(10, shutil.get_terminal_size().columns - 1)
            self._is_drawn = terminal.draw(line[:width])
        else:
            terminal.say(line)

    def say(self, message: str) -> None:
        """Print a notice on a line of its own, without tearing the one drawn."""
        if not self.quiet:
            self.close()
            terminal.say(message)

    def close(self) -> None:
        """Take the line away."""
        if self._is_drawn:
            terminal.erase()
            self._is_drawn = False


class Progress(Line):
    """Call it with (done, in all): it tells the share done and the time left, and goes when all is done."""

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._what = what
        self._first: tuple[float, int] | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first is None:  # what came before the work is not its pace
            self._first, self._next_at = (now, done), now + _FIRST_S
        started, before = self._first
        if self.is_due and before < done < total:
            left = (now - started) * (total - done) / (done - before)
            self.show(f"{self._what}: {100 * done // total} %, {say_time(left)} left")
        if done >= total:  # what comes next is another piece of work
            self.close()
            self._first = None


class Meter(Line):
    """A batch's: show it the state after every shard."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._last: BatchProgress | None = None

    def __call__(self, now: BatchProgress) -> None:
        self._last = now
        if now.texts < now.n_texts:
            self.show(batch_line(now))

    def so_far(self) -> str:
        """Return how many texts are safe, in words."""
        if self._last is None:
            return "no shard of this run is complete yet"
        return f"{self._last.texts:,} of {self._last.n_texts:,} texts are complete"


def batch_line(now: BatchProgress) -> str:
    """Return one line: how far, how long still, how fast; what matters most stands first.

    Examples
    --------
    >>> from attnviz.runs.batch.run import Progress
    >>> batch_line(Progress(500, 2000, 1, 0, rate=250.0, left_s=6.0))
    '25 %, 6.0 s left, 1 failed, 250 texts/s, 500 of 2,000'
    """
    parts = [f"{100 * now.texts // now.n_texts} %"]
    if now.left_s is not None:
        parts.append(f"{say_time(now.left_s)} left")
    if now.failed:
        parts.append(f"{now.failed:,} failed")
    if now.rate:
        parts.append(f"{now.rate:,.0f} texts/s" if now.rate >= 10 else f"{now.rate:.2g} texts/s")
    return ", ".join((*parts, f"{now.texts:,} of {now.n_texts:,}"))


@contextmanager
def streaming(what: str, *, quiet: bool) -> Iterator[dict[str, Any]]:
    """Give what a streamed run takes to say: ``announce`` and ``progress``.

    What it takes is said where that is more than a few seconds, and how far it is.
    """
    line = Progress(what, quiet=quiet)

    def announce(work: Work) -> None:
        if quiet or work.seconds < _SLOW_S:
            return
        heads = work.n_layers * work.n_heads
        terminal.say(
            f"{work.n_tokens:,} tokens, {heads} head{'' if heads == 1 else 's'}: "
            f"{2 * work.multiply_adds:.1e} operations, {work.memory_bytes / 1e6:,.0f} MB, "
            f"about {say_time(work.seconds)}"
        )

    try:
        yield {"announce": announce, "progress": line}
    finally:
        line.close()
