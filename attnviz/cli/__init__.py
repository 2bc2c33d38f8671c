"""The command line: one thin file per command, options that mean the same everywhere.

What lives here: the entry point, and nothing heavy: ``--help``, completion and usage errors load
neither numpy nor torch nor matplotlib. What does not: any computation.
"""

from __future__ import annotations


def main() -> None:
    """Run the program with the process's arguments; every error leaves by its exit code."""
    import contextlib
    import gc
    import os
    import signal
    import sys

    gc.set_threshold(
        100_000, 20, 20
    )  # imports make many objects that stay: look at them less often
    try:
        from attnviz.cli.report import run_guarded

        code = run_guarded(sys.argv[1:])
    except KeyboardInterrupt:  # before there was anything to clean up
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left that Ctrl-C could spoil
    if code == 130:  # an interrupt that fell into an exec() would end the interpreter by the signal
        from attnviz.cli import terminal

        with contextlib.suppress(OSError, ValueError, terminal.ReaderLeft):
            terminal.flush_stdout()
        os._exit(code)
    sys.exit(code)
