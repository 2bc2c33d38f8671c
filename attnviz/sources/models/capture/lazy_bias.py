"""T5's relative position bias as a rule: a block of rows when asked, never L × S at once.

What lives here: the tensor without storage that stands for the bias, and the switch that makes
T5-like modules hand it out while a capture runs. What does not: any other kind of bias.

Reference: Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from attnviz.errors import InputError


class LazyBias(torch.Tensor):
    """Looks like the (1, H, L, S) position bias, and computes rows on demand."""

    compute: Any
    past: int

    @staticmethod
    def __new__(
        cls, compute: Any, shape: tuple[int, ...], *, past: int, like: torch.Tensor
    ) -> LazyBias:
        make: Any = torch.Tensor._make_wrapper_subclass
        bias: LazyBias = make(cls, shape, dtype=like.dtype, device=like.device)
        bias.compute, bias.past = compute, past
        return bias

    def rows(self, start: int, end: int) -> torch.Tensor:
        """Compute some query rows: (1, H, rows, S)."""
        made: torch.Tensor = self.compute(
            end - start, self.shape[-1], device=self.device, past_seen_tokens=self.past + start
        )
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"LazyBias{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            bias: LazyBias = args[0]
            return LazyBias(bias.compute, tuple(bias.shape), past=bias.past, like=bias)
        raise InputError(
            f"this model computes with its position bias ({func}): how is not known here"
        )


@contextmanager
def lazy_position_bias(model: torch.nn.Module) -> Iterator[None]:
    """Let T5-like attention modules hand out a ``LazyBias`` for the time being.

    A module is T5-like where ``compute_bias(query_length, key_length, device, past_seen_tokens)``
    and ``relative_attention_bias`` are its own and the family's code is the one this was read from.
    """
    patched = [m for m in model.modules() if _is_t5_like(m)]
    for module in patched:
        module.compute_bias = _lazily(module.compute_bias, module)
    try:
        yield
    finally:
        for module in patched:
            del module.__dict__["compute_bias"]


def _is_t5_like(module: torch.nn.Module) -> bool:
    home = type(module).__module__.rsplit(".", 1)[-1]
    known = {"modeling_t5", "modeling_mt5", "modeling_pop2piano", "modeling_umt5"}
    return (
        home in known
        and hasattr(module, "compute_bias")
        and hasattr(module, "relative_attention_bias")
    )


def _lazily(compute: Any, module: torch.nn.Module) -> Any:
    table: Any = module.relative_attention_bias
    weight: torch.Tensor = table.weight

    def compute_bias(
        query_length: int, key_length: int, device: Any = None, past_seen_tokens: Any = 0
    ) -> LazyBias:
        shape = (1, weight.shape[1], int(query_length), int(key_length))
        return LazyBias(compute, shape, past=int(past_seen_tokens), like=weight)

    return compute_bias
