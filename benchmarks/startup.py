"""Whole-process time of the first commands, beside what their libraries cost by themselves.

``attnviz --help`` against the ``--help`` of a Typer app of one empty command (≤ 1.5 ×), and
``attnviz explain`` of the sentence against a Typer app that imports numpy and prints four 6 × 6
rich tables (≤ 1.6 ×). Medians of processes taken in turn.

Run: ``python -m benchmarks.startup [--runs 10] [--json FILE]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SENTENCE = "A cute teddy bear is reading"
EMPTY_APP = """
import typer
app = typer.Typer()
@app.command()
def nothing() -> None:
    "Do nothing."
app()
"""
TABLES_APP = """
import numpy as np
import typer
from rich.console import Console
from rich.table import Table
app = typer.Typer()
@app.command()
def tables(text: str) -> None:
    "Print four tables."
    console = Console()
    words = text.split()
    x = np.random.default_rng(0).standard_normal((6, 512))
    w = np.random.default_rng(1).standard_normal((512, 64)) / 512**0.5
    q = x @ w
    scores = q @ q.T
    weights = np.exp(scores / 8) / np.exp(scores / 8).sum(axis=1, keepdims=True)
    for name, values in (("scores", scores), ("scaled", scores / 8), ("weights", weights), ("again", weights)):
        table = Table(title=name)
        table.add_column("query")
        for word in words:
            table.add_column(word)
        for word, row in zip(words, values):
            table.add_row(word, *(f"{number:.4f}" for number in row))
        console.print(table)
app()
"""
LIMITS = {"help": 1.5, "explain": 1.6, "explain, random": 1.6, "explain --token": 1.6}


def time_process(command: list[str]) -> float:
    """Return the wall-clock seconds of one run, output read through a pipe."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - started


def measure(runs: int) -> dict[str, dict[str, float]]:
    """Time every command and its baseline in turn; return medians in seconds, and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        empty, tables = Path(folder, "empty.py"), Path(folder, "tables.py")
        empty.write_text(EMPTY_APP, encoding="utf-8")
        tables.write_text(TABLES_APP, encoding="utf-8")
        program = str(Path(sys.executable).parent / "attnviz")
        python = sys.executable
        pairs = {
            "help": ([program, "--help"], [python, str(empty), "--help"]),
            "explain": ([program, "explain", SENTENCE], [python, str(tables), SENTENCE]),
            "explain, random": (
                [program, "explain", SENTENCE, "-w", "random"],
                [python, str(tables), SENTENCE],
            ),
            "explain --token": (
                [program, "explain", SENTENCE, "--token", "teddy"],
                [python, str(tables), SENTENCE],
            ),
        }
        found = {}
        for name, (ours, baseline) in pairs.items():
            times: dict[str, list[float]] = {"ours": [], "baseline": []}
            for turn in range(runs + 1):
                for side, command in (("ours", ours), ("baseline", baseline)):
                    seconds = time_process(command)
                    if turn:
                        times[side].append(seconds)
            ours_s, baseline_s = (statistics.median(times[s]) for s in ("ours", "baseline"))
            found[name] = {
                "ours_s": ours_s,
                "baseline_s": baseline_s,
                "ratio": ours_s / baseline_s,
                "limit": LIMITS[name],
            }
    return found


def main() -> None:
    """Print the table; exit with 1 if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    found = measure(options.runs)
    print("| command | median, ms | baseline, ms | ratio | limit |")
    print("|---|---:|---:|---:|---:|")
    for name, row in found.items():
        print(
            f"| {name} | {1000 * row['ours_s']:.0f} | {1000 * row['baseline_s']:.0f} "
            f"| {row['ratio']:.2f} | {row['limit']} |"
        )
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(row["ratio"] > row["limit"] for row in found.values()))


if __name__ == "__main__":
    main()
