"""What a length costs: predicted and measured work and memory, for L, 2L, 4L, …

What lives here: which measurements are made within the bounds, and the exponents fitted to them.
What does not: a measurement itself (``cost_child``, a fresh process each), charts (``render``).
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnviz.errors import ResourceError, UsageError

COST_SCHEMA = "attnviz.cost/1"
METHODS = ("naive", "fused", "stream")
"""The whole L × L matrix, PyTorch's fused kernel, and our stream with every figure."""

_FIT_FROM = 8192
_FEWEST = 3
_START_S = 3.0
_LONGEST_S = 20.0
_RUNS = 1.5
"""Short work is run several times, long work once."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One method at one length.

    Parameters
    ----------
    operations
        Predicted: a multiplication and an addition count as two.
    predicted_bytes
        Memory beyond q, k, v that the method needs by its design.
    seconds, cpu_seconds, peak_bytes
        Measured by the clock, and of all threads together (what others do on the machine counts less); the best of up to 7 runs; None where not, ``skipped`` says why.
    """

    length: int
    method: str
    operations: int
    predicted_bytes: int
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Exponent:
    """p of value ~ L^p by least squares on logarithms, with its standard error."""

    method: str
    what: str
    power: float
    error: float
    n_points: int
    first: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Everything that ``attnviz cost`` found out."""

    d_k: int
    causal: bool
    device: str
    version: str
    torch_version: str
    rows: tuple[Measured, ...]
    exponents: tuple[Exponent, ...]
    notices: tuple[str, ...] = ()


def cost_to_dict(cost: Cost) -> dict[str, Any]:
    """Return a record of schema ``attnviz.cost/1``, ready for JSON."""
    return {"schema": COST_SCHEMA, **asdict(cost)}


def measure_cost(
    *,
    first: int = 1024,
    last: int = 32768,
    d_k: int = 64,
    causal: bool = False,
    methods: Sequence[str] = METHODS,
    max_memory_bytes: int | None = None,
    max_seconds: float = 60.0,
    tell: Callable[[Measured], None] = lambda _: None,
) -> Cost:
    """Measure one head in float32 at L, 2L, 4L, … up to ``last``.

    Parameters
    ----------
    first, last
        Shortest and longest length in tokens.
    max_memory_bytes
        Nothing that is predicted to need more is run; half of the free memory where None.
    max_seconds
        For all measurements together; what would not fit any more is left out, and said.
    tell
        Called after every measurement.

    Raises
    ------
    UsageError
        Lengths or bounds that leave nothing to measure.
    ResourceError
        A measuring process ended without an answer.
    """
    import torch

    from attnviz import __version__
    from attnviz.core.device import describe_device, free_memory_bytes

    if not 16 <= first <= last:
        raise UsageError(f"lengths from {first} to {last}: 16 or more expected, rising")
    device = torch.device("cpu")
    free = free_memory_bytes(device) or 2**31
    room = free // 2 if max_memory_bytes is None else max_memory_bytes
    started = time.monotonic()
    rows: list[Measured] = []
    length = first
    while length <= last:
        for method in methods:
            row = predict(method, length, d_k, causal=causal)
            left = max_seconds - (time.monotonic() - started)
            rows.append(_measure(row, rows, d_k, causal=causal, room=room, left=left))
            tell(rows[-1])
        length *= 2
    notices = tuple(
        f"{row.method} at {row.length:,} tokens was left out: {row.skipped}"
        for row in rows
        if row.skipped
    )
    if not any(row.seconds for row in rows):
        raise UsageError(f"nothing fits the bounds: {notices[0]}")
    return Cost(
        d_k=d_k,
        causal=causal,
        device=describe_device(device),
        version=__version__,
        torch_version=str(torch.__version__),
        rows=tuple(rows),
        exponents=fit(rows),
        notices=notices,
    )


def predict(method: str, length: int, d_k: int, *, causal: bool) -> Measured:
    """Predict operations and memory beyond q, k, v from the sizes alone.

    Examples
    --------
    >>> predict("naive", 1000, 64, causal=False).operations
    256000000
    >>> predict("naive", 1000, 64, causal=False).predicted_bytes
    8256000
    """
    output_bytes = 4 * length * d_k
    cells = length * (length + 1) // 2 if causal and method != "naive" else length**2
    operations = 4 * cells * d_k
    if method == "naive":
        matrices = 8 * length**2 + (length**2 if causal else 0)
        return Measured(length, method, operations, matrices + output_bytes)
    if method == "fused":
        return Measured(length, method, operations, output_bytes + 4 * length)
    import numpy as np

    from attnviz.core.stream.plan import plan_stream
    from attnviz.core.stream.stream import FIGURES
    from attnviz.records import LayerHeads, MaskRule

    sizes = np.broadcast_to(np.float32(0), (1, length, d_k))
    heads = LayerHeads(sizes, sizes, sizes, 1.0, MaskRule(causal=causal))
    work = plan_stream(heads, figures=FIGURES).work_bytes
    kept = length * (4 * 4 + 8 * 12 + 3 * 8) + 12 * 256**2
    return Measured(length, method, operations, work + kept + output_bytes)


def _measure(
    row: Measured, before: Sequence[Measured], d_k: int, *, causal: bool, room: int, left: float
) -> Measured:
    """Run one measurement in a fresh process, if it fits the bounds."""
    if row.predicted_bytes > room:
        why = f"it needs {row.predicted_bytes / 1e9:.1f} GB, {room / 1e9:.1f} are allowed"
        return _skip(row, why)
    last = next((one for one in reversed(before) if one.method == row.method), None)
    if last is not None and last.skipped:
        return _skip(row, "the length before was left out already")
    expected = 4 * _RUNS * last.seconds if last is not None and last.seconds else 0.0
    if expected + _START_S > left:
        whole = f"about {expected + _START_S:.1f} s, its start included"
        return _skip(row, f"it would take {whole}; {max(0, left):.1f} s are left")
    words = [row.method, str(row.length), str(d_k), "causal" if causal else "plain"]
    words.append(str(min(_LONGEST_S, left / 2)))
    command = [sys.executable, "-m", "attnviz.runs.cost_child", *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=left + _START_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _skip(row, f"it took more than the {left:.0f} s that were left")
    if done.returncode:
        last_line = (done.stderr.decode(errors="replace").splitlines() or ["no message"])[-1]
        raise ResourceError(
            f"measuring {row.method} at {row.length} tokens ended with {done.returncode}: "
            f"{last_line}; lower --max-memory"
        )
    found = json.loads(done.stdout)
    return Measured(
        row.length,
        row.method,
        row.operations,
        row.predicted_bytes,
        seconds=min(found["seconds"]),
        cpu_seconds=min(found["cpu_seconds"]),
        peak_bytes=found["peak_bytes"],
    )


def _skip(row: Measured, why: str) -> Measured:
    return Measured(row.length, row.method, row.operations, row.predicted_bytes, skipped=why)


def fit(rows: Sequence[Measured]) -> tuple[Exponent, ...]:
    """Fit how time and memory of every method grow, from 8,192 tokens on where there are enough.

    Shorter texts are ruled by fixed costs, so the three longest are taken where fewer are as long.

    Examples
    --------
    >>> rows = [Measured(n, "naive", 0, 0, seconds=n * n / 1e9) for n in (1024, 2048, 4096)]
    >>> [(one.what, round(one.power, 6), one.n_points) for one in fit(rows)]
    [('time', 2.0, 3)]
    """
    fields = {"time": "seconds", "CPU time": "cpu_seconds", "memory": "peak_bytes"}
    found: list[Exponent] = []
    for method in dict.fromkeys(row.method for row in rows):
        for what, name in fields.items():
            points = [
                (row.length, float(value))
                for row in rows
                if row.method == method and (value := getattr(row, name))
            ]
            long = [point for point in points if point[0] >= _FIT_FROM]
            points = long if len(long) >= _FEWEST else points[-_FEWEST:]
            if len(points) >= _FEWEST:
                slope = _slope(points)
                found.append(Exponent(method, what, *slope, len(points), points[0][0]))
    return tuple(found)


def _slope(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return the slope of log value over log length, and its standard error."""
    xs = [math.log(length) for length, _ in points]
    ys = [math.log(value) for _, value in points]
    line = statistics.linear_regression(xs, ys)
    rest = sum((y - line.slope * x - line.intercept) ** 2 for x, y in zip(xs, ys, strict=True))
    mean = statistics.fmean(xs)
    spread = sum((x - mean) ** 2 for x in xs)
    return line.slope, math.sqrt(rest / (len(points) - 2) / spread)
