"""A text of any length: open a source, cut the text, plan, stream layer by layer.

What lives here: joining sources and the streamed core; what the work will take before it is done.
What does not: mathematics (``core.stream``), dense traces (``pipeline``), screens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from attnviz.core.stream.summary import FIGURES, LayerSummary, Rectangle, Summary
from attnviz.errors import ResourceError, UsageError
from attnviz.memory import compare
from attnviz.records import LayerHeads, MaskRule, Span
from attnviz.rounding import worse
from attnviz.runs.explain import norms_of
from attnviz.runs.parity import parity_of, verify_model
from attnviz.runs.request import choose_heads
from attnviz.runs.run import Origin, Run, open_text

if TYPE_CHECKING:
    import torch

SHOWN = tuple(figure for figure in FIGURES if figure != "output")
"""What a summary holds: z of every token is left out, nobody reads it and it is the largest."""

_PROBED_MULTIPLY_ADDS = 10**10
_SLOWLY_CUT = 1_000_000
_PROBE_TOKENS = 3072
_USUAL_RATE = 2e10


@dataclass(frozen=True, slots=True)
class Work:
    """What a summary takes, told before it is done.

    Parameters
    ----------
    n_tokens, n_layers, n_heads
        What is streamed.
    multiply_adds
        Of the two products over all layers and heads; twice as many operations.
    memory_bytes
        q, k and v of one layer, the blocks, and the figures of all layers.
    seconds
        Estimated from a small example on the same device.
    """

    n_tokens: int
    n_layers: int
    n_heads: int
    multiply_adds: int
    memory_bytes: int
    seconds: float


def summarize(
    text: str,
    *,
    layer: str | int | None = None,
    head: str | int | None = None,
    words: bool = False,
    verify: bool = False,
    figures: Sequence[str] = SHOWN,
    n_links: int = 8,
    map_size: int = 128,
    announce: Callable[[Work], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    **origin: Unpack[Origin],
) -> Summary:
    """Compute where each head looks, how widely and how far, without any L × L matrix.

    Parameters
    ----------
    text
        Any string with at least one word, of any length.
    layer, head
        A number, a range like ``"0-3"``, or ``"all"`` (what None means here); of a weight file,
        ``layer`` says which one it is.
    figures
        Any of ``core.summary.FIGURES``; fewer cost less.
    n_links
        Strongest links kept per query.
    map_size
        R of the pooled R × R map.
    announce
        Told what the work will take before it begins.
    progress
        ``progress(rows done, rows in all)``, called from several threads, one at a time.

    The other parameters are those of ``explain``.

    Returns
    -------
    Summary
        One ``LayerSummary`` per layer; ``checks`` has the ``parity`` of a model.

    Raises
    ------
    InputError
        Text, file or model cannot be read.
    UsageError
        An option out of range.
    ResourceError
        It does not fit the memory; the message says what would.
    CheckFailed
        ``verify`` found more than the tolerance.

    Notes
    -----
    Time grows with heads · L², memory with L.

    Examples
    --------
    >>> found = summarize("A cute teddy bear is reading")
    >>> found.by_layer[0].entropy_HL.shape
    (1, 6)
    """
    run, heads = _open(text, layer=layer, head=head, words=words, **origin)
    if verify:
        run = replace(run, checks=verify_model(run))
    return stream_run(
        run,
        heads,
        figures=figures,
        n_links=n_links,
        map_size=map_size,
        announce=announce,
        progress=progress,
    )


def stream_run(
    run: Run,
    heads: Sequence[int],
    *,
    figures: Sequence[str] = SHOWN,
    n_links: int = 8,
    map_size: int = 128,
    announce: Callable[[Work], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    notices: Sequence[str] = (),
) -> Summary:
    """Stream some heads of a run's layers, on its device and in its precision; see ``summarize``."""
    announce(_plan(run, heads, figures=figures, n_links=n_links, map_size=map_size))
    from attnviz.core.stream.stream import stream

    device, dtype = _where(run)
    by_layer: list[LayerSummary] = []
    checks: dict[str, float] = {}
    n_rows = len(run.queries) * len(heads)

    def consume(found: LayerHeads) -> None:
        own = found.own_output
        part = stream(
            found,
            figures=figures if own is None else tuple({*figures, "output"}),
            subset=heads,
            n_links=n_links,
            map_size=map_size,
            device=device,
            dtype=dtype,
            progress=lambda done, _: progress(
                len(by_layer) * n_rows + done, len(run.layers) * n_rows
            ),
        )
        norms = norms_of((found,), heads)
        if norms is not None and part.link_keys_HLN is not None:
            part = replace(part, value_norms_HS=norms[0])
        if own is not None:
            assert part.output_HLF is not None
            worst = parity_of(run.source, [(found, heads)], part.output_HLF[None])
            checks["parity"] = worse(worst["parity"], checks.get("parity", 0.0))
            if "output" not in figures:
                part = replace(part, output_HLF=None)
        by_layer.append(part)

    overrides = run.each(consume)
    told = (*(notice for one in by_layer for notice in one.notices), *_blind_notice(by_layer))
    about = run.about(overrides, core="stream", checks=checks, notices=(*notices, *told))
    return Summary(about, tuple(by_layer))


