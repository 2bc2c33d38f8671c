"""How a layer will be streamed and what that costs, before it is done.

What lives here: block sizes from caches and free memory, workers, predicted work and bytes. What
does not: the streaming (``stream``), seconds (they are measured, not predicted, by ``cost``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attnviz.core.device import cache_bytes, free_memory_bytes, sum_dtype
from attnviz.core.stream.links import WINDOW
from attnviz.core.stream.products import can_pack
from attnviz.core.stream.reach import mean_reach
from attnviz.core.stream.summary import FIGURES
from attnviz.errors import ResourceError, UsageError
from attnviz.memory import compare, cure
from attnviz.records import LayerHeads
from attnviz.registry import no_such_choice

PANEL_BYTES = 48 * 2**20
"""Room for all workers' panels together on a CPU."""

NEED_WEIGHTS = frozenset({"links", "received", "distance", "first", "map"})
"""Figures that need the weights of a whole block at once."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes and cost of streaming one layer.

    Parameters
    ----------
    n_rows, tile
        Query rows per block, keys per product.
    n_workers
        Threads, each with blocks of its own.
    packed
        Whether the products take the packed oneDNN route.
    multiply_adds
        Of the two products, over all heads.
    work_bytes
        Memory beyond q, k, v and what is handed back.
    """

    n_rows: int
    tile: int
    n_workers: int
    packed: bool
    multiply_adds: int
    work_bytes: int


def plan_stream(
    heads: LayerHeads,
    *,
    figures: Sequence[str] = FIGURES,
    map_size: int = 256,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    subset: Sequence[int] | None = None,
    n_rows: int | None = None,
    tile: int | None = None,
    n_workers: int | None = None,
) -> Plan:
    """Choose block sizes from the caches and the free memory, and predict the cost.

    Raises
    ------
    UsageError
        An unknown figure, or a size below 1.
    ResourceError
        The work does not fit the free memory; the message says what would help.
    """
    device = device or torch.device("cpu")
    for figure in figures:
        if figure not in FIGURES:
            raise UsageError(no_such_choice("figure", figure, FIGURES))
    for name, value in (
        ("map size", map_size),
        ("rows", n_rows),
        ("tile", tile),
        ("workers", n_workers),
    ):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} is too small: 1 or more expected")
    keeps = not NEED_WEIGHTS.isdisjoint(figures)
    n_queries, n_keys = heads.n_queries, heads.n_keys
    reach = mean_reach(heads.visible, n_queries=n_queries, n_keys=n_keys)
    size = sum_dtype(dtype).itemsize
    workers = 1
    if device.type == "cpu":
        # below a few million scores starting threads costs more than it brings
        workers = n_workers or (min(torch.get_num_threads(), 4) if reach * n_queries > 2**21 else 1)
        usual, rows = _cpu_block(max(reach, 1.0), size, workers, keeps=keeps)
    else:
        usual = n_keys if keeps else min(n_keys, 8192)
        free = free_memory_bytes(device) or 2**30
        rows = _between(free / 8 / (usual * size * 4), 16, 4096)
    tile = _windows(min(tile or usual, n_keys))
    rows = min(n_rows or rows, n_queries)
    # only whole tiles take the packed route, and a narrow window never spans one
    packed = reach >= tile / 2 and n_keys >= tile and can_pack(device, sum_dtype(dtype))
    widest = min(n_keys, int(2 * reach) + rows) + 2 * rows + 2 * WINDOW if keeps else tile
    work_bytes = workers * (rows * (widest + 2 * tile) * size + 8 * (n_queries + 2 * n_keys))
    work_bytes += workers * 12 * map_size**2 if "map" in figures else 0
    work_bytes += n_keys * (heads.d_k + heads.d_v) * size if packed else 0
    room = free_memory_bytes(device)
    if room is not None and work_bytes > room:
        raise ResourceError(
            f"streaming {n_keys} keys in blocks of {rows} rows {compare(work_bytes, room)}: "
            f"ask for fewer figures, or {cure()}"
        )
    n_heads = heads.n_heads if subset is None else len(subset)
    multiply_adds = int(n_heads * reach * n_queries * (heads.d_k + heads.d_v))
    return Plan(rows, tile, workers, packed, multiply_adds, work_bytes)


def _cpu_block(reach: float, size: int, workers: int, *, keeps: bool) -> tuple[int, int]:
    if not keeps:
        return 1024, _between(cache_bytes(2) / (1024 * size), 64, 512)
    # larger blocks are faster even where they leave the cache: fewer operations in all
    return 2048, int(_between(PANEL_BYTES / workers / (reach * size), 64, 256))


def _between(number: float, low: int, high: int) -> int:
    """Return the power of two at or below a number, within bounds that are powers of two."""
    found = low
    while found * 2 <= min(number, high):
        found *= 2
    return found


def _windows(n: int) -> int:
    return -(-n // WINDOW) * WINDOW
