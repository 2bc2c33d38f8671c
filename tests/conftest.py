"""Shared fixtures: the command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from support import Result


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Run the command line in this process."""
    from attnviz.cli.report import run_guarded

    def run(*arguments: str) -> Result:
        capfd.readouterr()
        code = run_guarded(list(arguments))
        sys.stdout.flush()
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return run
