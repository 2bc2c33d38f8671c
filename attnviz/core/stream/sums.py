"""What is kept of every block of weights while it is there: small objects, one per figure.

What lives here: accumulators. Each says what it wants to be shown of a block (sums over rows,
weights by distance, the first column), joins another of its kind, and hands over arrays. What
does not: how weights come about (``panels``), what the figures mean for a reader (``summary``).

Sums over rows are kept in float64 where the device has it: a first token that receives half
of 100,000 rows' attention must not lose the last row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from attnviz.core.stream import links
from attnviz.records import Span


@dataclass(frozen=True, slots=True)
class Block:
    """What accumulators see of some rows and the keys they can reach, once per block.

    Parameters
    ----------
    rows, keys
        Half-open ranges; keys begin at a multiple of ``links.WINDOW`` and end at one, with
        weight 0 behind the last key.
    cuts
        Where the rows are cut, both ends included: one group of rows between neighbours.
    sums_GS, tops_GW
        Sum of the weights of every group, per key, and their maximum, per ``Pooled.step`` keys;
        None where nobody asks.
    first_B
        The weights on key 0; None where the keys begin later.
    """

    rows: Span
    keys: slice
    cuts: tuple[int, ...]
    sums_GS: torch.Tensor | None
    tops_GW: torch.Tensor | None
    first_B: torch.Tensor | None


class Sums(Protocol):
    """An accumulator that is shown blocks."""

    def add(self, block: Block) -> None: ...
    def join(self, other: Sums) -> None: ...
    def result(self) -> dict[str, torch.Tensor]: ...


def wide(device: torch.device) -> torch.dtype:
    """Return the type sums over rows are kept in: float64, float32 where there is none (mps)."""
    return torch.float32 if device.type == "mps" else torch.float64


class Links:
    """The k strongest links of every query: written in place, rows are disjoint."""

    def __init__(self, keys_LN: torch.Tensor, weights_LN: torch.Tensor) -> None:
        self.keys_LN, self.weights_LN = keys_LN, weights_LN

    def add(self, rows: Span, shelf: links.Shelf, factor_B1: torch.Tensor) -> None:
        """Take a block's weights before division; ``factor_B1`` divides them."""
        keys_BN, grown_BN = links.strongest(shelf, self.keys_LN.shape[1])
        weights_BN = grown_BN * factor_B1
        found = slice(0, keys_BN.shape[1])
        self.keys_LN[slice(*rows), found] = keys_BN.masked_fill(weights_BN == 0, -1)
        self.weights_LN[slice(*rows), found] = weights_BN


class First:
    """Each query's weight on the first key: written in place."""

    def __init__(self, weights_L: torch.Tensor) -> None:
        self.weights_L = weights_L

    def add(self, block: Block) -> None:
        if block.first_B is not None:
            self.weights_L[slice(*block.rows)] = block.first_B

    def join(self, other: Sums) -> None:
        pass

    def result(self) -> dict[str, torch.Tensor]:
        return {"first": self.weights_L}


class Received:
    """How much attention every key receives from all rows together."""

    def __init__(self, n_keys: int, device: torch.device) -> None:
        self.n_keys = n_keys
        room = n_keys + links.WINDOW
        self.sums_S = torch.zeros(room, dtype=wide(device), device=device)

    def add(self, block: Block) -> None:
        assert block.sums_GS is not None
        self.sums_S[block.keys] += block.sums_GS.sum(0)

    def join(self, other: Sums) -> None:
        assert isinstance(other, Received)
        self.sums_S += other.sums_S

    def result(self) -> dict[str, torch.Tensor]:
        return {"received": self.sums_S[: self.n_keys]}


class Distance:
    """The sum of all weights at every distance key − query, from −(L − 1) to S − 1.

    With fewer queries than keys, a query's position is that of its key.
    """

    def __init__(self, n_queries: int, n_keys: int, device: torch.device) -> None:
        self.n_queries, self.n_keys = n_queries, n_keys
        room = n_queries + n_keys + 2 * links.WINDOW
        self.sums_D = torch.zeros(room, dtype=wide(device), device=device)

    def add_skewed(self, skewed_BD: torch.Tensor, rows: Span, first_key: int) -> None:
        """Take a piece of weights of which every column holds one distance."""
        sums_D = skewed_BD.sum(0)
        # column 0: the first key seen from the last row
        start = first_key - (rows[1] - 1) + self.n_queries - 1
        self.sums_D[start : start + len(sums_D)] += sums_D

    def add(self, block: Block) -> None:
        pass

    def join(self, other: Sums) -> None:
        assert isinstance(other, Distance)
        self.sums_D += other.sums_D

    def result(self) -> dict[str, torch.Tensor]:
        return {"distance": self.sums_D[: self.n_queries + self.n_keys - 1]}


