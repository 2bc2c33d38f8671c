"""The strongest links of every row, exactly, without sorting rows: ties go to the earlier key.

What lives here: top-k of a panel of weights. What does not: where the panel comes from.

Why it is exact: cut a row into windows of consecutive keys and rank the windows by (largest
weight, then position). An element outside the k best windows is beaten, or tied by an earlier
key, in each of them: so k windows hold the k strongest links. Only they are looked into.
"""

from __future__ import annotations

import torch

_RUN = 8
WINDOW = 64
"""Keys per window: pieces begin at multiples of it and are padded to multiples of it."""


class Shelf:
    """A block's weights in windows: pieces of keys one behind the other, each (rows, keys).

    Parameters
    ----------
    room
        The memory the pieces lie in, from its start on.
    pieces
        Contiguous (rows, keys of the piece); keys a multiple of ``WINDOW``.
    tops
        ``window_tops`` of every piece, taken while it was in the cache.
    first_key
        Key of the first column; a multiple of ``WINDOW``.
    """

    def __init__(
        self,
        room: torch.Tensor,
        pieces: list[torch.Tensor],
        tops: list[torch.Tensor],
        first_key: int,
    ) -> None:
        self.pieces, self.tops, self.first_key = pieces, tops, first_key
        self.n_rows = pieces[0].shape[0]
        self.n_windows = sum(piece.shape[1] for piece in pieces) // WINDOW
        self.windows_NW = room[: self.n_rows * self.n_windows * WINDOW].view(-1, WINDOW)

    def take(self, windows_BN: torch.Tensor) -> torch.Tensor:
        """Return whole windows of every row, side by side: (rows, N · WINDOW)."""
        counts = torch.tensor([piece.shape[1] // WINDOW for piece in self.pieces])
        starts = counts.cumsum(0) - counts
        # of every window: the first window of its piece, and how many the piece has in a row
        start_W, count_W = (
            a.repeat_interleave(counts).to(windows_BN.device) for a in (starts, counts)
        )
        row_B1 = torch.arange(self.n_rows, device=windows_BN.device)[:, None]
        start_BN, count_BN = start_W[windows_BN], count_W[windows_BN]
        places_BN = self.n_rows * start_BN + row_B1 * count_BN + (windows_BN - start_BN)
        return self.windows_NW.index_select(0, places_BN.flatten()).view(self.n_rows, -1)


def strongest(shelf: Shelf, n_links: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the largest weights of every row, the earlier key first among equals.

    Parameters
    ----------
    shelf
        Weights that are not negative, each row times any factor.
    n_links
        k; fewer where a row has fewer keys.

    Returns
    -------
    keys_BN : (rows, k) int64, by falling weight
    weights_BN : (rows, k)

    Notes
    -----
    One pass for the windows' maxima, then keys / 64 + 64 · k numbers per row.

    Examples
    --------
    >>> row = torch.zeros(1, 128)
    >>> row[0, [70, 3, 90]] = torch.tensor([0.2, 0.1, 0.2])
    >>> strongest(Shelf(row.flatten(), [row], [window_tops(row)], 0), 3)[0].tolist()
    [[70, 90, 3]]
    """
    if shelf.n_windows <= n_links:
        every = torch.arange(shelf.n_windows, device=shelf.windows_NW.device)
        best_BN = every.expand(shelf.n_rows, -1)
    else:
        best_BN = first_largest(torch.cat(shelf.tops, 1), n_links)[0].sort(-1).values
    held_BC = shelf.take(best_BN)
    place_BN, top_BN = first_largest(held_BC, min(n_links, held_BC.shape[1]))
    keys_BN = best_BN.gather(1, place_BN // WINDOW) * WINDOW + place_BN % WINDOW
    return keys_BN + shelf.first_key, top_BN


def window_tops(piece_BT: torch.Tensor) -> torch.Tensor:
    """Return the largest number of every window of a piece: (rows, windows)."""
    return piece_BT.view(piece_BT.shape[0], -1, WINDOW).amax(-1)


def first_largest(a_BN: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return places and values of the k largest numbers of every row, ties by place.

    Numbers are not negative. Long rows are cut into short runs first, by the same argument as
    above: only the k best runs are looked into.
    """
    n_runs, rest = divmod(a_BN.shape[1], _RUN)
    if rest or n_runs <= max(k, _RUN - 1):
        return _first_largest_of_few(a_BN, k)
    runs_BNR = a_BN.contiguous().view(len(a_BN), n_runs, _RUN)
    best_BK = first_largest(runs_BNR.amax(-1), k)[0].sort(-1).values
    held_BC = runs_BNR.gather(1, best_BK[..., None].expand(-1, -1, _RUN)).flatten(1)
    place_BK, values_BK = _first_largest_of_few(held_BC, k)
    return best_BK.gather(1, place_BK // _RUN) * _RUN + place_BK % _RUN, values_BK


def _first_largest_of_few(a_BN: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Select from short rows.

    float32 numbers that are not negative keep their order as integers, so value and place go
    into one 64-bit key: no ties are left, and selection needs no stable sort.
    """
    if a_BN.dtype != torch.float32 or a_BN.device.type == "mps":
        ordered = a_BN.sort(dim=-1, descending=True, stable=True)
        return ordered.indices[:, :k].contiguous(), ordered.values[:, :k].contiguous()
    last = a_BN.shape[1] - 1
    behind_N = torch.arange(last, -1, -1, device=a_BN.device)
    bits_BN = a_BN.contiguous().view(torch.int32).to(torch.int64) << 32
    key_BK = bits_BN.bitwise_or_(behind_N).topk(k, -1).values
    values_BK = (key_BK >> 32).to(torch.int32).view(torch.float32)
    return last - (key_BK & 0xFFFFFFFF), values_BK
