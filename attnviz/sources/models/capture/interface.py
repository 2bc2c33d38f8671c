"""What a model's own attention works with, call by call, while the model's output stays its own.

What lives here: the attention function registered with ``transformers`` and the record it makes
of each call. What does not: masks (``lazy_mask``), records → ``LayerHeads`` (``handover``), models
that do not use the library's interface (``tap``).

All but one of the library's eager attention functions are this one formula, in this order::

    z = (q·kᵀ)·scaling;  z += position_bias;  z = softcap·tanh(z / softcap);  z += mask
    weights = softmax(z), or softmax([z, sink]) without its last column;  output = weights·v
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F

from attnviz.errors import InputError
from attnviz.sources.models.capture.lazy_bias import LazyBias
from attnviz.sources.models.capture.lazy_mask import LazyMask, make_mask

NAME = "attnviz"
"""The name under which the attention and the mask function are registered."""

_BLOCK_BYTES = 32 << 20
_HARMLESS_TENSORS = frozenset(
    {
        "position_ids",
        "cache_position",
        "position_embeddings",
        "input_ids",
        "output_attentions",
        "use_cache",
    }
)


@dataclass(frozen=True, slots=True)
class Record:
    """One call of a model's attention.

    Parameters
    ----------
    call
        How many calls came before it in this forward pass.
    q : (B, H, L, E), k : (B, K, S, E), v : (B, K, S, F)
    scale
        scaled = (q·kᵀ) · scale.
    mask
        None, a ``LazyMask``, or a dense (B or 1, 1 or H, L, S) mask, boolean or additive.
    bias
        None, a ``LazyBias``, or dense (B or 1, H, L, S).
    sinks
        None, (H,), or (B, H, L) logits.
    output : (B, H, L, F) what the model goes on with.
    steps
        Tensors of the module's own projections by name, see ``steps``.
    prescale
        The factor that q was multiplied with beforehand, where the module says so.
    """

    call: int
    module: torch.nn.Module
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    mask: torch.Tensor | None = None
    softcap: float | None = None
    bias: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    output: torch.Tensor | None = None
    prescale: float | None = None
    steps: Mapping[str, torch.Tensor] = field(default_factory=dict)


class StopForward(Exception):
    """Ends a forward pass once the last wanted layer has been seen."""


@dataclass(slots=True)
class _Session:
    consume: Callable[[Record], None]
    calls: frozenset[int] | None
    steps: Callable[[torch.nn.Module], Mapping[str, torch.Tensor]] | None
    seen: int = 0


_session: ContextVar[_Session | None] = ContextVar("attnviz_capture", default=None)


@contextmanager
def capture(
    consume: Callable[[Record], None],
    *,
    calls: frozenset[int] | None = None,
    steps: Callable[[torch.nn.Module], Mapping[str, torch.Tensor]] | None = None,
) -> Iterator[_Session]:
    """Hand every attention call of the forward passes inside to ``consume``.

    Parameters
    ----------
    consume
        Receives one ``Record`` at a time; nothing is kept behind its back.
    calls
        Numbers of the wanted calls; the forward pass ends after the last of them. All where None.
    steps
        Gives what was seen of the module's projections so far.

    Notes
    -----
    The model must have been switched to ``NAME`` (``planning.switch``).
    """
    session = _Session(consume, calls, steps)
    token = _session.set(session)
    try:
        yield session
    except StopForward:
        pass
    finally:
        _session.reset(token)


@cache
def register() -> None:
    """Register the attention and the mask function with the library, once per process."""
    transformers: Any = import_module("transformers")
    transformers.AttentionInterface.register(NAME, attention)
    transformers.AttentionMaskInterface.register(NAME, make_mask)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute a model's attention as its fused kernel does, and show the call to the session.

    The signature is the library's ``AttentionInterface``. ``is_causal`` and ``sliding_window``
    only repeat what the mask says, and differ from it for some models: the mask decides.

    Returns
    -------
    (B, L, H, F) tensor, and None in place of weights

    Raises
    ------
    InputError
        The model passes a tensor of unknown meaning: ignoring it could falsify every number.
    """
    session = _session.get()
    refuse_unknown(type(module).__name__, others)
    call = session.seen if session else 0
    record = Record(
        call=call,
        module=module,
        q=query,
        k=key,
        v=value,
        scale=read_scale(module, scaling, query.shape[-1]),
        mask=_cut_mask(attention_mask, key.shape[-2]),
        softcap=_read_softcap(module, softcap),
        bias=_nothing_if_zero(position_bias),
        sinks=_read_sinks(module, s_aux if s_aux is not None else sinks, query.shape[1]),
        prescale=_find_prescale(module, scaling),
    )
    output = fused_output(record)
    if session is not None:
        session.seen += 1
        if session.calls is None or call in session.calls:
            steps = session.steps(module) if session.steps else {}
            session.consume(_with(record, output, steps))
        if session.calls is not None and call >= max(session.calls, default=-1):
            raise StopForward
    return output.transpose(1, 2).contiguous(), None


