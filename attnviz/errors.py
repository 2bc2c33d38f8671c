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

A message is one line: what is wrong (with the value) · what was expected · what to do. Line breaks
in a name or value that it quotes are written as escapes.
"""

from __future__ import annotations

import re

_LINE_BREAKS = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


class AttnvizError(Exception):
    """Base of every error raised on purpose; ``exit_code`` is the process's exit status.

    Examples
    --------
    >>> str(InputError("no file of the name a\\nb"))
    'no file of the name a\\\\nb'
    """

    exit_code = 70

    def __init__(self, message: str = "") -> None:
        super().__init__(_LINE_BREAKS.sub(lambda found: repr(found[0])[1:-1], message))


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
