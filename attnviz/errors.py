"""Every error a user can meet, with its exit code.

What lives here: the exception tree. What does not: printing (``cli.report``) and the facts of
each error, which are known where it is raised.

::

    AttnvizError                 70  a bug of ours
    ├── CheckFailed               1  an asked-for check failed
    ├── UsageError                2  the command line (or a call) asks for something impossible
    ├── InputError                3  a text, file or model cannot be read
    │   └── WeightsError          3  a weight file is not what it should be
    └── ResourceError             4  memory, device or disk
        └── TooLong               4  more tokens than every cell is held for

A message is one line: what is wrong (with the value) · what was expected · what to do.
"""

from __future__ import annotations


class AttnvizError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is the process's exit status."""

    exit_code = 70


class CheckFailed(AttnvizError):
    """An asked-for check (``--verify``, ``--fail-above``) did not hold."""

    exit_code = 1


class UsageError(AttnvizError):
    """The request itself is impossible: an option out of range, two options that exclude."""

    exit_code = 2


class InputError(AttnvizError):
    """A text, file or model cannot be read."""

    exit_code = 3


class WeightsError(InputError):
    """A weight file does not hold what an attention layer needs."""


class ResourceError(AttnvizError):
    """Memory, device or disk does not allow it."""

    exit_code = 4


class TooLong(ResourceError):
    """A text too long for every cell to be held at once; a streamed summary takes any length."""
