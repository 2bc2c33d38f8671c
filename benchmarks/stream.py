"""The stream beside PyTorch's fused kernel and the naive matrix: time, memory, exponents.

One head, d_k 64, float32. For every length all cases take turns in one process, so that a ratio
compares neighbours in time; medians of the rounds. Memory is the peak of a fresh process per case
above what it held with q, k, v in place.

Run: ``python -m benchmarks stream [--max-length 65536] [--rounds 5] [--json FILE] [--table FILE]``
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
NAIVE_UP_TO = 8192
WIDTH = 64
ACCUMULATORS = ("links", "received", "distance", "first", "map")
LIGHT = ("output", "entropy")
CASES: dict[str, tuple[str, ...]] = {
    "output": ("output",),
    "output + entropy": LIGHT,
    **{f"… + {name}": (*LIGHT, name) for name in ACCUMULATORS},
    "everything": (*LIGHT, *ACCUMULATORS),
}
FUSED, NAIVE = "fused kernel", "naive matrix"
LIMITS = {
    ("everything", 16384): 1.5,
    ("everything", 32768): 1.5,
    ("everything", 65536): 2.0,
    ("output + entropy", 16384): 1.2,
    ("output + entropy", 32768): 1.2,
    ("output + entropy", 65536): 1.2,
}
"""× the fused kernel's time, where torch carries oneDNN; 2.7 for everything on plain ``mm``."""
CAUSAL_LIMIT = 0.6
"""× the plain stream's time."""


def make_case(name: str, length: int, *, causal: bool) -> Callable[[], object]:
    """Return a function that runs one case once, inputs in place."""
    import torch

    from attnviz.core.stream.stream import stream
    from attnviz.records import LayerHeads, MaskRule

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, length, WIDTH)
    if name == FUSED:
        fused = torch.nn.functional.scaled_dot_product_attention
        return lambda: fused(q[None], k[None], v[None], is_causal=causal)
    if name == NAIVE:
        return lambda: naive_matrix(q[0], k[0], v[0], causal=causal)
    heads = LayerHeads(q, k, v, WIDTH**-0.5, MaskRule(causal=causal))
    return lambda: stream(heads, figures=CASES[name])


def naive_matrix(q_LE: Any, k_SE: Any, v_SF: Any, *, causal: bool) -> object:
    """Compute what tools do that keep the whole matrix: weights, output, entropy, links."""
    import torch

    scores_LS = q_LE @ k_SE.T * WIDTH**-0.5
    if causal:
        hidden = torch.ones_like(scores_LS, dtype=torch.bool).triu(1)
        scores_LS = scores_LS.masked_fill(hidden, -torch.inf)
    weights_LS = scores_LS.softmax(-1)
    entropy_L = torch.special.entr(weights_LS).sum(-1)
    return weights_LS @ v_SF, entropy_L, weights_LS.topk(8), weights_LS.sum(0)


