"""Let libraries work on a stranger's model: what they raise becomes one line, what they print goes.

What lives here: the guards around loading and around running a model. What does not: the checks
of ours that come before (``files``, ``gguf``, ``loading``), and processes of their own (``trial``).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from attnviz.errors import AttnvizError, InputError, ResourceError
from attnviz.memory import cure, is_exhausted
from attnviz.sources.confined.silence import hushed

T = TypeVar("T")
_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep


def guard(name: str, work: Callable[[], T], *, hush: bool = False) -> T:
    """Do what may make a library fail or panic; faults become one line, warnings are dropped.

    The tokenizer library's panics are no ``Exception``; Ctrl-C and exits pass through. What it
    writes to standard output by itself, with a stranger's own words, is dropped.

    Parameters
    ----------
    hush
        Drop what it writes to standard error too, where panics go.

    Raises
    ------
    InputError
        What it says is wrong.
    ResourceError
        No memory is left.
    """
    try:
        with hushed(*((1, 2) if hush else (1,))), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()
    except AttnvizError:
        raise
    except Exception as fault:
        if is_exhausted(fault):
            raise ResourceError(f"no memory is left for {name}: {cure()}") from fault
        raise InputError(f"{name} does not work: {one_line(fault)}") from fault
    except BaseException as fault:
        if type(fault).__name__ != "PanicException":
            raise
        raise InputError(f"{name} makes its library panic: it is damaged or hostile") from fault


def guard_run(name: str, run: Callable[[], T]) -> T:
    """Run a model; what its own code raises becomes one line, what code of ours raises stays.

    Code of ours is called from inside a model, with every layer's q, k, v.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run()
    except AttnvizError:
        raise
    except Exception as fault:
        if is_exhausted(fault) or _comes_from_us(fault.__traceback__):
            raise
        raise InputError(
            f"{name} does not run: {one_line(fault)}; its config, tensors and tokenizer do not "
            "belong together"
        ) from fault


def one_line(fault: BaseException) -> str:
    """Return what an error says in one line of at most 200 characters."""
    return " ".join(str(fault).split())[:200] or type(fault).__name__


def _comes_from_us(trace: TracebackType | None) -> bool:
    """True where code of this package was called back from inside the library's.

    The tap stands in every operation of a model without being its cause.
    """
    was_library = False
    while trace is not None:
        code = trace.tb_frame.f_code
        is_ours = code.co_filename.startswith(_PACKAGE) and code.co_name != "__torch_function__"
        if is_ours and was_library:
            return True
        was_library = was_library or not is_ours
        trace = trace.tb_next
    return False
