"""Options that were not given are not validated, and those that were still are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from support import Result

LOADED = (
    "import sys; from attnviz.cli.main import run_guarded; "
    "run_guarded(['explain', 'a b', '-f', 'json']); sys.exit('pydantic' in sys.modules)"
)


def test_a_plain_command_builds_no_validator() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    "arguments", [("--precision", "99"), ("--d-k", "x"), ("--seed", "1.5"), ("--window", "-1")]
)
def test_what_is_given_is_checked(cli: Callable[..., Result], arguments: tuple[str, str]) -> None:
    done = cli("explain", "a b", "-w", "random", *arguments)
    assert (done.code, arguments[0] in done.err) == (2, True)
