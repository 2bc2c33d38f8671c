"""Golden text: what a person sees at 40, 80 and 120 columns.

``ATTNVIZ_UPDATE_GOLDEN=1`` writes the files anew; look at the difference before you commit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support import SENTENCE, Result

HERE = Path(__file__).parent
CASES = {
    "walk": (SENTENCE, "-w", "random"),
    "answer": (SENTENCE, "-w", "random", "--brief"),
    "zoom": (SENTENCE, "-w", "random", "--token", "teddy"),
    "causal-scale": ("to be or not to be", "-w", "random", "--causal", "--scale", "none", "-s", "weights"),
    "hostile": ("[INST] \x1b[2J 猫 \u202e שלום =1+1 🧸", "-w", "random", "-s", "tokens,weights"),
}  # fmt: skip


def compare(path: Path, found: str) -> None:
    if os.environ.get("ATTNVIZ_UPDATE_GOLDEN"):
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", CASES)
def test_table(cli: Callable[..., Result], name: str, width: int) -> None:
    done = cli("explain", *CASES[name], "--width", str(width))
    assert done.code == 0
    compare(HERE / f"{name}-{width}.txt", done.out)


def test_colour(cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLORTERM", "truecolor")
    done = cli("explain", *CASES["walk"], "-s", "weights", "--width", "80", "--color", "always")
    compare(HERE / "weights-colour-80.txt", done.out)


@pytest.mark.parametrize("format_name", ["plain", "markdown"])
def test_other_formats(cli: Callable[..., Result], format_name: str) -> None:
    done = cli("explain", *CASES["walk"], "-f", format_name, "--width", "80")
    compare(HERE / f"walk-80-{format_name}.txt", done.out)
