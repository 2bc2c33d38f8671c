"""No test is skipped in silence: what it lacks is hardware or another system, or a command brings it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support import how_to_test

TESTS = Path(__file__).parents[1]
NOT_OF_THIS_MACHINE = {
    "this machine has a GPU", "this system has no limits", "children are forked", "signals",
    "reads /proc", "this system forbids tracing",
}  # fmt: skip
"""Hardware and systems that no command brings."""


def reasons() -> dict[str, str]:
    """Return every reason for a skip in the tests, with the place it was found in."""
    found: dict[str, str] = {}
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            kind = node.func.attr
            if kind not in ("skip", "skipif", "importorskip"):
                continue
            given = [word.value for word in node.keywords if word.arg == "reason"]
            said = given or (node.args[:1] if kind == "skip" else [])
            if kind == "importorskip" and not said:
                text = "could not import"
            else:
                parts = ast.walk(said[0]) if said else ()
                text = "".join(str(p.value) for p in parts if isinstance(p, ast.Constant))
            found.setdefault(text, f"{path.relative_to(TESTS)}:{node.lineno}")
    return found


REASONS = reasons()


def test_the_search_finds_some() -> None:
    assert len(REASONS) > 10


@pytest.mark.parametrize("reason", REASONS)
def test_every_skip_says_what_brings_it(reason: str) -> None:
    assert bool(how_to_test(reason)) != (reason in NOT_OF_THIS_MACHINE), REASONS[reason]
