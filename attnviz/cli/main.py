"""A run from its arguments to its exit code: every way it can end, and what is said then.

What lives here: errors as one line, the parser's among them. What does not: the streams
themselves (``terminal``), what is shown (``render``) or computed.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from attnviz import memory
from attnviz.cli import terminal
from attnviz.cli.screen import working_folder
from attnviz.cli.terminal import say, say_error
from attnviz.errors import AttnvizError, ResourceError, UsageError

if TYPE_CHECKING:
    from attnviz.cli.settings import Resolved

EXIT_BUG = 70
EXIT_INTERRUPTED = 130
ENDINGS = {
    130: "interrupted",
    143: "ended by SIGTERM",
    129: "ended by SIGHUP: the terminal is gone",
}
_DASH_HINT = 'a text that starts with a dash goes after --, as in: attnviz explain -- "-4 degrees"'


def main() -> None:
    """Run the program with the process's arguments; every error leaves by its exit code."""
    gc.set_threshold(
        100_000, 20, 20
    )  # imports make many objects that stay: look at them less often
    try:
        code = run_guarded(sys.argv[1:])
    except KeyboardInterrupt:  # before there was anything to clean up
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is left that Ctrl-C could spoil
    if code == 130:  # an interrupt that fell into an exec() would end the interpreter by the signal
        with contextlib.suppress(OSError, ValueError, terminal.ReaderLeft):
            terminal.flush_stdout()
        os._exit(code)
    sys.exit(code)


def run_guarded(arguments: list[str]) -> int:
    """Run the command line and return its exit code; no traceback without ``--debug``."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # same bytes whatever the machine; half the CPU time
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from attnviz.cli.signals import listening

    with terminal.guarded(), listening():
        try:
            return _run_to_the_end(arguments)
        except KeyboardInterrupt:  # it came while the end was being told
            return EXIT_INTERRUPTED


def _run_to_the_end(arguments: list[str]) -> int:
    """Run, and turn every way to end into an exit code."""
    try:
        code = _run(arguments)
        terminal.flush_stdout()
        return code
    except terminal.ReaderLeft:
        return _leave_quietly()
    except KeyboardInterrupt:
        say_error(ENDINGS[EXIT_INTERRUPTED])
        return EXIT_INTERRUPTED
    except SystemExit as leave:
        if leave.code in ENDINGS:
            say_error(ENDINGS[leave.code])
        return leave.code if isinstance(leave.code, int) else 0 if leave.code is None else 1
    except AttnvizError as fault:
        say_error(str(fault))
        _say_traceback(arguments)
        return fault.exit_code
    except BaseException as fault:  # a panic of a native library is no Exception
        if memory.is_exhausted(fault):
            return _report_no_memory()
        if isinstance(fault, OSError):
            return _report_os_error(fault, arguments)
        say_error(
            f"a bug of attnviz: {type(fault).__name__}: {fault}; please report it (--debug shows where)"
        )
        _say_traceback(arguments)
        return EXIT_BUG
    finally:
        memory.lift_limit()


def _run(arguments: list[str]) -> int:
    """Parse and run; turn the parser's errors into our one line."""
    import typer
    from typer.main import get_command

    from attnviz.cli.app import app
    from attnviz.cli.settings import TOLERANT, resolve

    if terminal.stdout() is None:
        raise ResourceError("standard output is closed: there is nowhere to write the result")
    given = [decode_argument(a, i) for i, a in enumerate(arguments, start=1)]
    root = get_command(app)
    settings = resolve(root, os.environ, working_folder())
    if os.environ.get("_ATTNVIZ_COMPLETE", "").startswith("complete_"):
        return _complete(root, settings)
    is_help = bool({"-h", "--help", "--version"} & set(given))
    if settings.faults and not (is_help or any(tuple(given[: len(p)]) == p for p in TOLERANT)):
        raise settings.faults[0]
    try:
        code = root.main(
            args=given,
            prog_name="attnviz",
            standalone_mode=False,
            default_map=settings.default_map,
            obj=settings,
        )
    except typer.Exit as leave:
        return int(leave.exit_code)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.TyperException as fault:
        raise UsageError(_parser_message(fault, arguments, settings)) from None
    if code == EXIT_INTERRUPTED:  # what the parser makes of Ctrl-C
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _complete(root: Any, settings: Resolved) -> int:
    """Answer a shell; where nothing can be found there is nothing to offer, and no error."""
    from attnviz.cli.completion import prepare

    with contextlib.suppress(Exception):
        prepare(os.environ)
        root.main(prog_name="attnviz", default_map=settings.default_map, obj=settings)
    return 0


