"""One line on stderr that says how far long work is and how long it will still take.

What lives here: the line. What does not: work, or results.
"""

from __future__ import annotations

import time

from attnviz.cli import terminal

_FIRST_S = 2.0
_TERMINAL_S, _PIPE_S = 0.2, 15.0


class Progress:
    """Call it with (done, in all); it speaks after two seconds, then now and then.

    On a terminal the line is written over; in a pipe there is a new line every 15 seconds.
    """

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self.what, self.quiet = what, quiet
        self.first: tuple[float, int] | None = None
        self.next_at = 0.0
        self.is_terminal = terminal.is_terminal(terminal.stderr())
        self.is_shown = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self.first is None:  # what came before the work is not its pace
            self.first, self.next_at = (now, done), now + _FIRST_S
        if self.quiet or now < self.next_at or not self.first[1] < done < total:
            return
        self.next_at = now + (_TERMINAL_S if self.is_terminal else _PIPE_S)
        left = (now - self.first[0]) * (total - done) / (done - self.first[1])
        line = f"{self.what}: {100 * done // total} %, {duration(left)} left"
        if self.is_terminal:
            self.is_shown = terminal.draw(f"attnviz: {line}")
        else:
            terminal.say(line)

    def close(self) -> None:
        """Take the line away."""
        if self.is_shown:
            terminal.erase()
            self.is_shown = False


def duration(seconds: float) -> str:
    """Return a time as a person says it.

    Examples
    --------
    >>> duration(0.4), duration(75), duration(9000)
    ('1 s', '1 min 15 s', '2 h 30 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