def compute_rectangle(
    text: str, *, rows: Span | None = None, keys: Span | None = None, **asked_for: Any
) -> Rectangle:
    """Compute the exact weights of some queries on some keys of a text of any length.

    Parameters
    ----------
    rows, keys
        Half-open ranges of tokens; all of them where None.
    asked_for
        The other parameters of ``summarize`` that say where attention comes from.

    Raises
    ------
    UsageError
        A range outside the text.
    ResourceError
        More than 2²⁴ cells in a head.
    """
    if asked_for.pop("verify", False):
        raise UsageError("--verify is for a whole text: leave out --rows and --keys")
    run, heads = _open(text, **asked_for)
    from attnviz.core.stream.rectangle import rectangle

    device, dtype = _where(run)
    rows, keys = rows or (0, len(run.queries)), keys or (0, len(run.keys))
    by_layer: list[Any] = []

    def consume(found: LayerHeads) -> None:
        by_layer.append(
            [
                rectangle(found, head, rows=rows, keys=keys, device=device, dtype=dtype)
                for head in heads
            ]
        )

    about = run.about(run.each(consume), core="stream")
    return Rectangle(about, run.layers, heads, rows, keys, np.array(by_layer))


def _open(
    text: str,
    *,
    layer: str | int | None = None,
    head: str | int | None = None,
    words: bool = False,
    **origin: Unpack[Origin],
) -> tuple[Run, tuple[int, ...]]:
    if head in ("mean", "auto"):
        raise UsageError(f"a summary has no head {head!r}: give --head all, a number or a range")
    if words:
        raise UsageError("a summary is of tokens: leave --words out")
    from attnviz.core.device import choose_device, choose_dtype

    origin.setdefault("dtype", "float32")
    device = choose_device(origin.get("device", "auto"))
    choose_dtype(origin["dtype"], device=device)
    notify = origin.get("notify")
    if notify is not None and len(text) > _SLOWLY_CUT:
        notify(f"cutting {len(text):,} characters into tokens")
    run = open_text(text, layer=layer, **origin)
    computing = replace(run.computing, device=str(device), dtype=origin["dtype"])
    heads = choose_heads("all" if head is None else head, run.source.info.n_heads)
    return replace(run, computing=computing), heads


def _where(run: Run) -> tuple[torch.device, torch.dtype]:
    """Return where and in what precision a run is streamed."""
    from attnviz.core.device import choose_device, choose_dtype

    device = choose_device(run.computing.device)
    return device, choose_dtype(run.computing.dtype, device=device)


