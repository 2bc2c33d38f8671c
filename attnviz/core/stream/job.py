"""One query head, made ready to be streamed: scale folded in, scores bounded, room for results.

What lives here: what every block of the head shares. What does not: the blocks (``panels``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from attnviz.core.stream.products import Products
from attnviz.core.stream.reach import Reach
from attnviz.records import LayerHeads

LOG2_E = math.log2(math.e)

SAFE_POWER = 40.0
"""Scores within ± this (in powers of two) need no maximum subtracted."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What every row leaves behind, written in place; whether it sees a key at all among it."""

    lse_L: torch.Tensor
    seen_L: torch.Tensor
    entropy_L: torch.Tensor | None
    output_LF: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Job:
    """One head, ready to be streamed: tensors on their device, in the type sums are made in."""

    head: LayerHeads
    products: Products
    reach: Reach
    q_factor: float
    bias_factor: float
    unit: float
    needs_maximum: bool
    sink: torch.Tensor | None
    broken: dict[int, torch.Tensor]
    into: Rows


def prepare(
    head: LayerHeads,
    products: Products,
    into: Rows,
    *,
    tile: int,
    broken: dict[int, torch.Tensor],
) -> Job:
    """Bound the scores and choose the units they are computed in.

    Parameters
    ----------
    head
        One query head with its key/value head, placed on its device.
    products
        Its keys and values, with 0 in place of ``broken`` values.
    into
        Where the rows' results go.
    """
    q_LE, k_SE = head.q[0], head.k[0]
    bound = float(q_LE.norm(dim=-1).max() * k_SE.norm(dim=-1).max()) * abs(head.scale)
    if head.softcap is not None and bound > head.softcap:
        bound = head.softcap
    sink = None if head.sinks is None else head.sinks[0]
    is_safe = head.bias is None and bound * LOG2_E <= SAFE_POWER  # a NaN is not safe
    if sink is not None:
        is_safe = is_safe and abs(float(sink)) * LOG2_E <= SAFE_POWER
    # scores that need a maximum are turned into powers of two after it is subtracted: the
    # product of a large score and log₂ e would round once more than the dense core does
    unit = LOG2_E if is_safe else 1.0
    factor = unit if head.softcap is None else 1 / head.softcap
    return Job(
        head=head,
        products=products,
        reach=Reach(head.visible, n_queries=head.n_queries, n_keys=head.n_keys, tile=tile),
        q_factor=head.scale * factor,
        bias_factor=factor,
        unit=unit,
        needs_maximum=not is_safe,
        sink=sink,
        broken=broken,
        into=into,
    )


def not_finite(v_SF: torch.Tensor) -> dict[int, torch.Tensor]:
    """Return the values that hold a NaN or an infinity, by key.

    One sum tells that there are none, without a second array of the values' size.
    """
    if bool(v_SF.sum().isfinite()):
        return {}
    keys: list[int] = (~v_SF.isfinite().all(-1)).nonzero()[:, 0].tolist()
    return {key: v_SF[key] for key in keys}
