"""Any rectangle, row or cell of the full L × S map, exactly and on demand.

What lives here: the scores and weights of some rows against some keys. What does not: the whole
map (``stream`` never holds it); the logsumexp of just the asked-for rows comes from there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from attnviz.core.attend import cap
from attnviz.core.device import full_float32
from attnviz.core.placing import check_shapes, place_heads, select_heads
from attnviz.core.stream.stream import row_logsumexp
from attnviz.errors import ResourceError, UsageError
from attnviz.masks import visible_block
from attnviz.records import LayerHeads, Span

LARGEST_CELLS = 2**24
"""Cells in one rectangle: more are no longer looked at by anybody."""


def rectangle(
    heads: LayerHeads,
    head: int,
    *,
    rows: Span,
    keys: Span,
    stage: str = "weights",
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> npt.NDArray[np.float64]:
    """Compute one stage of one head for some queries and some keys.

    Parameters
    ----------
    rows, keys
        Half-open ranges within (0, L) and (0, S).
    stage
        ``weights``, or ``masked``: the score that enters the softmax, −∞ where hidden.

    Returns
    -------
    (rows, keys) float64
        The same numbers as the whole map would have there.

    Raises
    ------
    UsageError
        A range outside the text, a head or a stage that does not exist.
    ResourceError
        More than 2²⁴ cells.

    Notes
    -----
    For weights all keys of the asked-for rows are visited once: rows · S · E multiplications.

    Examples
    --------
    >>> x = np.zeros((1, 4, 2))
    >>> rectangle(LayerHeads(q=x, k=x, v=x, scale=1.0), 0, rows=(1, 2), keys=(0, 3)).tolist()
    [[0.25, 0.25, 0.25]]
    """
    check_shapes(heads)
    _check_range("rows", rows, heads.n_queries)
    _check_range("keys", keys, heads.n_keys)
    if stage not in ("weights", "masked"):
        raise UsageError(f"stage '{stage}' has no rectangle: choose from weights, masked")
    n_cells = (rows[1] - rows[0]) * (keys[1] - keys[0])
    if n_cells > LARGEST_CELLS:
        raise ResourceError(
            f"{rows[1] - rows[0]} rows × {keys[1] - keys[0]} keys are {n_cells:,} cells: at most "
            f"{LARGEST_CELLS:,} at once; ask for fewer, or for the pooled map"
        )
    with full_float32(), torch.inference_mode():
        placed = place_heads(
            select_heads(heads, [head]), device=device or torch.device("cpu"), dtype=dtype
        )
        numbers = _masked(placed, rows, keys)
        if stage == "weights":
            lse_B = row_logsumexp(placed, rows)
            numbers = torch.exp(numbers - lse_B.masked_fill(lse_B == -torch.inf, 0.0)[:, None])
        found: npt.NDArray[np.float64] = numbers.cpu().double().numpy()
        return found


def weight_rows(
    heads: LayerHeads,
    head: int,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> Callable[[int, int], npt.NDArray[np.float64]]:
    """Return what computes the weights of a head row by row: ``rows(first, end)`` → (rows, S) float64.

    The head is brought to its device once, for any number of blocks.

    Examples
    --------
    >>> x = np.zeros((1, 4, 2))
    >>> weight_rows(LayerHeads(q=x, k=x, v=x, scale=1.0), 0)(1, 2).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    check_shapes(heads)
    placed = place_heads(
        select_heads(heads, [head]), device=device or torch.device("cpu"), dtype=dtype
    )

    def rows(first: int, end: int) -> npt.NDArray[np.float64]:
        with full_float32(), torch.inference_mode():
            scores_BS = _masked(placed, (first, end), (0, placed.n_keys))
            # softmax in place: the block stays in the cache
            top_B1 = scores_BS.amax(-1, keepdim=True)
            if placed.sinks is not None:
                top_B1 = torch.maximum(top_B1, placed.sinks[0])
            sees_B1 = top_B1 != -torch.inf
            scores_BS.sub_(top_B1.masked_fill(~sees_B1, 0.0)).exp_()
            total_B1 = scores_BS.sum(-1, keepdim=True)
            if placed.sinks is not None:
                total_B1 += torch.exp(placed.sinks[0] - top_B1)
            scores_BS.div_(total_B1.masked_fill(~sees_B1, 1.0))
            found: npt.NDArray[np.float64] = scores_BS.cpu().double().numpy()
            return found

    return rows


def _masked(head: LayerHeads, rows: Span, keys: Span) -> torch.Tensor:
    scores = (head.q[0, slice(*rows)] @ head.k[0, slice(*keys)].T).mul_(head.scale)
    if head.bias is not None:
        bias = head.bias(*rows)[0] if callable(head.bias) else head.bias[0, slice(*rows)]
        scores = scores + bias[:, slice(*keys)]
    if head.visible.hides_nothing:
        return cap(scores, head.softcap)
    visible = visible_block(
        head.visible,
        n_queries=head.n_queries,
        n_keys=head.n_keys,
        rows=rows,
        keys=keys,
        xp=torch,
        device=scores.device,
    )
    return cap(scores, head.softcap).masked_fill_(~visible[0], -torch.inf)


def _check_range(name: str, span: Span, n: int) -> None:
    if not 0 <= span[0] < span[1] <= n:
        raise UsageError(
            f"{name} {span[0]} to {span[1] - 1} do not exist: the text has 0 to {n - 1}"
        )
