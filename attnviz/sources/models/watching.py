"""See q, k and v of a model that its owner runs: nothing of the model is changed, and nothing of what it computes.

The attention functions that ``transformers`` calls are wrapped while the watch lasts: each call is
recorded and handed on as it is, so outputs and gradients are bit for bit the model's own. For
``torch.nn.MultiheadAttention`` a hook computes its projections a second time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from attnviz.errors import UsageError
from attnviz.records import LayerHeads, MaskRule

_MASKED = -1e4
"""An additive mask at or below this hides a key; what lies above is a bias."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an attention: q (B, H, L, E), k (B, K, S, E), v (B, K, S, F), and its rule."""

    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    mask: torch.Tensor | None = None
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    bias: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    output: torch.Tensor | None = None

    def heads(self, index: int) -> LayerHeads:
        """Return one text of the batch, on the CPU in float32 (or float64) as the core takes it."""
        mask, bias = self._rule(index)
        return LayerHeads(
            q=_plain(self.q[index]),
            k=_plain(self.k[index]),
            v=_plain(self.v[index]),
            scale=self.scale,
            visible=MaskRule(causal=self.causal, window=self.window, cells=mask),
            softcap=self.softcap,
            bias=bias,
            sinks=None if self.sinks is None else _plain(self.sinks),
            own_output=None if self.output is None else _plain(self.output[index]),
            layer=self.layer,
        )

    def _rule(self, index: int) -> tuple[Any, Any]:
        """Return which cells are visible, and what is added to the others' scores."""
        added = None if self.bias is None else _plain(self.bias[min(index, len(self.bias) - 1)])
        if self.mask is None:
            return None, added
        mask = self.mask[min(index, len(self.mask) - 1)][..., : self.k.shape[-2]]
        n_heads = self.q.shape[1]
        if mask.dtype == torch.bool:
            return _shared(mask.cpu().numpy(), n_heads), added
        values = _plain(mask)
        seen = values > _MASKED
        rest = np.where(seen, values, 0)
        if rest.any():
            added = rest if added is None else added + rest
        return _shared(seen, n_heads), added


def _shared(cells: Any, n_heads: int) -> Any:
    """Return (L, S) where all heads share a mask, else (H, L, S)."""
    return cells[0] if len(cells) != n_heads or len(cells) == 1 else cells


def _plain(values: torch.Tensor) -> Any:
    values = values.detach().cpu()
    return (values if values.dtype == torch.float64 else values.float()).numpy()


@dataclass
class Calls:
    """What was seen so far, call by call."""

    wanted: frozenset[int] | None
    numbers: dict[int, int] = field(default_factory=dict)
    found: list[Call] = field(default_factory=list)

    def number(self, module: torch.nn.Module) -> int:
        """Return a module's layer: in the order in which they are first called."""
        return self.numbers.setdefault(id(module), len(self.numbers))

    def wants(self, layer: int) -> bool:
        """True where a layer is asked for."""
        return self.wanted is None or layer in self.wanted


@contextmanager
def watching(model: Any, layers: Sequence[int] | None) -> Iterator[Calls]:
    """Record the attention of a model while the block lasts.

    Raises
    ------
    UsageError
        Not a torch module, or one without attention that can be watched.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"a model of the type {type(model).__name__} cannot be watched: give a torch module"
        )
    calls = Calls(None if layers is None else frozenset(layers))
    watched = {id(module) for module in model.modules()}
    own = [m for m in model.modules() if isinstance(m, torch.nn.MultiheadAttention)]
    with ExitStack() as stack:
        for module in own:
            hook = module.register_forward_pre_hook(_MultiHead(calls), with_kwargs=True)
            stack.callback(hook.remove)
        if hasattr(model, "config"):
            stack.enter_context(_wrapped(model, watched, calls))
        elif not own:
            raise UsageError(
                f"{type(model).__name__} has no attention that can be watched: a model of transformers, "
                "or torch.nn.MultiheadAttention"
            )
        yield calls


@contextmanager
def _wrapped(model: Any, watched: set[int], calls: Calls) -> Iterator[None]:
    """Wrap every attention function that the model may call; put the library's own back."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as registered

    with ExitStack() as stack:
        for name in {type(module).__module__ for module in model.modules()}:
            home = sys.modules.get(name)
            eager = getattr(home, "eager_attention_forward", None)
            if eager is not None:
                vars(home)["eager_attention_forward"] = _recorder(
                    eager, watched, calls, is_eager=True
                )
                stack.callback(vars(home).__setitem__, "eager_attention_forward", eager)
        for name in list(registered.keys()):
            function = registered[name]
            registered[name] = _recorder(function, watched, calls, is_eager=False)
            stack.callback(_put_back, registered, name, function)
        yield