def _plan(
    run: Run, heads: Sequence[int], *, figures: Sequence[str], n_links: int, map_size: int
) -> Work:
    """Predict what all layers take, by sizes alone; refuse what does not fit the memory."""
    from attnviz.core.device import free_memory_bytes
    from attnviz.core.stream.plan import plan_stream

    device, dtype = _where(run)
    info, n_queries, n_keys = run.source.info, len(run.queries), len(run.keys)
    sizes = LayerHeads(
        q=_nothing(info.n_heads, n_queries, info.d_k),
        k=_nothing(info.n_kv_heads, n_keys, info.d_k),
        v=_nothing(info.n_kv_heads, n_keys, info.d_v),
        scale=1.0,
        visible=MaskRule(causal=bool(run.what_if.causal), window=run.what_if.window),
    )
    plan = plan_stream(
        sizes,
        figures=figures,
        map_size=map_size,
        device=device,
        dtype=dtype,
        subset=heads,
    )
    per_row = {"output": 4 * info.d_v, "entropy": 4, "first": 4, "links": 12 * n_links}
    per_key = {"received": 8, "distance": 16}
    kept = n_queries * (9 + sum(per_row.get(figure, 0) for figure in figures))
    kept += n_keys * sum(per_key.get(figure, 0) for figure in figures) + 12 * map_size**2
    n_streamed = len(run.layers) * len(heads)
    qkv = (sizes.q.size + sizes.k.size + sizes.v.size) * dtype.itemsize
    memory_bytes = qkv + plan.work_bytes + n_streamed * kept
    room = free_memory_bytes(device)
    if room is not None and memory_bytes > room:
        fits = int(n_queries * room / memory_bytes)
        raise ResourceError(
            f"streaming {n_queries:,} tokens and {n_streamed} heads {compare(memory_bytes, room)}: "
            f"about {fits:,} tokens would fit (--max-tokens), "
            "or fewer heads (--head)"
        )
    multiply_adds = plan.multiply_adds * len(run.layers)
    # a block reaches as many keys beyond its rows' own as it has rows: all that a narrow window costs
    reach = plan.multiply_adds / (len(heads) * n_queries * (info.d_k + info.d_v))
    beside = 1 + min(plan.n_rows, n_keys) / max(reach, 1.0)
    seconds = multiply_adds * beside / _rate(sizes, figures, multiply_adds, device, dtype)
    return Work(n_queries, len(run.layers), len(heads), multiply_adds, memory_bytes, seconds)


def _nothing(*shape: int) -> Any:
    """Return an array that has a shape and takes no memory."""
    return np.broadcast_to(np.float32(0), shape)


def _rate(
    sizes: LayerHeads,
    figures: Sequence[str],
    multiply_adds: int,
    device: torch.device,
    dtype: torch.dtype,
) -> float:
    """Return multiply-adds per second, from a small example where the work is not small."""
    if multiply_adds < _PROBED_MULTIPLY_ADDS:
        return _USUAL_RATE
    from attnviz.core.stream.stream import stream

    n = min(_PROBE_TOKENS, sizes.n_keys)
    small = np.random.default_rng(0).standard_normal
    heads = LayerHeads(
        q=small((1, n, sizes.d_k)),
        k=small((1, n, sizes.d_k)),
        v=small((1, n, sizes.d_v)),
        scale=sizes.d_k**-0.5,
    )
    best = float("inf")
    for _ in range(2):
        started = time.perf_counter()
        stream(heads, figures=figures, device=device, dtype=dtype)
        best = min(best, time.perf_counter() - started)
    return n * n * (sizes.d_k + sizes.d_v) / best


def _blind_notice(by_layer: Sequence[LayerSummary]) -> tuple[str, ...]:
    n_blind = sum(len(one.rows_without_keys) for one in by_layer)
    if not n_blind:
        return ()
    return (f"{n_blind:,} queries may look at no key, so their weights and output are 0",)
