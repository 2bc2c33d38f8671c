"""The only way to stdout and stderr: nothing that came from outside can steer a terminal.

What lives here: the two streams, their encoding, notices, errors, the line of progress. What does
not: exit codes and signals (``report``), what is shown (``render``).

While a command runs (``guarded``), ``sys.stdout`` and ``sys.stderr`` themselves make visible what is
written to them, so that a library's warning or complaint is harmless too.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

_HOUSE = bytes(range(0x20, 0x7F)) + b"\t\n"
"""What our own results consist of, besides colours, as long as they are ASCII."""
_STEERING = re.compile(
    "\x1b(?!\\[[0-9;]*m)|\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_ERASE = "\r\x1b[K"


class ReaderLeft(Exception):
    """Whoever read our results has had enough: no error, and nobody to tell.

    Not an ``OSError``, since the parser's library makes exit code 1 of a broken pipe.
    """


class Visible(io.TextIOBase):
    """Stands before a stream and makes visible what is written, line breaks kept."""

    def __init__(self, stream: TextIO, *, is_result: bool) -> None:
        self.stream, self._is_result = stream, is_result

    def write(self, text: str) -> int:
        """Write a text of any origin; complaints that nobody can read are dropped."""
        shown = "\n".join(_visible(line, self.stream) for line in text.split("\n"))
        with _told_gently() if self._is_result else suppress(OSError):
            self.stream.write(shown)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's own."""
        return self.stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """The stream's own."""
        return self.stream.errors

    def fileno(self) -> int:
        """Return the stream's file descriptor."""
        return self.stream.fileno()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return self.stream.isatty()

    def flush(self) -> None:
        """Flush the stream."""
        with _told_gently() if self._is_result else suppress(OSError):
            self.stream.flush()

    def writable(self) -> bool:
        """Return True."""
        return True


@contextmanager
def guarded() -> Iterator[None]:
    """Let nothing reach the standard streams unseen while the block runs; warnings take one line."""
    import warnings

    _occupy_standard_descriptors()
    kept = sys.stdout, sys.stderr, warnings.showwarning
    for stream in kept[:2]:
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (
        cast(TextIO, None if stream is None else Visible(stream, is_result=is_result))
        for stream, is_result in zip(kept[:2], (True, False), strict=True)
    )
    warnings.showwarning = _show_warning
    try:
        yield
    finally:
        sys.stdout, sys.stderr, warnings.showwarning = kept


def _occupy_standard_descriptors() -> None:
    """Open nothing in place of a closed stream, lest the next file opened takes its number.

    What native code writes to descriptor 2 would land in that file.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)


@contextmanager
def _told_gently() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ReaderLeft from None


def _show_warning(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
    """Show a library's warning as one line."""
    say(f"{category.__name__} of a library: {message}")


def stdout() -> TextIO | None:
    """Return the stream of results as it is; None where it is closed."""
    return _bare(sys.stdout)


def stderr() -> TextIO | None:
    """Return the stream of everything else as it is; None where it is closed."""
    return _bare(sys.stderr)


def _bare(stream: TextIO | None) -> TextIO | None:
    return stream.stream if isinstance(stream, Visible) else stream


def encoding_of(stream: TextIO) -> str:
    """Return the canonical name of a stream's encoding; ascii where it is unknown."""
    try:
        return codecs.lookup(stream.encoding or "ascii").name
    except LookupError:
        return "ascii"


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a person may be looking."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it was closed
        return False


def write_stdout(text: str) -> None:
    """Write a result, or raise ``ReaderLeft``; formats spell out what could steer a terminal, and here it is seen to again."""
    stream = stdout()
    if stream is not None:
        with _told_gently():
            stream.write(harmless(text) if is_terminal(stream) else text)


def harmless(text: str) -> str:
    r"""Return a result without anything that steers a terminal, but for colours and line ends.

    Examples
    --------
    >>> harmless("a\x1b[1mb\x1b[2Jc\x9b"), harmless("plain\n")
    ('a\x1b[1mb\\u{1b}[2Jc\\u{9b}', 'plain\n')
    """
    if text.isascii() and not text.encode("ascii").translate(None, _HOUSE):
        return text
    return _STEERING.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text)


def flush_stdout() -> None:
    """Make sure that everything arrived: a full disk must not end with exit code 0."""
    stream = stdout()
    if stream is not None:
        with _told_gently():
            stream.flush()


def drop_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's own last flush cannot fail."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        pass


def say(message: str) -> None:
    """Write one line of notice to stderr, made visible."""
    _to_stderr(f"attnviz: {message}", "\n")


def say_error(message: str) -> None:
    """Write one line of error to stderr, made visible."""
    _to_stderr(f"attnviz: error: {message}", "\n")


def write_line(text: str) -> None:
    """Write a bare line to stderr, made visible."""
    _to_stderr(text, "\n")


def draw(line: str) -> bool:
    """Draw a line of progress over the last one, on a terminal; return whether that was possible."""
    return is_terminal(stderr()) and _to_stderr(line, before=_ERASE)


def erase() -> None:
    """Take the line of progress away."""
    _to_stderr("", before=_ERASE)


def _to_stderr(text: str, end: str = "", *, before: str = "") -> bool:
    """Write made-visible text between marks of ours; nobody to tell is no error."""
    stream = stderr()
    if stream is None:
        return False
    try:
        stream.write(f"{before}{_visible(text, stream)}{end}")
        stream.flush()
    except (OSError, ValueError):
        return False
    return True


def _visible(text: str, stream: TextIO) -> str:
    if text.isascii() and text.isprintable():
        return text
    from attnviz.render.tokens import visible

    return visible(text, encoding_of(stream))