def _put_back(registered: Any, name: str, function: Any) -> None:
    del registered[name]
    if name not in registered or registered[name] is not function:
        registered[name] = function


def _recorder(
    function: Callable[..., Any], watched: set[int], calls: Calls, *, is_eager: bool
) -> Callable[..., Any]:
    def attention(
        module: torch.nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any,
        **how: Any,
    ) -> Any:  # fmt: skip
        done = function(module, query, key, value, attention_mask, *args, **how)
        if id(module) in watched:
            layer = calls.number(module)
            if calls.wants(layer):
                calls.found.append(
                    _call(layer, module, query, key, value, attention_mask, done, how, is_eager)
                )
        return done

    return attention


def _call(
    layer: int, module: Any, query: Any, key: Any, value: Any, mask: Any, done: Any,
    how: dict[str, Any], is_eager: bool,
) -> Call:  # fmt: skip
    scale = how.get("scaling")
    causal, window = False, None
    if mask is None and not is_eager:  # the kernel's own rule
        asked = how.get("is_causal")
        causal = bool(getattr(module, "is_causal", True) if asked is None else asked)
        causal = causal and query.shape[2] > 1
        window = how.get("sliding_window")
    sinks = how.get("s_aux", how.get("sinks"))
    is_exact = not (module.training and how.get("dropout"))
    output = done[0].detach().transpose(1, 2) if is_exact and done[0].dim() == 4 else None
    return Call(
        layer, query.detach(), key.detach(), value.detach(),
        query.shape[-1] ** -0.5 if scale is None else float(scale),
        mask.detach() if isinstance(mask, torch.Tensor) else None,
        causal, window, how.get("softcap"), how.get("position_bias"), sinks, output,
    )  # fmt: skip


@dataclass
class _MultiHead:
    """A hook on ``torch.nn.MultiheadAttention``: its projections, computed a second time."""

    calls: Calls

    def __call__(self, module: Any, args: tuple[Any, ...], how: dict[str, Any]) -> None:
        layer = self.calls.number(module)
        if not self.calls.wants(layer):
            return
        names = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
        given = {**dict(zip(names, args, strict=False)), **how}
        with torch.no_grad():
            self.calls.found.append(self._record(layer, module, given))

    def _record(self, layer: int, module: Any, given: dict[str, Any]) -> Call:
        parts = [given[name].detach() for name in ("query", "key", "value")]
        if parts[0].dim() == 2:
            parts = [part[None] for part in parts]
        elif not module.batch_first:
            parts = [part.transpose(0, 1) for part in parts]
        if module.in_proj_weight is not None:
            weights = module.in_proj_weight.chunk(3)
        else:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        none = (None, None, None)
        biases = none if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
        q, k, v = (
            torch.nn.functional.linear(part, weight, bias)
            .reshape(*part.shape[:2], module.num_heads, -1)
            .transpose(1, 2)
            for part, weight, bias in zip(parts, weights, biases, strict=True)
        )
        return Call(layer, q, k, v, q.shape[-1] ** -0.5, _mask_of(given, q, k))


def _mask_of(given: dict[str, Any], q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """Join the two masks of torch, whose booleans say what is hidden, into one of what is visible."""
    n_texts, n_heads, n_queries = q.shape[:3]
    joined: torch.Tensor | None = None
    attn, padding = given.get("attn_mask"), given.get("key_padding_mask")
    if attn is not None:
        attn = attn.detach()
        shape = (n_texts, n_heads) if attn.dim() == 3 else (1, 1)
        joined = _added(attn).reshape(*shape, n_queries, k.shape[2])
    if padding is not None:
        rows = padding.detach() if padding.dim() == 2 else padding.detach()[None]
        hidden = _added(rows)[:, None, None, :]
        joined = hidden if joined is None else joined + hidden
        joined = joined.expand(n_texts, -1, n_queries, -1)
    return joined


def _added(mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape).masked_fill(mask.cpu(), float("-inf"))
