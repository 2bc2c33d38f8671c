"""Exact attention over any length: blocks of rows, one pass, nothing L × S ever held.

What lives here: the loop over heads and blocks, its workers, and what happens without memory.
What does not: sizes (``plan``), a block's arithmetic (``panels``), the figures kept of it
(``sums``), single rows and rectangles (``rectangle``).

How it keeps up with a fused kernel: a block of rows against all its keys stays in the cache as
one panel, so that every figure is one sweep over numbers that are at hand; each worker is one
thread with blocks of its own (inside one operation torch's threads wait for the slowest); keys
are packed once per head; exp2 stands in for exp; a row's maximum is only looked for where scores
could leave the safe range.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import torch

from attnviz.core.device import describe_device, dtype_name, full_float32
from attnviz.core.placing import check_shapes, place_heads, select_heads
from attnviz.core.stream.job import Job, Rows, not_finite, prepare
from attnviz.core.stream.panels import Panel
from attnviz.core.stream.plan import NEED_WEIGHTS, Plan, plan_stream
from attnviz.core.stream.products import Products
from attnviz.core.stream.summary import FIGURES, LayerSummary
from attnviz.core.stream.sums import Distance, First, Links, Pooled, Received, Sums
from attnviz.errors import ResourceError, UsageError
from attnviz.memory import is_exhausted
from attnviz.records import LayerHeads, Span

Progress = Callable[[int, int], None]
"""``progress(rows done, rows in all)``; called from the workers, one at a time."""

_RunAll = Callable[[Callable[[int], list[Sums]]], list[list[Sums]]]

_FEWEST_ROWS = 16


def stream(
    heads: LayerHeads,
    *,
    figures: Sequence[str] = FIGURES,
    n_links: int = 8,
    map_size: int = 256,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    subset: Sequence[int] | None = None,
    n_rows: int | None = None,
    tile: int | None = None,
    n_workers: int | None = None,
    progress: Progress | None = None,
) -> LayerSummary:
    """Stream one layer's heads and keep the asked-for figures, all of them exact.

    Parameters
    ----------
    heads
        One layer; arrays or tensors, masks as rules.
    figures
        Any of ``summary.FIGURES``; logsumexp always comes with them. Fewer cost less.
    n_links
        Links kept per query.
    map_size
        R of the pooled R × R map (fewer where the text has fewer tokens).
    device, dtype
        Where, and how q, k and v are stored. Sums are made in float32, for float64 in float64.
    subset
        Query heads in the order wanted; all of them where None.
    n_rows, tile, n_workers
        Rows per block, keys per product, threads; chosen by ``plan.plan_stream`` where None. The figures do
        not depend on them beyond rounding.
    progress
        Called after every block.

    Returns
    -------
    LayerSummary
        Arrays of float32, or of float64 where ``dtype`` is; sums over rows are float64.

    Raises
    ------
    InputError
        Shapes that do not fit one another.
    UsageError
        An unknown figure, a head that does not exist, a number that ``dtype`` cannot hold.
    ResourceError
        Not even a block of few rows fits the memory.

    Notes
    -----
    Per head L·S·(E + F) multiplications, and memory of O(L + S + R²) beyond q, k, v and what is
    handed back.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.zeros((1, 4, 2))
    >>> stream(LayerHeads(q=x, k=x, v=x, scale=1.0)).entropy_HL.tolist()
    [[2.0, 2.0, 2.0, 2.0]]
    """
    check_shapes(heads)
    if n_links < 1:
        raise UsageError(f"{n_links} links per query are too few: 1 or more expected")
    device = device or torch.device("cpu")
    chosen = list(range(heads.n_heads)) if subset is None else list(subset)
    plan = plan_stream(
        heads,
        figures=figures,
        map_size=map_size,
        device=device,
        dtype=dtype,
        subset=chosen,
        n_rows=n_rows,
        tile=tile,
        n_workers=n_workers,
    )
    counter = _Counter(progress, len(chosen) * heads.n_queries)
    notices: list[str] = []
    results: dict[str, torch.Tensor] = {}
    with full_float32(), torch.inference_mode(), _alone(device) as n_threads:
        for place, number in enumerate(chosen):
            head = place_heads(select_heads(heads, [number]), device=device, dtype=dtype)
            found, plan = _stream_head(
                head, plan, counter, notices, figures, n_links, map_size, n_threads
            )
            for name, part in found.items():
                if len(chosen) == 1:
                    results[name] = part.cpu()[None]
                    continue
                if name not in results:
                    results[name] = torch.empty((len(chosen), *part.shape), dtype=part.dtype)
                results[name][place] = part
    arrays = {name: part.numpy() for name, part in results.items()}
    return LayerSummary(
        layer=heads.layer,
        heads=tuple(chosen),
        n_queries=heads.n_queries,
        n_keys=heads.n_keys,
        lse_HL=arrays["lse"],
        seen_HL=arrays["seen"],
        sink_share_HL=arrays.get("sink_share"),
        output_HLF=arrays.get("output"),
        entropy_HL=arrays.get("entropy"),
        link_keys_HLN=arrays.get("link_keys"),
        link_weights_HLN=arrays.get("link_weights"),
        received_HS=arrays.get("received"),
        distance_HD=arrays.get("distance"),
        first_HL=arrays.get("first"),
        map_mean_HRR=arrays.get("map_mean"),
        map_max_HRR=arrays.get("map_max"),
        device=describe_device(device),
        dtype=dtype_name(dtype),
        notices=tuple(notices),
    )


def row_logsumexp(head: LayerHeads, rows: Span) -> torch.Tensor:
    """Compute the logsumexp of some rows of one placed head: (rows,), natural logarithm."""
    plan = plan_stream(head, figures=(), device=head.q.device, dtype=head.q.dtype, n_workers=1)
    job = _job(head, plan, figures=())
    panel = Panel(job, plan.n_rows, keeps_weights=False)
    for start in range(rows[0], rows[1], plan.n_rows):
        panel.run((start, min(start + plan.n_rows, rows[1])), ())
    return job.into.lse_L[slice(*rows)]


def _stream_head(
    head: LayerHeads,
    plan: Plan,
    counter: _Counter,
    notices: list[str],
    figures: Sequence[str],
    n_links: int,
    map_size: int,
    n_threads: int,
) -> tuple[dict[str, torch.Tensor], Plan]:
    """Stream one head; without memory, again with half the rows in a block, and say so."""
    while True:
        before = counter.done
        try:
            job = _job(head, plan, figures)
            make = _sums_maker(head, figures, map_size)
            links = _make_links(head, n_links) if "links" in figures else None
            keeps = not NEED_WEIGHTS.isdisjoint(figures)
            sums = _run_blocks(job, plan, make, links, counter, keeps=keeps, n_threads=n_threads)
            return _collect(job, sums, links), plan
        except (RuntimeError, MemoryError) as error:
            if not is_exhausted(error):
                raise
        # outside the except: the error's traceback holds the tensors that filled the memory
        if plan.n_rows <= _FEWEST_ROWS:
            raise ResourceError(
                f"no memory for {plan.n_rows} rows of {head.n_keys} keys on "
                f"{head.q.device.type}: ask for fewer figures, or use another --device"
            )
        counter.done = before
        plan = replace(plan, n_rows=plan.n_rows // 2)
        notices.append(f"not enough memory: blocks were halved to {plan.n_rows} rows")
        if head.q.device.type == "cuda":  # pragma: no cover  (needs a GPU)
            torch.cuda.empty_cache()


def _job(head: LayerHeads, plan: Plan, figures: Sequence[str]) -> Job:
    q_LE, v_SF = head.q[0], head.v[0]
    broken = not_finite(v_SF)
    if broken:
        v_SF = v_SF.clone()
        v_SF[list(broken)] = 0.0
    products = Products(
        head.k[0],
        v_SF,
        tile=plan.tile,
        rows=plan.n_rows,
        packed=plan.packed,
    )
    into = Rows(
        lse_L=q_LE.new_empty(head.n_queries),
        seen_L=q_LE.new_empty(head.n_queries, dtype=torch.bool),
        entropy_L=q_LE.new_empty(head.n_queries) if "entropy" in figures else None,
        output_LF=q_LE.new_empty(head.n_queries, head.d_v) if "output" in figures else None,
    )
    return prepare(head, products, into, tile=plan.tile, broken=broken)


def _make_links(head: LayerHeads, n_links: int) -> Links:
    q_LE = head.q[0]
    keys_LN = torch.full((head.n_queries, n_links), -1, device=q_LE.device)
    return Links(keys_LN, q_LE.new_zeros(head.n_queries, n_links))


def _sums_maker(
    head: LayerHeads, figures: Sequence[str], map_size: int
) -> Callable[[], list[Sums]]:
    """Return a function that makes one worker's accumulators."""
    q_LE, n_queries, n_keys = head.q[0], head.n_queries, head.n_keys
    first_L = q_LE.new_zeros(n_queries)
    makers: dict[str, Callable[[], Sums]] = {
        "received": lambda: Received(n_keys, q_LE.device),
        "distance": lambda: Distance(n_queries, n_keys, q_LE.device),
        "first": lambda: First(first_L),
        "map": lambda: Pooled(
            n_queries, n_keys, min(map_size, n_queries), min(map_size, n_keys), q_LE
        ),
    }
    return lambda: [make() for name, make in makers.items() if name in figures]


