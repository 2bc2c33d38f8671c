"""Shared fixtures: the command line in this process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from real_models import minilm, one_thread, own_cache, smollm2
from support import Result

__all__ = ["minilm", "one_thread", "own_cache", "smollm2"]

# Whoever runs the tests may have settings of their own; they are not under test.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent / ".cache" / "no-settings")
# A script's background, or nohup, has signals ignored; the children of the tests are to hear them.
for _name, _usual in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    _number = getattr(signal, _name, None)
    if _number is not None and signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _usual)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run the command line in this process."""
    from attnviz.cli.main import run_guarded

    def run(*arguments: str) -> Result:
        capfd.readouterr()
        code = run_guarded(list(arguments))
        sys.stdout.flush()
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return run
