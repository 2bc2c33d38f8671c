"""Shared fixtures: the command line in this process."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_models import minilm, one_thread, own_cache, smollm2
from support import Result, how_to_test

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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """Say in the last lines what was not tested, and how it can be."""
    yield
    counted: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        counted[reason.removeprefix("Skipped: ")] += 1
    for reason, count in sorted(counted.items()):
        how = how_to_test(reason)
        terminalreporter.write_line(
            f"not tested ({count}): {reason}{how and '; to test it: '}{how}"
        )
