"""What tests of every folder share: the sentence, hostile strings, a fresh command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnviz.records import HeadChoice

SENTENCE = "A cute teddy bear is reading"
HOSTILE = (
    "[pad]", "[/INST]", ":key:", "a\nb", "\x1b[2J", "\t", "\0a", "a\u200db", "猫", "שלום",
    "<script>alert(1)</script>", "$$x$$", "=1+1", " bear", "\udce9", "\u202ex", "\ufe0f", "🧸",
    "]]>", "|", "`x`", "\\", "\u2028", "e\u0301", "\x9b31m", "</script>",
)  # fmt: skip


BRINGS = {
    "chromium": "make browser", "firefox": "make browser", "node": "make browser", "font": "make browser",
    "strace": "make browser", "groff": "make browser",
    "CUDA": "a machine with a CUDA device: make test-all ARGS=tests/gpu",
    "extra": "rm .venv/.dev && make test", "pandas": "rm .venv/.dev && make test",
    "could not import": "rm .venv/.dev && make test", "sphinx": "rm .venv/.dev && make test",
    "pip cannot fetch": "a package index within reach: make test",
    "bash is not": "sudo apt-get install bash", "make is not": "sudo apt-get install make",
}  # fmt: skip
"""What a reason for skipping has in it, and the command that brings what is missing."""


def rounding_of(scores: Any) -> float:
    """Return how far rounding alone may move a weight or an output of size 1, on any processor.

    A float32 score of size s carries a few roundings of s · 2⁻²³ (the projections, q·k, the scale),
    summed in another order by every kernel; the softmax hands its error on to the weights. Hidden
    scores, which are −∞ or the smallest number there is, say nothing.
    """
    sizes = np.abs(np.asarray(scores, np.float64))
    return float(8 * 2.0**-23 * (1 + sizes[sizes < 1e6].max(initial=0.0)))


def how_to_test(reason: str) -> str:
    """Return the command that brings what a skipped test lacks; nothing where none can."""
    return next((command for word, command in BRINGS.items() if word in reason), "")


def choose_head(
    weights: Any, special: Sequence[bool], query: int | None = None, **sides: Any
) -> tuple[HeadChoice, ...]:
    """Rank heads of dense weights (layers, heads, L, S)."""
    from attnviz.core.measures.choose import Ranking

    ranking = Ranking(special, query, n_queries=weights.shape[2], **sides)
    for layer, heads_HLS in enumerate(weights):
        ranking.add(layer, range(len(heads_HLS)), heads_HLS)
    return ranking.ranked()


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


def run_fresh(
    *arguments: str | bytes,
    env: dict[str, str] | None = None,
    stdin: bytes = b"",
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a fresh interpreter, with a plain environment and given extras."""
    clean = {
        k: v
        for k, v in os.environ.items()
        if k not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "PYTHONIOENCODING")
    }
    return subprocess.run(
        [sys.executable, "-m", "attnviz", *arguments],
        input=stdin,
        capture_output=True,
        timeout=120,
        check=False,
        cwd=cwd,
        env={**clean, **(env or {})},
    )
