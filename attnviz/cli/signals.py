"""Signals: the first ends a run by its clean-up and exit code, a second one ends it at once.

What lives here: Ctrl-C, SIGTERM, SIGHUP. What does not: what is said at the end (``report``).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
"""Those that end a run, as far as the system has them."""
_ECHO_S = 0.2
"""What comes within this time is the same signal again: ``timeout`` and wrappers send it twice."""


@contextmanager
def listening() -> Iterator[None]:
    """While the block runs a signal raises: ``KeyboardInterrupt``, or ``SystemExit`` of 128 + number.

    A signal that whoever started us had ignored (``nohup``, ``&`` of a script) stays ignored. The
    second one ends the process at once, even where a library keeps the main thread busy: another
    thread sees to that.
    """
    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    kept = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    end = _ender()
    try:
        for number in kept:
            signal.signal(number, end)
    except ValueError:  # not the main thread: whoever owns that one decides
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watch = _start(reader, frozenset(int(n) for n in kept))
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)  # which ends the thread; one left behind may abort the interpreter's end
        watch.join(timeout=1)
        for number, handler in kept.items():
            signal.signal(number, handler)


def _ender() -> Callable[[int, FrameType | None], None]:
    """Return a handler that raises once: clean-up is not to be interrupted by an echo."""
    is_ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal is_ending
        if is_ending:
            return
        is_ending = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    return end


def _start(reader: int, numbers: frozenset[int]) -> threading.Thread:
    watch = threading.Thread(target=_watch, args=(reader, numbers), daemon=True)
    watch.start()
    return watch


def _watch(reader: int, numbers: frozenset[int]) -> None:
    """See signals as they arrive; the second one ends the process without further ado."""
    first_at: float | None = None
    while told := os.read(reader, 64):
        for number in numbers.intersection(told):
            now = time.monotonic()
            if first_at is None:
                first_at = now
            elif now - first_at > _ECHO_S:
                os._exit(128 + number)
    os.close(reader)