def time_length(length: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Time every case of one length in turn: (seconds, CPU seconds) per round, but the first.

    On a machine that others use too, CPU seconds of all threads tell more than the clock.
    """
    runs = {}
    for causal in (False, True):
        suffix = ", causal" if causal else ""
        names = [FUSED, *([NAIVE] if length <= NAIVE_UP_TO else []), *CASES]
        for name in names:
            runs[name + suffix] = make_case(name, length, causal=causal)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            started, cpu_started = time.perf_counter(), time.process_time()
            run()
            if turn:
                used = time.process_time() - cpu_started
                times[name].append((time.perf_counter() - started, used))
    return times


def peak_mib(name: str, length: int, *, causal: bool) -> float:
    """Return the peak memory of one run in a fresh process, above its state with q, k, v."""
    code = (
        "from benchmarks.stream import make_case, memory_kib\n"
        f"warm = make_case({name!r}, 256, causal={causal})\nwarm()\n"
        f"run = make_case({name!r}, {length}, causal={causal})\n"
        "before = memory_kib('VmRSS')\nrun()\nprint(memory_kib('VmHWM') - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024


def memory_kib(field: str) -> int:
    """Return a line of this process's memory facts (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise RuntimeError(f"{field} is not told here")


def fit_exponent(lengths: list[int], values: list[float]) -> float | None:
    """Return p of value ~ length^p over lengths from 8k on, by least squares; None below two."""
    points = [
        (math.log(n), math.log(value))
        for n, value in zip(lengths, values, strict=True)
        if n >= 8192 and value > 0
    ]
    if len(points) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def measure(max_length: int, rounds: int, *, with_memory: bool) -> dict[str, Any]:
    """Measure everything; ratios are medians over the fused kernel's median at that length."""
    import torch

    from attnviz.core.device import thread_facts
    from attnviz.core.stream.products import can_pack

    found: dict[str, Any] = {
        "torch": torch.__version__,
        "facts": thread_facts(),
        "packed": can_pack(torch.device("cpu"), torch.float32),
        "lengths": [],
        "rows": [],
    }
    for length in LENGTHS:
        if length > max_length:
            break
        found["lengths"].append(length)
        turns = rounds if length <= 16384 else max(2, rounds // 2)
        times = time_length(length, turns)
        medians, cpu = (
            {
                name: statistics.median(pair[which] for pair in pairs)
                for name, pairs in times.items()
            }
            for which in (0, 1)
        )
        for name, median in medians.items():
            plain, comma, _ = name.partition(", causal")
            row = {
                "case": plain,
                "causal": bool(comma),
                "length": length,
                "seconds": median,
                "best_s": min(pair[0] for pair in times[name]),
                "cpu_s": cpu[name],
                "ratio": median / medians[FUSED],
                "cpu_ratio": cpu[name] / cpu[FUSED],
                "limit": None if comma else LIMITS.get((plain, length)),
            }
            if comma and plain in CASES:
                row["of_plain"] = median / medians[plain]
            if with_memory and plain in (FUSED, NAIVE, "output + entropy", "everything"):
                row["peak_mib"] = peak_mib(plain, length, causal=bool(comma))
            found["rows"].append(row)
            print(f"{length:6d}  {name:32s} {median:8.3f} s", file=sys.stderr, flush=True)
    return found | exponents(found)


def exponents(found: dict[str, Any]) -> dict[str, Any]:
    """Fit how time and memory of "everything" grow from 8k on."""
    rows = [row for row in found["rows"] if row["case"] == "everything" and not row["causal"]]
    lengths = [row["length"] for row in rows]
    kept = [row for row in rows if row.get("peak_mib", 0) > 0]
    return {
        "time_exponent": fit_exponent(lengths, [row["seconds"] for row in rows]),
        "memory_exponent": fit_exponent(
            [row["length"] for row in kept], [row["peak_mib"] for row in kept]
        ),
    }


def table(found: dict[str, Any]) -> str:
    """Return a Markdown table: × the fused kernel, one column per length; memory below."""
    lengths = found["lengths"]
    cells = {(row["case"], row["causal"], row["length"]): row for row in found["rows"]}
    head = "| × fused kernel | " + " | ".join(f"{n // 1024}k" for n in lengths) + " |"
    lines = [head, "|---" + "|---:" * len(lengths) + "|"]

    def line(name: str, causal: bool, field: str, form: str) -> str:
        shown = []
        for n in lengths:
            value = cells.get((name, causal, n), {}).get(field)
            shown.append("–" if value is None else form.format(value))
        return f"| {name}{', causal' if causal else ''} | " + " | ".join(shown) + " |"

    for causal in (False, True):
        for name in (FUSED, NAIVE, *CASES):
            lines.append(line(name, causal, "ratio", "{:.2f}"))
    lines += ["", head.replace("×", "CPU ×"), lines[1]]
    lines += [line(name, False, "cpu_ratio", "{:.2f}") for name in (FUSED, *CASES)]
    lines += ["", head.replace("× fused kernel", "seconds"), lines[1]]
    lines += [line(name, False, "seconds", "{:.3f}") for name in (FUSED, NAIVE, "everything")]
    lines += ["", head.replace("× fused kernel", "causal / plain"), lines[1]]
    lines += [line(name, True, "of_plain", "{:.2f}") for name in ("output + entropy", "everything")]
    lines += ["", head.replace("× fused kernel", "peak MiB beyond q, k, v"), lines[1]]
    for name in (FUSED, NAIVE, "output + entropy", "everything"):
        lines.append(line(name, False, "peak_mib", "{:.0f}"))
    for what in ("time", "memory"):
        power = found[f"{what}_exponent"]
        if power is not None:
            lines += ["", f"{what.capitalize()} of everything grows as L^{power:.2f} from 8k on."]
    return "\n".join(lines) + "\n"


def broken_limits(found: dict[str, Any]) -> list[str]:
    """Return one line for every limit that does not hold."""
    broken = []
    for row in found["rows"]:
        name, length = row["case"], row["length"]
        limit = row["limit"]
        if limit is not None and not found["packed"]:
            limit = 2.7 if name == "everything" else None
        if limit is not None and row["ratio"] > limit:
            broken.append(f"{name} at {length}: {row['ratio']:.2f} × fused kernel, limit {limit}")
        if name == "everything" and length >= 16384 and row.get("of_plain", 0) > CAUSAL_LIMIT:
            broken.append(
                f"{name}, causal at {length}: {row['of_plain']:.2f} × plain, limit {CAUSAL_LIMIT}"
            )
        # one output of L × 64 float32 is part of what was measured
        room = length / 1024 + 64 + length * WIDTH * 4 / 2**20
        if name == "everything" and row.get("peak_mib", 0) > room:
            broken.append(f"{name} at {length}: {row['peak_mib']:.0f} MiB, limit {room:.0f}")
    return broken


def main() -> None:
    """Measure, print the table, write the files; exit with 1 if a limit does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-length", type=int, default=LENGTHS[-1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", default=None)
    parser.add_argument("--table", default=None)
    options = parser.parse_args()
    found = measure(options.max_length, options.rounds, with_memory=not options.no_memory)
    text = table(found)
    print(text)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.table:
        Path(options.table).write_text(text, encoding="utf-8")
    broken = broken_limits(found)
    for one in broken:
        print(one, file=sys.stderr)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
