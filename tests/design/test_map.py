"""The map of the package names every file, and what each says of itself."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "attnviz"


def test_the_map_is_what_the_docstrings_say() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "map.py"))["the_map"]()
    assert (PACKAGE / "README.md").read_text(encoding="utf-8") == made, "run `make map`"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.as_posix())
def test_every_file_says_what_it_holds(path: Path) -> None:
    first_sentence = runpy.run_path(str(ROOT / "docs" / "map.py"))["first_sentence"]
    assert 10 < len(first_sentence(path)) <= 150
