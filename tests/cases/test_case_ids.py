"""Every trouble case that people reported has tests, found by its id."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

IDS = (
    "M1", "M3", "M5", "M7", "M9", "P1", "P3", "P5", "P7", "P9", "W1", "W3", "W5", "W7", "T1", "T3", "T5",
    "R1", "R3", "R5", "R7", "H1", "H3", "H5", "H7", "C1", "C3", "C5",
    "P_s1", "W_s1", "W_s3", "W_s5", "T_s1", "H_s1", "H_s3", "C_s1", "C_s3",
    "N1", "N4", "N6", "N7", "N9", "N13", "N30", "N31", "N36", "N40", "N46", "F1a", "F4", "F5",
    "F6", "F9", "F13", "F14", "N17", "N44", "N45", "N47",
)  # fmt: skip
"""M arithmetic and masks, P equality with a model, W weight files, T tokens, R tables in terminals,
H heatmaps, C command line and files, N and F truth of files and numbers."""
TESTS = Path(__file__).parents[1]


@cache
def names() -> list[str]:
    """Return the names of all tests."""
    found = []
    for path in TESTS.rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [name for name in found if name.startswith("test_")]


@pytest.mark.parametrize("case", IDS)
def test_every_case_has_a_test_of_its_name(case: str) -> None:
    pattern = re.compile(rf"test_(?:[A-Za-z]_?s?\d_)*{case}(?:_|$)", re.IGNORECASE)
    assert [name for name in names() if pattern.match(name)], case


def test_no_test_names_a_case_that_is_not_listed() -> None:
    told = {m[1].upper() for name in names() if (m := re.match(r"test_([A-Z]_?s?\d+)_", name))}
    assert told - {case.upper() for case in IDS} == set()