def _parser_message(fault: Exception, arguments: list[str], settings: Resolved) -> str:
    """Return one line: what is wrong, the nearest names, what to do."""
    message = " ".join(str(fault.format_message()).split())  # type: ignore[attr-defined]
    message = message.rstrip(".")
    wrong = getattr(fault, "option_name", None)
    if wrong:
        dashed = [a for a in arguments if a.startswith("-") and (" " in a or a[1:2].isdigit())]
        if dashed:
            message += f"; {_DASH_HINT}"
    context = getattr(fault, "ctx", None)
    if context is not None:
        message = settings.blame(message, context) + _what_to_type(message, arguments, context)
        message += f"; see {context.command_path} --help"
    return message[:1].lower() + message[1:]


def _what_to_type(message: str, arguments: list[str], context: Any) -> str:
    """Return the command that a text without quotes, or without a command, was meant as."""
    texts = list(itertools.takewhile(lambda a: not a.startswith("-"), arguments))
    is_unknown = message.startswith("No such command") and "Did you mean" not in message
    if is_unknown and context.parent is None and texts:
        return f': to look at a text, attnviz explain "{" ".join(texts)}"'
    if not message.startswith("Got unexpected extra argument") or "text" not in context.params:
        return ""
    extra = message[message.find("(", message.find("(s)") + 3) + 1 : -1]
    if "other" in context.params:
        return f': put each text in quotes, {context.command_path} "FIRST TEXT" "SECOND TEXT"'
    name = [context.params["name"]] if "name" in context.params else []
    command = " ".join((context.command_path, *name))
    return f': put the text in quotes, {command} "{context.params["text"]} {extra}"'


def decode_argument(argument: str, place: int) -> str:
    """Return an argument as the UTF-8 text that was typed, whatever the locale says.

    Raises
    ------
    UsageError
        Bytes that are text in no way, named with their place.
    """
    if argument.isascii():
        return argument
    try:
        raw = os.fsencode(argument)
        return raw.decode("utf-8")
    except UnicodeEncodeError:  # from no byte at all: halves of characters, as Windows has them
        return argument
    except UnicodeDecodeError as fault:
        if not any(0xDC80 <= ord(c) <= 0xDCFF for c in argument):
            return argument
        raise UsageError(
            f"argument {place} is not UTF-8: byte 0x{raw[fault.start]:02X} at position {fault.start}; "
            "type it in UTF-8, or put it into a file and convert that with iconv -t UTF-8"
        ) from None


def _report_no_memory() -> int:
    cure = memory.cure()
    memory.lift_limit()  # the way out takes some, too
    say_error(f"out of memory: give a shorter text or fewer heads, or {cure}")
    return ResourceError.exit_code


def _report_os_error(fault: OSError, arguments: list[str]) -> int:
    if fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
        say_error(f"cannot write: {os.strerror(fault.errno)}; free some space and run it again")
        code = ResourceError.exit_code
    else:
        say_error(f"{fault.strerror or fault}: {fault.filename or 'a file'}")
        code = 3
    _say_traceback(arguments)
    terminal.drop_stdout()
    return code


def _leave_quietly() -> int:
    """End without a word when the reader of our output has gone: that is no error."""
    terminal.drop_stdout()
    return 0


def _say_traceback(arguments: list[str]) -> None:
    is_set = os.environ.get("ATTNVIZ_DEBUG", "").lower() in ("1", "true", "yes", "on")
    if "--debug" not in arguments and not is_set:
        return
    import traceback

    for line in traceback.format_exc().splitlines():
        say(line)