def _run_blocks(
    job: Job,
    plan: Plan,
    make: Callable[[], list[Sums]],
    links: Links | None,
    counter: _Counter,
    *,
    keeps: bool,
    n_threads: int,
) -> list[Sums]:
    """Run all blocks; worker w takes every n-th block from the w-th on, so runs repeat exactly."""
    n_queries = job.head.n_queries
    starts = range(0, n_queries, plan.n_rows)
    stop = threading.Event()

    def work(worker: int) -> list[Sums]:
        with torch.inference_mode():
            sums = make()
            panel = Panel(job, plan.n_rows, keeps_weights=keeps)
            for start in starts[worker :: plan.n_workers]:
                if stop.is_set():
                    break
                rows = (start, min(start + plan.n_rows, n_queries))
                try:
                    panel.run(rows, sums, links)
                    counter.add(rows[1] - rows[0])
                except BaseException:
                    stop.set()
                    raise
            return sums

    with _workers(plan.n_workers, n_threads) as run_all:
        try:
            first, *rest = run_all(work)
        finally:
            stop.set()
    for others in rest:
        for mine, other in zip(first, others, strict=True):
            mine.join(other)
    return first


@contextmanager
def _workers(n_workers: int, n_threads: int) -> Iterator[_RunAll]:
    """Give every worker its share of the threads; a single worker is this thread itself."""
    if n_workers == 1:
        yield lambda work: [work(0)]
        return
    share = max(1, n_threads // n_workers)
    with ThreadPoolExecutor(
        n_workers, initializer=torch.set_num_threads, initargs=(share,)
    ) as pool:
        yield lambda work: list(pool.map(work, range(n_workers)))


@contextmanager
def _alone(device: torch.device) -> Iterator[int]:
    """Let this thread work alone on a CPU; yield how many threads there are to share out.

    What is left to it is small, and is done before torch's threads have met. The setting is the
    process's own; it is put back on the way out.
    """
    n_threads = torch.get_num_threads()
    try:
        if device.type == "cpu":
            torch.set_num_threads(1)
        yield n_threads
    finally:
        torch.set_num_threads(n_threads)


def _collect(job: Job, sums: list[Sums], links: Links | None) -> dict[str, torch.Tensor]:
    into = job.into
    found = {"lse": into.lse_L, "seen": into.seen_L}
    if job.head.sinks is not None:
        found["sink_share"] = torch.exp(job.head.sinks[0] - into.lse_L)
    if into.output_LF is not None:
        found["output"] = into.output_LF
    if into.entropy_L is not None:
        found["entropy"] = into.entropy_L
    if links is not None:
        found |= {"link_keys": links.keys_LN, "link_weights": links.weights_LN}
    for one in sums:
        found |= one.result()
    return found


class _Counter:
    """Rows done so far, told to whoever shows progress."""

    def __init__(self, progress: Progress | None, n_rows: int) -> None:
        self.progress, self.n_rows, self.done = progress, n_rows, 0
        self.lock = threading.Lock()

    def add(self, n_rows: int) -> None:
        with self.lock:
            self.done += n_rows
            if self.progress is not None:
                self.progress(self.done, self.n_rows)


__all__ = ["FIGURES", "LayerSummary", "plan_stream", "row_logsumexp", "stream"]
