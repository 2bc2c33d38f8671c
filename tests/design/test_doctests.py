"""Every example in a docstring is run; modules of the ``models`` extra are left to their own tests."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "attnviz"
EXTRA = ("attnviz.sources.models", "attnviz.sources.models.source", "attnviz.__main__")
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)


@pytest.mark.parametrize("name", [m for m in MODULES if not m.startswith(EXTRA)])
def test_examples(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0
