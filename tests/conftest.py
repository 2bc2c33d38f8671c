"""Shared fixtures: the command line in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from real_models import minilm, one_thread, own_cache, smollm2
from support import Result

__all__ = ["minilm", "one_thread", "own_cache", "smollm2"]

# Whoever runs the tests may have settings of their own; they are not under test.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent / ".cache" / "no-settings")


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
