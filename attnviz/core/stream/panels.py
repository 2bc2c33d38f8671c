"""One block of query rows against all keys it can reach, in one pass; nothing L × S is held.

What lives here: a block's scores, its unnormalised weights, and their way to the accumulators.
What does not: which blocks there are and who computes them (``stream``), how the softmax is
joined (``joined``), what is kept of the weights (``sums``).

Keys go by in pieces small enough for a core's cache. Once a row's sum is known, its pieces go by
again, are divided and shown to every accumulator while they are hot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from attnviz.core.stream.job import LOG2_E, Job
from attnviz.core.stream.joined import Joined, at_least_finite, shift
from attnviz.core.stream.links import WINDOW, Shelf, window_tops
from attnviz.core.stream.reach import Piece
from attnviz.core.stream.sums import Block, Distance, Links, Pooled, Received, Sums
from attnviz.masks import visible_block
from attnviz.records import Span


class Panel:
    """Room for one block of rows; one for every worker.

    Parameters
    ----------
    n_rows
        The largest block.
    keeps_weights
        Whether the weights of a whole block are needed again (by an accumulator).
    """

    def __init__(self, job: Job, n_rows: int, *, keeps_weights: bool) -> None:
        self.job, self.keeps_weights = job, keeps_weights
        tile = _up(min(job.reach.tile, job.head.n_keys))
        width = _up(_widest(job, n_rows)) if keeps_weights else tile
        self.room = job.head.q.new_empty(n_rows * width)
        self.side = n_rows if keeps_weights else 0  # zeros on both sides, for the skewed view
        self.hot_BW = job.head.q.new_zeros(n_rows if keeps_weights else 0, tile + 2 * self.side)
        self.hot_width = tile
        self.ones_1B = job.head.q.new_ones(1, n_rows)

    def run(self, rows: Span, sums: Sequence[Sums], links: Links | None = None) -> None:
        """Compute one block: its rows of output, logsumexp and entropy, and every accumulator."""
        job = self.job
        pieces = job.reach.pieces(rows)
        q_BE: torch.Tensor = job.head.q[0, slice(*rows)] * job.q_factor
        bias_BS = self._bias(rows)
        places = [self._place(len(q_BE), piece.keys, pieces[0].keys[0]) for piece in pieces]
        common_B1: torch.Tensor | None = None
        top_B1: torch.Tensor | None
        if job.needs_maximum and self.keeps_weights and pieces:
            # one maximum for the whole row: equal scores give equal weights, ties stay ties
            for piece, grown_BT in zip(pieces, places, strict=True):
                grown_BT.copy_(self._scores(q_BE, bias_BS, rows, piece))
                most_B1 = grown_BT.amax(-1, keepdim=True)
                common_B1 = most_B1 if common_B1 is None else torch.maximum(common_B1, most_B1)
        joined = Joined(q_BE, job)
        tops: list[torch.Tensor] = []
        for piece, grown_BT in zip(pieces, places, strict=True):
            top_B1 = common_B1
            if common_B1 is not None:
                scores_BT = (grown_BT - at_least_finite(common_B1)).mul_(LOG2_E)
            else:
                scores_BT = self._scores(q_BE, bias_BS, rows, piece)
                if job.needs_maximum:
                    top_B1 = scores_BT.amax(-1, keepdim=True)
                    scores_BT.sub_(at_least_finite(top_B1)).mul_(LOG2_E)
            torch.exp2(scores_BT, out=grown_BT)
            if links is not None:
                tops.append(window_tops(grown_BT))
            joined.add(scores_BT, grown_BT, top_B1, piece)
        total_B1, top_B1 = joined.finish(rows)
        if not pieces or not (sums or links):
            return
        factor_B1 = total_B1.reciprocal()
        if common_B1 is not None and top_B1 is not None:  # a sink may have raised it
            factor_B1 = factor_B1 * torch.exp2(shift(common_B1, top_B1))
        if links is not None:
            links.add(rows, Shelf(self.room, places, tops, pieces[0].keys[0]), factor_B1)
        if sums:
            self._show(rows, pieces, places, factor_B1, sums, tops)

    def _bias(self, rows: Span) -> torch.Tensor | None:
        bias = self.job.head.bias
        if bias is None:
            return None
        found: torch.Tensor = bias(*rows)[0] if callable(bias) else bias[0, slice(*rows)]
        return found

    def _scores(
        self, q_BE: torch.Tensor, bias_BS: torch.Tensor | None, rows: Span, piece: Piece
    ) -> torch.Tensor:
        """Compute what enters the softmax, times ``unit``: a fresh tensor of whole windows.

        Vector units round exp2 and tanh differently in the last few numbers of a row that they do
        not fill; with whole windows, equal scores give equal weights wherever they stand.
        """
        padded_BT = self.job.products.scores(q_BE, piece.keys)
        n_keys = piece.keys[1] - piece.keys[0]
        if n_keys % WINDOW:
            padded_BT = torch.nn.functional.pad(padded_BT, (0, _up(n_keys) - n_keys))
        scores_BT = padded_BT[:, :n_keys]
        head = self.job.head
        if bias_BS is not None:
            scores_BT.add_(bias_BS[:, slice(*piece.keys)], alpha=self.job.bias_factor)
        if head.softcap is not None:
            padded_BT.tanh_().mul_(head.softcap * self.job.unit)
        if piece.masked:
            visible = visible_block(
                head.visible,
                n_queries=head.n_queries,
                n_keys=head.n_keys,
                rows=rows,
                keys=piece.keys,
                xp=torch,
                device=scores_BT.device,
            )
            scores_BT.masked_fill_(~visible[0], -torch.inf)
        if n_keys % WINDOW:
            padded_BT[:, n_keys:] = -torch.inf
        return padded_BT

    def _place(self, n_rows: int, keys: Span, first_key: int) -> torch.Tensor:
        """Return room for a piece: pieces of a block lie one behind the other, each in one go."""
        width = _up(keys[1] - keys[0])
        start = n_rows * (keys[0] - first_key) if self.keeps_weights else 0
        place: torch.Tensor = self.room[start : start + n_rows * width]
        return place.view(n_rows, width)

    def _show(
        self,
        rows: Span,
        pieces: list[Piece],
        places: list[torch.Tensor],
        factor_B1: torch.Tensor,
        sums: Sequence[Sums],
        tops: Sequence[torch.Tensor],
    ) -> None:
        """Divide the pieces by groups of rows; sum over rows and distances while these are hot.

        The piece computed last comes first: it is still in the cache. Maxima of a map whose cells
        are whole windows come from the windows' own: dividing a row by its sum keeps its order.
        """
        distance = next((one for one in sums if isinstance(one, Distance)), None)
        pooled = next((one for one in sums if isinstance(one, Pooled)), None)
        cuts = rows if pooled is None else pooled.cuts(rows)
        first_key, end = pieces[0].keys[0], _up(pieces[-1].keys[1])
        wants_sums = pooled is not None or any(isinstance(one, Received) for one in sums)
        shape_GS = (len(cuts) - 1, end - first_key)
        sums_GS = self.ones_1B.new_empty(shape_GS) if wants_sums else None
        step = pooled.step if pooled is not None else 1
        shape_GW = (shape_GS[0], shape_GS[1] // step)
        tops_GW = self.ones_1B.new_empty(shape_GW) if pooled is not None else None
        if wants_sums or distance is not None:
            for number in reversed(range(len(pieces))):
                piece, grown_BT = pieces[number], places[number]
                start = piece.keys[0] - first_key
                span = slice(start, start + grown_BT.shape[1])
                if step > 1:
                    top_BW = (tops[number] if tops else window_tops(grown_BT)) * factor_B1
                for group, (top, bottom) in enumerate(pairwise(cuts)):
                    mine = slice(top - rows[0], bottom - rows[0])
                    weights_GT, skewed_GD = self._divide(grown_BT[mine], factor_B1[mine])
                    if sums_GS is not None:
                        ones_1G = self.ones_1B[:, : bottom - top]
                        torch.mm(ones_1G, weights_GT, out=sums_GS[group : group + 1, span])
                    if tops_GW is not None:
                        over = slice(span.start // step, span.stop // step)
                        source = top_BW[mine] if step > 1 else weights_GT
                        torch.amax(source, 0, out=tops_GW[group, over])
                    if distance is not None:
                        distance.add_skewed(skewed_GD, (top, bottom), piece.keys[0])
        first_B = (places[0][:, 0] * factor_B1[:, 0]) if first_key == 0 else None
        block = Block(rows, slice(first_key, end), tuple(cuts), sums_GS, tops_GW, first_B)
        for one in sums:
            one.add(block)

    def _divide(
        self, grown_GT: torch.Tensor, factor_G1: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Divide rows of a piece into a place with zeros on both sides; view it straight and skewed.

        The skewed view is the same memory, shifted by one more key in every row, so that a
        column holds one distance.
        """
        (n_rows, width), side = grown_GT.shape, self.side
        hot_GW = self.hot_BW[:n_rows]
        if width < self.hot_width:
            self.hot_BW[:, side + width : side + self.hot_width] = 0
        self.hot_width = width
        weights_GT = torch.mul(grown_GT, factor_G1, out=hot_GW[:, side : side + width])
        skewed_GD = hot_GW.as_strided(
            (n_rows, width + n_rows - 1), (hot_GW.stride(0) + 1, 1), side - (n_rows - 1)
        )
        return weights_GT, skewed_GD


def _widest(job: Job, n_rows: int) -> int:
    """Return the most keys any of the blocks of ``n_rows`` can reach."""
    n_queries = job.head.n_queries
    widest = 0
    for start in range(0, n_queries, n_rows):
        pieces = job.reach.pieces((start, min(n_queries, start + n_rows)))
        if pieces:
            widest = max(widest, pieces[-1].keys[1] - pieces[0].keys[0])
    return widest


def _up(number: int) -> int:
    return -(-number // WINDOW) * WINDOW
