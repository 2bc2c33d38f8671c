"""How fast a heatmap is drawn and saved, how large its files are, and what 500 of them leave behind.

Run: python benchmarks/figures.py [--pictures 500] [--seaborn-limit 512]

Prints one line per size and format: seconds (best of three; imports excluded) and bytes, beside
seaborn 0.13 where it is installed; then memory over many pictures, and the start-up of the
command line against the bare imports of matplotlib.
"""

from __future__ import annotations

import argparse
import gc
import io
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from attnviz.render.formats.png_svg_pdf import pdf, png, svg
from attnviz.render.picture import figure
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document, Heatmap, Label, Matrix

FORMATS: dict[str, Any] = {"png": png, "svg": svg, "pdf": pdf}
SENTENCE = "A cute teddy bear is reading"
IMPORTS = "import matplotlib.figure, matplotlib.backends.backend_agg"


def document(n: int) -> Document:
    """Return softmax rows of random scores with a standard deviation of 3, like a trained head's."""
    values = np.exp(np.random.default_rng(0).normal(size=(n, n)) * 3)
    values /= values.sum(axis=1, keepdims=True)
    names = tuple(Label(f"token{i}") for i in range(n))
    return Document((Heatmap("weights", (Matrix("L0.H0", values, names, names),), (0.0, 1.0)),))


def best_of(n: int, work: Any) -> tuple[float, int]:
    """Return the shortest of ``n`` runs in seconds, and the size of the result in bytes."""
    times, size = [], 0
    for _ in range(n):
        start = time.perf_counter()
        size = len(work())
        times.append(time.perf_counter() - start)
    return min(times), size


def seaborn_picture(values: Any, suffix: str) -> bytes:
    """Draw what a user of seaborn would: all defaults, and every tick label."""
    import seaborn
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(8, 8), dpi=150)
    FigureCanvasAgg(drawn)
    seaborn.heatmap(values, ax=drawn.subplots(), xticklabels=True, yticklabels=True)
    out = io.BytesIO()
    drawn.savefig(out, format=suffix)
    return out.getvalue()


def resident_mb() -> float:
    """Return the memory this process holds, in MB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 1e6


def start_up() -> None:
    """Compare a six-token PNG from the command line with matplotlib's bare imports."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "h.png")
        ours = [sys.executable, "-m", "attnviz", "heatmap", SENTENCE, "-q", "--force", "-o", path]
        bare = [sys.executable, "-c", IMPORTS]
        pairs = []
        for _ in range(7):
            times = []
            for command in (ours, bare):
                start = time.perf_counter()
                subprocess.run(command, check=True, capture_output=True)
                times.append(time.perf_counter() - start)
            pairs.append(times)
    first, second = (min(column) for column in zip(*pairs, strict=True))
    print(f"6-token PNG from the command line {first:.2f} s, bare imports {second:.2f} s: "
          f"× {first / second:.2f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--seaborn-limit", type=int, default=512)
    arguments = parser.parse_args()
    png.render(document(3), Screen())
    try:
        import seaborn
    except ImportError:
        seaborn = None
        print("seaborn is not installed: no comparison")
    for n in (6, 64, 512, 2048):
        shown = document(n)
        values = shown.shapes[0].panels[0].values  # type: ignore[union-attr]
        for suffix, module in FORMATS.items():
            seconds, size = best_of(3, lambda m=module, d=shown: m.render(d, Screen()))
            line = f"{n:>5} × {n:<5} {suffix}  {seconds:7.3f} s  {size / 1000:9.0f} kB"
            if seaborn is not None and n <= arguments.seaborn_limit:
                other, length = best_of(1, lambda v=values, s=suffix: seaborn_picture(v, s))
                line += f"   seaborn {other:8.3f} s  {length / 1000:9.0f} kB"
            print(line, flush=True)
    shown = document(6)
    warnings.simplefilter("error")
    for _ in range(100):
        png.render(shown, Screen())
    gc.collect()
    before = resident_mb()
    for _ in range(arguments.pictures):
        figure.to_png(figure.draw(shown, Screen()))
    gc.collect()
    print(
        f"{arguments.pictures} pictures: memory {before:.1f} → {resident_mb():.1f} MB, no warning"
    )
    start_up()


if __name__ == "__main__":
    main()