def refuse_unknown(owner: str, others: Mapping[str, Any]) -> None:
    """Refuse tensor arguments whose meaning is not known; plain values only describe the call."""
    for name, value in others.items():
        if isinstance(value, torch.Tensor) and name not in _HARMLESS_TENSORS:
            raise InputError(
                f"{owner} passes {name} {tuple(value.shape)} to its attention: what it does is "
                "not known here, so no number would be sure"
            )


def fused_output(record: Record) -> torch.Tensor:
    """Compute weights · v for every query without holding L × S: (B, H, L, F).

    The fused kernel where it does the same thing, in blocks of rows where the mask is a rule,
    the formula in blocks where there is a bias, a softcap or a sink.
    """
    mask = record.mask
    is_plain = record.bias is None and record.softcap is None and record.sinks is None
    if is_plain and mask is None:
        return _kernel(record.q, record.k, record.v, record.scale, None, causal=False)
    if is_plain and isinstance(mask, LazyMask) and _is_plain_causal(mask):
        return _kernel(record.q, record.k, record.v, record.scale, None, causal=True)
    n_batch, n_heads, n_queries, _ = record.q.shape
    width = n_batch * record.k.shape[2] * (4 if is_plain else 4 * n_heads)
    step = max(1, min(n_queries, _BLOCK_BYTES // max(1, width)))
    made = torch.empty(
        (n_batch, n_heads, n_queries, record.v.shape[-1]),
        dtype=record.v.dtype,
        device=record.v.device,
    )
    for start in range(0, n_queries, step):
        rows = (start, min(start + step, n_queries))
        made[:, :, rows[0] : rows[1]] = (
            _kernel_rows(record, rows) if is_plain else formula_rows(record, rows)[1]
        )
    return made


def formula_rows(
    record: Record, rows: tuple[int, int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute weights and output of some query rows by the formula, in the library's own order.

    Returns
    -------
    weights (B, H, rows, S) in float32 at least, output (B, H, rows, F)
    """
    row0, row1 = rows or (0, record.q.shape[2])
    group = record.q.shape[1] // record.k.shape[1]
    k, v = (t.repeat_interleave(group, 1) if group > 1 else t for t in (record.k, record.v))
    scores = (record.q[:, :, row0:row1] @ k.mT) * record.scale
    if record.bias is not None:
        bias = record.bias
        scores = scores + (
            bias.rows(row0, row1) if isinstance(bias, LazyBias) else bias[:, :, row0:row1]
        )
    if record.softcap is not None:
        scores = record.softcap * torch.tanh(scores / record.softcap)
    if record.mask is not None:
        scores = _hide(scores, _mask_rows(record.mask, (row0, row1)))
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if record.sinks is None:
        weights = torch.softmax(scores, -1)
    else:
        sinks = record.sinks
        column = sinks[None, :, None] if sinks.dim() == 1 else sinks[:, :, row0:row1]
        column = column[..., None].to(scores.dtype).expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
    return weights, weights.to(v.dtype) @ v


def _kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    mask: torch.Tensor | None,
    *,
    causal: bool,
) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _kernel_rows(record: Record, rows: tuple[int, int]) -> torch.Tensor:
    mask = _mask_rows(record.mask, rows)
    q, k, v = record.q[:, :, rows[0] : rows[1]], record.k, record.v
    if mask.dtype == torch.bool:
        reached = mask.flatten(0, 2).any(0).nonzero()
        if len(reached):
            keys = slice(int(reached[0]), int(reached[-1]) + 1)
            k, v, mask = k[:, :, keys], v[:, :, keys], mask[..., keys]
    return _kernel(q, k, v, record.scale, mask, causal=False)


def _mask_rows(mask: Any, rows: tuple[int, int]) -> torch.Tensor:
    if isinstance(mask, LazyMask):
        return mask.visible(rows=rows)
    part: torch.Tensor = mask[:, :, rows[0] : rows[1]] if mask.shape[2] > 1 else mask
    return part


def _hide(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores + mask


def _is_plain_causal(mask: LazyMask) -> bool:
    masking_utils: Any = import_module("transformers.masking_utils")
    square = mask.shape[-1] == mask.shape[-2] and mask.query_offset == mask.key_offset
    return square and mask.rule is masking_utils.causal_mask_function


def _cut_mask(mask: torch.Tensor | None, n_keys: int) -> torch.Tensor | None:
    """Drop columns beyond the last key, as eager attention functions do."""
    if mask is None or isinstance(mask, LazyMask) or mask.shape[-1] == n_keys:
        return mask
    return mask[..., :n_keys]


def _nothing_if_zero(bias: torch.Tensor | None) -> torch.Tensor | None:
    """Cross attention of T5 passes a bias of zeros: that is no bias."""
    if bias is None or isinstance(bias, LazyBias):
        return bias
    return bias if bool(bias.any()) else None


def read_scale(module: torch.nn.Module, scaling: Any, d_k: int) -> float:
    """Return what scores are multiplied with: 1/√d_k where the model says nothing.

    Raises
    ------
    InputError
        No finite number: the root of a negative one in a config is complex.
    """
    scale = d_k**-0.5 if scaling is None else scaling
    try:
        number = float(scale)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            f"{type(module).__name__} multiplies its scores by {str(scale)[:40]}: wanted a finite "
            "number; its config is damaged"
        )
    return number


def _read_softcap(module: torch.nn.Module, softcap: Any) -> float | None:
    if softcap is None:
        return None
    if not isinstance(softcap, int | float) or not (math.isfinite(softcap) and softcap > 0):
        raise InputError(f"{type(module).__name__} has a softcap of {softcap}: it must be above 0")
    return float(softcap)


def _read_sinks(
    module: torch.nn.Module, given: torch.Tensor | None, n_heads: int
) -> torch.Tensor | None:
    """Return sink logits as (H,), or (B, H, L) where they differ by query."""
    sinks = given if given is not None else getattr(module, "sinks", None)
    if not isinstance(sinks, torch.Tensor):
        return None
    if sinks.numel() == n_heads:
        return sinks.detach().reshape(-1)
    if sinks.dim() == 4 and sinks.shape[-1] == 1:
        return sinks.detach()[..., 0]
    raise InputError(
        f"{type(module).__name__} has sinks of shape {tuple(sinks.shape)}: one per head is known"
    )


def _find_prescale(module: torch.nn.Module, scaling: float | None) -> float | None:
    """Find the factor on q where a module scales before the product and passes scaling = 1."""
    own = getattr(module, "scaling", None)
    if scaling is None or not isinstance(own, float) or math.isclose(own, scaling):
        return None
    return own


def _with(record: Record, output: torch.Tensor, steps: Mapping[str, torch.Tensor]) -> Record:
    return replace(record, output=output, steps=steps)
