"""The softmax of a block of rows, joined from pieces of keys: only sums are carried along.

What lives here: total, output and entropy of rows while their keys go by. What does not: where a
piece's scores come from (``panels``).

Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", algorithm 3: a piece
with a larger maximum shrinks what was summed before by 2^(old − new).
"""

from __future__ import annotations

import torch

from attnviz.core.stream.job import LOG2_E, Job
from attnviz.core.stream.links import WINDOW
from attnviz.core.stream.reach import Piece
from attnviz.records import Span


class Joined:
    """The softmax of a block of rows, joined from its pieces."""

    def __init__(self, q_BE: torch.Tensor, job: Job) -> None:
        self.job = job
        n_rows = len(q_BE)
        self.total_B1 = q_BE.new_zeros(n_rows, 1)
        self.dot_B1 = q_BE.new_zeros(n_rows, 1)
        self.output_BF = q_BE.new_zeros(n_rows, job.head.d_v)
        self.top_B1 = q_BE.new_full((n_rows, 1), -torch.inf) if job.needs_maximum else None

    def add(
        self,
        scores_BT: torch.Tensor,
        grown_BT: torch.Tensor,
        top_B1: torch.Tensor | None,
        piece: Piece,
    ) -> None:
        job = self.job
        grown_by = self._make_room(top_B1)
        total_B1 = grown_BT.sum(-1, keepdim=True)
        if job.into.output_LF is not None:
            n_keys = piece.keys[1] - piece.keys[0]
            real_BT = grown_BT if n_keys == grown_BT.shape[1] else grown_BT[:, :n_keys]
            part_BF = job.products.blend(real_BT, piece.keys)
            for key, v_F in job.broken.items():
                if piece.keys[0] <= key < piece.keys[1]:
                    weight_B1 = grown_BT[:, key - piece.keys[0], None]
                    part_BF += (weight_B1 * v_F).masked_fill_(weight_B1 == 0, 0.0)
            self.output_BF += part_BF if grown_by is None else part_BF * grown_by
        if job.into.entropy_L is not None:
            # 0 · −∞ is 0 here
            if piece.masked or job.needs_maximum or (piece.keys[1] - piece.keys[0]) % WINDOW:
                scores_BT.masked_fill_(grown_BT == 0, 0.0)
            dot_B1 = scores_BT.mul_(grown_BT).sum(-1, keepdim=True)
            if grown_by is not None:
                assert top_B1 is not None
                assert self.top_B1 is not None
                dot_B1 = grown_by * (dot_B1 + shift(top_B1, self.top_B1) * total_B1)
            self.dot_B1 += dot_B1
        self.total_B1 += total_B1 if grown_by is None else total_B1 * grown_by

    def _make_room(self, top_B1: torch.Tensor | None) -> torch.Tensor | None:
        """Raise the common maximum; return the factor for the new piece, None without one."""
        if top_B1 is None or self.top_B1 is None:
            return None
        raised_B1 = torch.maximum(self.top_B1, top_B1)
        shift_B1 = shift(self.top_B1, raised_B1)
        factor_B1 = torch.exp2(shift_B1)
        self.dot_B1 = factor_B1 * (self.dot_B1 + shift_B1 * self.total_B1)
        self.total_B1 *= factor_B1
        self.output_BF *= factor_B1
        self.top_B1 = raised_B1
        return torch.exp2(shift(top_B1, raised_B1))

    def finish(self, rows: Span) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Write the rows' results; return what weights are divided by, and their maximum."""
        job, span = self.job, slice(*rows)
        all_B1 = self.total_B1
        # a sink far above all scores may leave a total of 0 to rows that do see a key
        seen_B1 = all_B1 != 0 if self.top_B1 is None else self.top_B1 != -torch.inf
        job.into.seen_L[span] = seen_B1[:, 0]
        if job.sink is not None:
            if self.top_B1 is not None:
                self._make_room(job.sink.expand_as(self.top_B1))
            top_B1 = 0.0 if self.top_B1 is None else self.top_B1
            all_B1 = self.total_B1 + torch.exp(job.sink - top_B1)
        safe_B1 = all_B1.masked_fill(all_B1 == 0, 1.0)
        if self.top_B1 is not None:
            self.top_B1 = at_least_finite(self.top_B1)
        lse_B1 = all_B1.log() if self.top_B1 is None else all_B1.log() + self.top_B1
        job.into.lse_L[span] = lse_B1[:, 0]
        if job.into.output_LF is not None:
            torch.div(self.output_BF, safe_B1, out=job.into.output_LF[span])
        if job.into.entropy_L is not None:
            entropy_B1 = (self.total_B1 * safe_B1.log2() - self.dot_B1) / safe_B1
            job.into.entropy_L[span] = entropy_B1[:, 0].clamp_(min=0.0)
        return safe_B1, self.top_B1


def shift(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Compute low − high as a power of two, where both may be −∞; 2^−10,000 is 0 anyway."""
    return ((low - at_least_finite(high)) * LOG2_E).clamp(min=-10_000.0)


def at_least_finite(top: torch.Tensor) -> torch.Tensor:
    """Return 0 for the maximum of a row without keys, so that nothing turns into NaN."""
    return top.masked_fill(top == -torch.inf, 0.0)
