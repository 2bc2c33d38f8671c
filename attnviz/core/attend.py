"""One dense block of attention in torch: the fast twin of ``reference``, on any device.

What lives here: every stage of small inputs, and the steps ``stream`` shares (scores, cap, hide,
blend). What does not: long texts (``stream``), and any formula that ``reference`` does not have.

q, k and v are stored in the asked-for precision; products and softmax are summed in float32 at
least. Notation as in ``reference``: Vaswani et al. 2017, section 3.2.1, equation (1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from attnviz.core.device import full_float32
from attnviz.core.placing import check_shapes, place_heads, round_to, select_heads, to_tensor
from attnviz.masks import visible_block
from attnviz.records import Array, LayerHeads


def project(
    x_LD: Array,
    w_DX: Array,
    b_X: Array | None = None,
    *,
    n_heads: int = 1,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Compute x·W (+ b) and cut the result into heads.

    Parameters
    ----------
    x_LD : (L, D)
    w_DX : (D, heads · width), head after head
    b_X : (heads · width,) or None
    device, dtype
        Where, and how x, W and the result are stored; sums are made in float32 at least.

    Returns
    -------
    (heads, L, width) tensor of ``dtype`` on ``device``

    Raises
    ------
    UsageError
        A number is beyond what ``dtype`` can hold.

    Notes
    -----
    L · D · heads · width multiplications.
    """
    device = device or torch.device("cpu")
    with full_float32(), torch.inference_mode():
        x_LD = round_to(x_LD, name="x", device=device, dtype=dtype)
        y_LX = x_LD @ round_to(w_DX, name="w", device=device, dtype=dtype)
        if b_X is not None:
            y_LX = y_LX + to_tensor(b_X, device=device, dtype=y_LX.dtype)
        y_HLX = y_LX.reshape(len(y_LX), n_heads, -1).transpose(0, 1).contiguous()
        return round_to(y_HLX, name="x·W", device=device, dtype=dtype).to(dtype)


def cap(scores: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """Bound scores softly: softcap · tanh(scores / softcap). Gemma 2, section 2."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def hide(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Put −∞ where a query may not look, whatever stood there (NaN too)."""
    return scores.masked_fill(~visible, -torch.inf)


def softmax(
    masked_HLS: torch.Tensor, sinks_H: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn scores into weights along the keys, with the logsumexp of every row.

    weights = exp(masked − m) / Σ exp(masked − m), m the row's maximum. A learned sink is one
    more column without a value. A row that sees no key has weights 0 and logsumexp −∞.

    Parameters
    ----------
    masked_HLS : (H, L, S), −∞ where hidden
    sinks_H : (H,) or None

    Returns
    -------
    weights_HLS : (H, L, S); rows sum to 1, or to 1 − sink share, or to 0
    lse_HL : (H, L), natural logarithm
    """
    top_HL1 = masked_HLS.amax(-1, keepdim=True)
    if sinks_H is not None:
        top_HL1 = torch.maximum(top_HL1, sinks_H[:, None, None])
    sees_HL1 = top_HL1 != -torch.inf  # a NaN in sight stays a NaN
    top_HL1 = top_HL1.masked_fill(~sees_HL1, 0.0)
    grown_HLS = torch.exp(masked_HLS - top_HL1)
    total_HL1 = grown_HLS.sum(-1, keepdim=True)
    if sinks_H is not None:
        total_HL1 = total_HL1 + torch.exp(sinks_H[:, None, None] - top_HL1)
    total_HL1 = total_HL1.masked_fill(~sees_HL1, 1.0)
    lse_HL1 = (top_HL1 + total_HL1.log()).masked_fill(~sees_HL1, -torch.inf)
    return grown_HLS / total_HL1, lse_HL1[..., 0]


def blend(weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute z = Σ_j weights_j · v_j over the keys of weight above 0: (…, L, F).

    A value that is not a number reaches the queries that look at it and no other: such keys are
    left out of the product (0 · NaN would leak) and added to the rows whose weight is not 0.
    """
    broken_S = ~v.isfinite().all(-1)
    if not bool(broken_S.any()):
        return weights @ v
    output = weights @ v.masked_fill(broken_S[..., None], 0.0)
    for key in broken_S.flatten(0, -2).any(0).nonzero()[:, 0].tolist():
        weight = weights[..., key, None]
        left_out = (weight == 0) | ~broken_S[..., None, key, None]
        output = output + (weight * v[..., None, key, :]).masked_fill(left_out, 0.0)
    return output


def trace_heads(
    heads: LayerHeads,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    subset: Sequence[int] | None = None,
) -> dict[str, npt.NDArray[np.float64]]:
    """Compute every stage of the asked-for heads of one layer, dense.

    Parameters
    ----------
    heads
        One layer; arrays or tensors.
    device, dtype
        Where, and how q, k and v are stored. Sums are made in float32, for float64 in float64.
    subset
        Query heads in the order wanted; all of them where None.

    Returns
    -------
    dict of numpy float64
        ``q`` ``k`` ``v`` (H, ·, ·), ``scores`` ``scaled`` [``bias``] [``capped``] ``masked``
        ``weights`` (H, L, S), ``output`` (H, L, F), ``visible`` (H, L, S) bool, ``lse`` (H, L).

    Raises
    ------
    InputError
        Shapes that do not fit one another.
    UsageError
        A head that does not exist, or a number that ``dtype`` cannot hold.

    Notes
    -----
    Time and memory grow with H·L·S: at float32 about 16 bytes a cell on the device and 48 in the
    result. For long texts use ``stream``.
    """
    check_shapes(heads)
    with full_float32(), torch.inference_mode():
        chosen = place_heads(
            select_heads(heads, subset), device=device or torch.device("cpu"), dtype=dtype
        )
        return {name: _to_numpy(stage) for name, stage in _stages(chosen).items()}


def _stages(heads: LayerHeads) -> dict[str, torch.Tensor]:
    q_HLE, k_HSE, v_HSF = heads.q, heads.k, heads.v
    visible_HLS = visible_block(
        heads.visible,
        n_queries=heads.n_queries,
        n_keys=heads.n_keys,
        n_heads=heads.n_heads,
        xp=torch,
        device=q_HLE.device,
    ).expand(heads.n_heads, -1, -1)
    stages: dict[str, torch.Tensor] = {"q": q_HLE, "k": k_HSE, "v": v_HSF}
    stages["scores"] = q_HLE @ k_HSE.mT
    entering = stages["scaled"] = stages["scores"] * heads.scale
    if heads.bias is not None:
        bias = heads.bias(0, heads.n_queries) if callable(heads.bias) else heads.bias
        stages["bias"] = bias.expand_as(entering)
        entering = entering + bias
    if heads.softcap is not None:
        entering = stages["capped"] = cap(entering, heads.softcap)
    stages["masked"] = hide(entering, visible_HLS)
    stages["weights"], stages["lse"] = softmax(stages["masked"], heads.sinks)
    stages["output"] = blend(stages["weights"], v_HSF)
    stages["visible"] = visible_HLS
    return stages


def _to_numpy(stage: torch.Tensor) -> npt.NDArray[np.float64]:
    kept = torch.bool if stage.dtype == torch.bool else torch.float64
    found: npt.NDArray[np.float64] = stage.cpu().to(kept).numpy()
    return found
