"""Measure one way to compute attention at one length, in a process of its own.

Run by ``runs.cost``: ``python -m attnviz.runs.cost_child METHOD LENGTH D_K CAUSAL SECONDS``. Prints
one line of JSON: seconds of every run by the clock and of all threads, and the peak memory of the first above its state with q, k, v.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_ENOUGH_S = 0.5
_FEWEST_RUNS, _MOST_RUNS = 3, 7
_WARM_TOKENS = 256


def make_run(method: str, length: int, d_k: int, *, causal: bool) -> Callable[[], object]:
    """Return a function that computes one head over random q, k, v, which lie ready."""
    import torch

    from attnviz.core.stream.stream import stream
    from attnviz.records import LayerHeads, MaskRule

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, length, d_k) for _ in range(3))
    if method == "naive":
        return lambda: naive(q[0], k[0], v[0], causal=causal)
    if method == "fused":
        fused = torch.nn.functional.scaled_dot_product_attention
        return lambda: fused(q[None], k[None], v[None], is_causal=causal)
    heads = LayerHeads(q, k, v, d_k**-0.5, MaskRule(causal=causal))
    return lambda: stream(heads)


def naive(
    q_LE: torch.Tensor, k_SE: torch.Tensor, v_SF: torch.Tensor, *, causal: bool
) -> torch.Tensor:
    """Compute softmax(q·kᵀ/√d_k)·v as it is written: with two L × L matrices at once."""
    import torch

    scaled_LS = (q_LE @ k_SE.T) * q_LE.shape[-1] ** -0.5
    if causal:
        scaled_LS.masked_fill_(torch.ones_like(scaled_LS, dtype=torch.bool).triu_(1), -torch.inf)
    output_LF: torch.Tensor = scaled_LS.softmax(-1) @ v_SF
    return output_LF


def memory_bytes(field: str) -> int | None:
    """Return ``VmRSS`` or ``VmHWM`` of this process; None where nobody says."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def forget_peak() -> None:
    """Let the peak begin anew (Linux); elsewhere it includes what loading took."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _wants_more(seconds: list[float], most_s: float) -> bool:
    """Three runs or half a second; a neighbour's work must not pass for ours. Long ones once."""
    n_runs, total = len(seconds), sum(seconds)
    if n_runs < _FEWEST_RUNS:
        return total + (seconds[-1] if seconds else 0.0) < most_s
    return total < _ENOUGH_S and n_runs < _MOST_RUNS


def main(method: str, length: int, d_k: int, causal: bool, most_s: float) -> None:
    """Measure, for at most about so many seconds, and print the line."""
    make_run(method, _WARM_TOKENS, d_k, causal=causal)()
    run = make_run(method, length, d_k, causal=causal)
    forget_peak()
    before = memory_bytes("VmRSS")
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    peak: int | None = None
    while _wants_more(seconds, most_s):
        started, cpu_started = time.perf_counter(), time.process_time()
        run()
        seconds.append(time.perf_counter() - started)
        cpu_seconds.append(time.process_time() - cpu_started)
        if len(seconds) == 1 and before is not None:
            after = memory_bytes("VmHWM")
            peak = None if after is None else max(0, after - before)
    answer = {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    _, name, n_tokens, width, rule, limit = sys.argv
    main(name, int(n_tokens), int(width), rule == "causal", float(limit))
