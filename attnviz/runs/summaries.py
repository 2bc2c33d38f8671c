"""A text of any length: open a source, cut the text, plan, stream layer by layer.

What lives here: joining sources and the streamed core; what the work will take before it is done.
What does not: mathematics (``core.stream``), dense traces (``pipeline``), screens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnviz import __version__
from attnviz.core.summary import FIGURES, LayerSummary, Rectangle, Summary
from attnviz.errors import ResourceError, UsageError
from attnviz.records import LayerHeads, MaskRule, RunInfo, Span, Tokens
from attnviz.runs import pipeline
from attnviz.runs.requests import choose_heads, parse_scale
from attnviz.sources import Source

if TYPE_CHECKING:
    import torch

SHOWN = tuple(figure for figure in FIGURES if figure != "output")
"""What a summary holds: z of every token is left out, nobody reads it and it is the largest."""

_PROBED_MULTIPLY_ADDS = 10**10
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


@dataclass(frozen=True, slots=True)
class _Opened:
    """A source with its text, and how to compute."""

    source: Source
    tokens: Tokens
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype
    run: RunInfo
    change: Callable[[LayerHeads], LayerHeads]


def summarize(
    text: str,
    *,
    weights: str = "sample",
    layer: str | int | None = None,
    head: str | int | None = None,
    causal: bool | None = None,
    window: int | None = None,
    scale: str | float | None = None,
    seed: int = 0,
    d_model: int = 512,
    d_k: int = 64,
    n_heads: int | None = None,
    n_kv_heads: int | None = None,
    device: str = "auto",
    dtype: str = "float32",
    figures: Sequence[str] = SHOWN,
    n_links: int = 8,
    map_size: int = 128,
    announce: Callable[[Work], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Compute where each head looks, how widely and how far, without any L × L matrix.

    Parameters
    ----------
    text
        Any string with at least one word, of any length.
    head
        A number, a range like ``"0-3"``, or ``"all"`` (what None means here).
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
        One ``LayerSummary`` per layer.

    Raises
    ------
    InputError
        Text or file cannot be read.
    UsageError
        An option out of range.
    ResourceError
        It does not fit the memory; the message says what would.

    Notes
    -----
    Time grows with heads · L², memory with L.

    Examples
    --------
    >>> found = summarize("A cute teddy bear is reading")
    >>> found.by_layer[0].entropy_HL.shape
    (1, 6)
    """
    opened = _open(
        text,
        weights=weights,
        layer=layer,
        head=head,
        causal=causal,
        window=window,
        scale=scale,
        seed=seed,
        d_model=d_model,
        d_k=d_k,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        device=device,
        dtype=dtype,
    )
    how: dict[str, Any] = {"figures": figures, "n_links": n_links, "map_size": map_size}
    work = _plan(opened, **how, causal=causal, window=window)
    if announce is not None:
        announce(work)
    from attnviz.core.stream import stream

    by_layer: list[LayerSummary] = []
    n_rows = len(opened.tokens) * len(opened.heads)

    def tell(done: int, _: int) -> None:
        if progress is not None:
            progress(len(by_layer) * n_rows + done, len(opened.layers) * n_rows)

    def consume(found: LayerHeads) -> None:
        by_layer.append(
            stream(
                opened.change(found),
                subset=opened.heads,
                device=opened.device,
                dtype=opened.dtype,
                progress=tell,
                **how,
            )
        )

    opened.source.run(opened.tokens, opened.layers, consume)
    return Summary(
        tokens=opened.tokens,
        source=opened.source.info,
        run=_run_info(opened, causal=causal, window=window, scale=scale),
        by_layer=tuple(by_layer),
        notices=(
            *opened.source.info.notices,
            *opened.tokens.notices,
            *(notice for one in by_layer for notice in one.notices),
            *_blind_notice(by_layer),
        ),
    )


def compute_rectangle(
    text: str,
    *,
    rows: Span,
    keys: Span | None = None,
    causal: bool | None = None,
    window: int | None = None,
    scale: str | float | None = None,
    **origin: Any,
) -> Rectangle:
    """Compute the exact weights of some queries on some keys of a text of any length.

    Parameters
    ----------
    rows, keys
        Half-open ranges of tokens; all keys where None.
    origin
        The other parameters of ``summarize`` that say where attention comes from.

    Raises
    ------
    UsageError
        A range outside the text.
    ResourceError
        More than 2²⁴ cells in a head.
    """
    opened = _open(text, causal=causal, window=window, scale=scale, **origin)
    from attnviz.core.rectangle import rectangle

    keys = keys or (0, len(opened.tokens))
    by_layer: list[Any] = []

    def consume(found: LayerHeads) -> None:
        changed = opened.change(found)
        where: dict[str, Any] = {"device": opened.device, "dtype": opened.dtype}
        by_layer.append(
            [rectangle(changed, head, rows=rows, keys=keys, **where) for head in opened.heads]
        )

    opened.source.run(opened.tokens, opened.layers, consume)
    return Rectangle(
        tokens=opened.tokens,
        source=opened.source.info,
        run=_run_info(opened, causal=causal, window=window, scale=scale),
        layers=opened.layers,
        heads=opened.heads,
        rows=rows,
        keys=keys,
        weights_AHRC=np.array(by_layer),
        notices=(*opened.source.info.notices, *opened.tokens.notices),
    )