class Pooled:
    """An R × R map of the weights: the mean and the maximum of every cell's rectangle.

    Query i lies in map row ⌊i·R/L⌋, key j in map column ⌊j·R/S⌋. Rows are added up until a
    block begins behind their map row; only then are the keys pooled.
    """

    def __init__(
        self, n_queries: int, n_keys: int, map_rows: int, map_keys: int, like: torch.Tensor
    ) -> None:
        self.n_queries, self.n_keys = n_queries, n_keys
        self.map_rows, self.map_keys = map_rows, map_keys
        device = like.device
        self.sums_RR = torch.zeros(map_rows, map_keys, dtype=wide(device), device=device)
        self.tops_RR = like.new_zeros(map_rows, map_keys)
        self.places = _cell_places(n_keys, map_keys, device)
        is_whole = n_keys % (map_keys * links.WINDOW) == 0
        self.step = links.WINDOW if is_whole else 1
        """Keys that share one maximum: windows where all cells consist of whole ones."""
        # by map row: the sums of its rows so far, and their maxima; zeros behind the last key
        self.open: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.room = n_keys + links.WINDOW
        self.like = like

    def cuts(self, rows: Span) -> tuple[int, ...]:
        """Cut a block's rows where map rows begin."""
        first, last = self._map_row(rows[0]), self._map_row(rows[1] - 1)
        begins = (-(-row * self.n_queries // self.map_rows) for row in range(first + 1, last + 1))
        return (rows[0], *begins, rows[1])

    def add(self, block: Block) -> None:
        assert block.sums_GS is not None
        assert block.tops_GW is not None
        first = self._map_row(block.rows[0])
        for done in [number for number in self.open if number < first]:
            self._close(done)
        for place, sum_S in enumerate(block.sums_GS):
            if first + place not in self.open:
                new = self.like.new_zeros(self.room), self.like.new_zeros(self.room // self.step)
                self.open[first + place] = new
            sum_so_far_S, top_so_far_W = self.open[first + place]
            sum_so_far_S[block.keys] += sum_S
            over = slice(block.keys.start // self.step, block.keys.stop // self.step)
            torch.maximum(top_so_far_W[over], block.tops_GW[place], out=top_so_far_W[over])

    def join(self, other: Sums) -> None:
        assert isinstance(other, Pooled)
        for one in (self, other):
            one._close_all()
        self.sums_RR += other.sums_RR
        torch.maximum(self.tops_RR, other.tops_RR, out=self.tops_RR)

    def result(self) -> dict[str, torch.Tensor]:
        self._close_all()
        rows_R = _cell_sizes(self.n_queries, self.map_rows, self.sums_RR)
        keys_R = _cell_sizes(self.n_keys, self.map_keys, self.sums_RR)
        return {"map_mean": self.sums_RR / (rows_R[:, None] * keys_R), "map_max": self.tops_RR}

    def _map_row(self, row: int) -> int:
        return row * self.map_rows // self.n_queries

    def _close_all(self) -> None:
        for map_row in list(self.open):
            self._close(map_row)

    def _close(self, map_row: int) -> None:
        sum_S, top_W = self.open.pop(map_row)
        shape = (self.map_keys, -1)
        self.sums_RR[map_row] += sum_S[self.places.flatten()].view(shape).sum(-1)
        if self.step > 1:
            cells_RC = top_W[: self.n_keys // self.step].view(shape)
        else:
            cells_RC = top_W[self.places.flatten()].view(shape)
        top_R = self.tops_RR[map_row]
        torch.maximum(top_R, cells_RC.amax(-1), out=top_R)


def cell_edges(n: int, n_cells: int) -> list[int]:
    """Return where cells begin, and the end: position i lies in cell ⌊i·cells/n⌋.

    Examples
    --------
    >>> cell_edges(5, 2)
    [0, 3, 5]
    """
    return [-(-cell * n // n_cells) for cell in range(n_cells + 1)]


def _cell_places(n: int, n_cells: int, device: torch.device) -> torch.Tensor:
    """Return the positions of every cell, (cells, longest); short cells point behind the end."""
    edges = torch.tensor(cell_edges(n, n_cells), device=device)
    start_R, end_R = edges[:-1, None], edges[1:, None]
    longest = -(-n // n_cells)
    places_RC = start_R + torch.arange(longest, device=device)
    return torch.where(places_RC < end_R, places_RC, n)


def _cell_sizes(n: int, n_cells: int, like: torch.Tensor) -> torch.Tensor:
    return like.new_tensor(cell_edges(n, n_cells)).diff()
