"""An interactive page of 12 layers × 12 heads (d_head 64) beside bertviz: size, writing, opening.

Limits: exact ≤ 16 MB at 128 tokens and ≤ 64 MB at 512, compact ≤ 8 and ≤ 32 MB, written in ≤ 2 s,
opened in Chromium in ≤ 3 s. Best of some runs for ours; bertviz (model view, one run) is skipped
where the given Python lacks it, opening where chromium or playwright is missing.

Run: ``python -m benchmarks.page [--runs 3] [--bertviz PYTHON] [--bertviz-tokens 128]``
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as the command line has it

import numpy as np

from attnviz.records import LayerHeads, LayerStack, MaskRule, RunInfo, SourceInfo, Tokens
from attnviz.render.page.build import build_page

N_LAYERS, N_HEADS, D_HEAD = 12, 12, 64
LIMITS_MB = {(128, "exact"): 16, (128, "compact"): 8, (512, "exact"): 64, (512, "compact"): 32}
WRITE_LIMIT_S, OPEN_LIMIT_S = 2.0, 3.0
BERTVIZ = """
import sys, time, torch
from bertviz import model_view
n = int(sys.argv[1])
torch.manual_seed(0)
attention = [torch.softmax(torch.randn(1, 12, n, n), -1) for _ in range(12)]
started = time.perf_counter()
page = model_view(attention, [f"t{i}" for i in range(n)], html_action="return").data
with open(sys.argv[2], "w", encoding="utf-8") as file:
    file.write(page)
print(time.perf_counter() - started, len(page))
"""


def make_stack(n_tokens: int) -> LayerStack:
    """Draw q, k, v of a causal model, float32."""
    draw = np.random.Generator(np.random.Philox(0)).standard_normal
    shape = (N_HEADS, n_tokens, D_HEAD)
    layers = tuple(
        LayerHeads(
            q=draw(shape, np.float32),
            k=draw(shape, np.float32),
            v=draw(shape, np.float32),
            scale=D_HEAD**-0.5,
            visible=MaskRule(causal=True),
            layer=layer,
        )
        for layer in range(N_LAYERS)
    )
    labels = tuple(f"t{i}" for i in range(n_tokens))
    width = N_HEADS * D_HEAD
    return LayerStack(
        tokens=Tokens(
            text=" ".join(labels),
            ids=tuple(range(n_tokens)),
            pieces=labels,
            labels=labels,
            spans=(None,) * n_tokens,
            special=(False,) * n_tokens,
        ),
        source=SourceInfo(
            "drawn", "philox-0", "", N_LAYERS, N_HEADS, N_HEADS, width, D_HEAD, D_HEAD
        ),
        run=RunInfo("", "cpu", "float32", "none"),
        layers=layers,
        heads=tuple(range(N_HEADS)),
        kv_heads=tuple(range(N_HEADS)),
    )


def write_pages(folder: Path, runs: int) -> list[dict[str, Any]]:
    """Write every page, timing it from q, k, v in memory to a file on disk."""
    found = []
    for n_tokens, kind in LIMITS_MB:
        stack = make_stack(n_tokens)
        path = folder / f"{n_tokens}-{kind}.html"
        times = []
        for _ in range(runs):
            started = time.perf_counter()
            path.write_text(build_page(stack, compact=kind == "compact"), encoding="utf-8")
            times.append(time.perf_counter() - started)
        size_mb = path.stat().st_size / 1e6
        found.append(
            {
                "tokens": n_tokens,
                "kind": kind,
                "size_mb": size_mb,
                "write_s": min(times),
                "path": path,
            }
        )
    return found


def open_pages(rows: Sequence[dict[str, Any]], runs: int) -> None:
    """Add how long Chromium takes from the address to a drawn page, in a fresh tab."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return
    chromium = shutil.which("chromium")
    if chromium is None:
        return
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for row in rows:
            times = []
            for _ in range(runs):
                page = browser.new_page()
                started = time.perf_counter()
                page.goto(row["path"].as_uri())
                page.wait_for_selector("html[data-ready]", timeout=120_000)
                times.append(time.perf_counter() - started)
                page.close()
            row["open_s"] = min(times)
        browser.close()


def measure_bertviz(python: str, n_tokens: int, folder: Path) -> dict[str, Any] | None:
    """Write bertviz' model view of as many heads; None where it is not installed."""
    done = subprocess.run(
        [python, "-W", "ignore", "-c", BERTVIZ, str(n_tokens), str(folder / "bertviz.html")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return None
    seconds, size = done.stdout.split()
    return {
        "tokens": n_tokens,
        "kind": "bertviz",
        "size_mb": int(size) / 1e6,
        "write_s": float(seconds),
    }


def is_within(row: dict[str, Any]) -> bool:
    """True where a page of ours keeps every limit."""
    limit = LIMITS_MB[row["tokens"], row["kind"]]
    is_fast = row["write_s"] <= WRITE_LIMIT_S and row.get("open_s", 0.0) <= OPEN_LIMIT_S
    return row["size_mb"] <= limit and is_fast


def main() -> None:
    """Print the table; exit with 1 if a limit is passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bertviz", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--bertviz-tokens", type=int, nargs="*", default=[128])
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = write_pages(folder, options.runs)
        open_pages(rows, options.runs)
        others = [measure_bertviz(options.bertviz, n, folder) for n in options.bertviz_tokens]
    print("| page | tokens | size, MB | limit | written, s | opened, s |")
    print("|---|---:|---:|---:|---:|---:|")
    for row in (*rows, *(other for other in others if other)):
        limit = LIMITS_MB.get((row["tokens"], row["kind"]), "")
        opened = f"{row['open_s']:.2f}" if "open_s" in row else ""
        print(
            f"| {row['kind']} | {row['tokens']} | {row['size_mb']:.1f} | {limit} "
            f"| {row['write_s']:.2f} | {opened} |"
        )
    if not any(others):
        print("bertviz is not installed for", options.bertviz)
    if options.json:
        for row in rows:
            row.pop("path")
        Path(options.json).write_text(
            json.dumps([*rows, *(o for o in others if o)], indent=1) + "\n", encoding="utf-8"
        )
    sys.exit(not all(is_within(row) for row in rows))


if __name__ == "__main__":
    main()