def _open(
    text: str,
    *,
    layer: str | int | None = None,
    head: str | int | None = None,
    causal: bool | None = None,
    window: int | None = None,
    scale: str | float | None = None,
    device: str = "auto",
    dtype: str = "float32",
    **origin: Any,
) -> _Opened:
    from attnviz.core.device import choose_device, choose_dtype

    if head == "mean":
        raise UsageError(
            "a summary is of heads, and the mean over heads is none: use --head all or a number"
        )
    place = choose_device(device)
    kind = choose_dtype(dtype, device=place)
    computing = pipeline.choose_core(device=device, dtype=dtype, n_tokens=len(text))
    source = pipeline.open_source(layer=layer, project=computing.project, **origin)
    factor = parse_scale(scale)
    return _Opened(
        source=source,
        tokens=source.tokenize(text),
        layers=(0,),
        heads=choose_heads("all" if head is None else head, source.info.n_heads),
        device=place,
        dtype=kind,
        run=RunInfo(__version__, str(place), dtype, "stream"),
        change=lambda found: pipeline.override(found, causal=causal, window=window, scale=factor),
    )


def _run_info(
    opened: _Opened, *, causal: bool | None, window: int | None, scale: str | float | None
) -> RunInfo:
    given = {"causal": causal, "window": window or None, "scale": parse_scale(scale)}
    return replace(
        opened.run, overrides={name: value for name, value in given.items() if value is not None}
    )


def _plan(
    opened: _Opened,
    *,
    figures: Sequence[str],
    n_links: int,
    map_size: int,
    causal: bool | None,
    window: int | None,
) -> Work:
    """Predict what all layers take, by sizes alone; refuse what does not fit the memory."""
    from attnviz.core.device import free_memory_bytes
    from attnviz.core.plan import plan_stream

    info, n_tokens = opened.source.info, len(opened.tokens)
    rule = MaskRule(causal=bool(causal), window=window or None)
    sizes = LayerHeads(
        q=_nothing(info.n_heads, n_tokens, info.d_k),
        k=_nothing(info.n_kv_heads, n_tokens, info.d_k),
        v=_nothing(info.n_kv_heads, n_tokens, info.d_v),
        scale=1.0,
        visible=rule,
    )
    plan = plan_stream(
        sizes,
        figures=figures,
        map_size=map_size,
        device=opened.device,
        dtype=opened.dtype,
        subset=opened.heads,
    )
    widths = info.n_heads * info.d_k + info.n_kv_heads * (info.d_k + info.d_v)
    qkv_bytes = n_tokens * widths * opened.dtype.itemsize
    kept = 9 + ("entropy" in figures) * 4 + ("first" in figures) * 4 + ("links" in figures) * (
        12 * n_links
    ) + ("received" in figures) * 8 + ("distance" in figures) * 16  # fmt: skip
    kept += ("output" in figures) * 4 * info.d_v
    n_heads, n_layers = len(opened.heads), len(opened.layers)
    figure_bytes = n_layers * n_heads * (n_tokens * kept + 12 * map_size**2)
    memory_bytes = qkv_bytes + plan.work_bytes + figure_bytes
    room = free_memory_bytes(opened.device)
    if room is not None and memory_bytes > room:
        fits = int(n_tokens * room / memory_bytes)
        raise ResourceError(
            f"{n_tokens:,} tokens and {n_layers * n_heads} heads need {memory_bytes / 1e9:.1f} GB, "
            f"and {room / 1e9:.1f} GB are free: about {fits:,} tokens would fit; shorten the text "
            "or choose fewer heads (--head)"
        )
    multiply_adds = plan.multiply_adds * n_layers
    seconds = multiply_adds / _rate(opened, sizes, figures, multiply_adds)
    return Work(n_tokens, n_layers, n_heads, multiply_adds, memory_bytes, seconds)


def _nothing(*shape: int) -> Any:
    """Return an array that has a shape and takes no memory."""
    return np.broadcast_to(np.float32(0), shape)


def _rate(opened: _Opened, sizes: LayerHeads, figures: Sequence[str], multiply_adds: int) -> float:
    """Return multiply-adds per second, from a small example where the work is not small."""
    if multiply_adds < _PROBED_MULTIPLY_ADDS:
        return _USUAL_RATE
    from attnviz.core.stream import stream

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
        stream(heads, figures=figures, device=opened.device, dtype=opened.dtype)
        best = min(best, time.perf_counter() - started)
    return n * n * (sizes.d_k + sizes.d_v) / best


def _blind_notice(by_layer: Sequence[LayerSummary]) -> tuple[str, ...]:
    n_blind = sum(len(one.rows_without_keys) for one in by_layer)
    if not n_blind:
        return ()
    return (f"{n_blind:,} queries may look at no key, so their weights and output are 0",)
