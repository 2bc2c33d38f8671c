"""The fallback: watch product → softmax → product while a model runs its own eager attention.

What lives here: for architectures that do not use the library's attention interface, the same
records that ``capture`` makes, read off the operations inside attention modules. What does not:
patched models: nothing in them is changed, and every cell is held, so texts must be short.

The score that enters the softmax is taken as it is: scale is the factor that was seen between
product and softmax, bias whatever else was added, so that weights are exact by construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from attnviz.errors import InputError
from attnviz.sources.models.capture.interface import Record, StopForward

MAX_TOKENS = 2048
"""Longer texts are refused: the model itself holds heads × L × L here."""

_HIDDEN_BELOW = -3e4
_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "einsum", "baddbmm"})
_DIVISIONS = frozenset({"div", "div_", "__truediv__", "__itruediv__", "true_divide"})
_FACTORS = frozenset({"mul", "mul_", "__mul__", "__imul__", "__rmul__", "multiply"})


@dataclass(slots=True)
class _Product:
    """One product a·b with a (…, L, E) and b (…, E, S), and the factor put on it since."""

    left: torch.Tensor
    right: torch.Tensor
    factor: float = 1.0
    labels: str = ""


@dataclass(slots=True)
class _Softmax:
    product: _Product
    factor: float
    logits: torch.Tensor
    dim: int


@dataclass(slots=True)
class _Frame:
    """One attention module at work: which tensors descend from which product or softmax."""

    module: torch.nn.Module
    scores: dict[int, tuple[torch.Tensor, _Product, float]] = field(default_factory=dict)
    weights: dict[int, tuple[torch.Tensor, _Softmax]] = field(default_factory=dict)


@contextmanager
def tap(
    model: torch.nn.Module,
    consume: Callable[[Record], None],
    *,
    n_batch: int,
    calls: frozenset[int] | None = None,
) -> Iterator[None]:
    """Hand every attention of the forward passes inside to ``consume``, as ``capture`` does.

    Parameters
    ----------
    model
        Switched to eager attention.
    n_batch
        B, needed where a model folds it into its heads.
    calls
        Numbers of the wanted calls; the forward pass ends after the last. All where None.
    """
    mode = _Tap(consume, n_batch, calls)
    handles = []
    for module in model.modules():
        if "attention" in type(module).__name__.lower():
            handles.append(module.register_forward_pre_hook(mode.enter))
            handles.append(module.register_forward_hook(mode.leave, always_call=True))
    try:
        with mode:
            yield
    except StopForward:
        pass
    finally:
        for handle in handles:
            handle.remove()


class _Tap(TorchFunctionMode):
    """Follows scores from their product to the softmax, and weights from there to the values."""

    def __init__(
        self, consume: Callable[[Record], None], n_batch: int, calls: frozenset[int] | None
    ) -> None:
        super().__init__()
        self.consume, self.n_batch, self.calls = consume, n_batch, calls
        self.frames: list[_Frame] = []
        self.seen = 0

    def enter(self, module: torch.nn.Module, _: Any) -> None:
        self.frames.append(_Frame(module))

    def leave(self, *_: Any) -> None:
        self.frames.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.frames and isinstance(result, torch.Tensor):
            self._follow(self.frames[-1], getattr(func, "__name__", ""), args, kwargs or {}, result)
        return result

    def _follow(
        self, frame: _Frame, name: str, args: Any, kwargs: dict[str, Any], result: torch.Tensor
    ) -> None:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        weights = next((frame.weights[id(t)][1] for t in tensors if id(t) in frame.weights), None)
        scores = next((frame.scores[id(t)] for t in tensors if id(t) in frame.scores), None)
        if name in _PRODUCTS:
            product = _read_product(name, args, kwargs)
            source = next((t for t in _operands(args) if id(t) in frame.weights), None)
            if source is not None and product is not None:
                self._emit(frame, frame.weights[id(source)][1], product, result)
            elif product is not None and result.dim() >= 3:
                frame.scores[id(result)] = (result, product, product.factor)
        elif "softmax" in name and scores is not None:
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            softmax = _Softmax(scores[1], scores[2], args[0], int(dim))
            frame.weights[id(result)] = (result, softmax)
        elif weights is not None and result.numel() == weights.logits.numel():
            frame.weights[id(result)] = (result, weights)
        elif scores is not None and result.numel() == scores[0].numel():
            factor = scores[2] * _factor_of(name, args)
            frame.scores[id(result)] = (result, scores[1], factor)

    def _emit(
        self, frame: _Frame, softmax: _Softmax, product: _Product, result: torch.Tensor
    ) -> None:
        call, self.seen = self.seen, self.seen + 1
        frame.scores.clear()
        frame.weights.clear()
        if self.calls is None or call in self.calls:
            with torch._C.DisableTorchFunction():
                self.consume(_to_record(call, frame.module, softmax, product, result, self.n_batch))
        if self.calls is not None and call >= max(self.calls, default=-1):
            raise StopForward


def _operands(args: Any) -> list[torch.Tensor]:
    flat = [x for a in args for x in (a if isinstance(a, list | tuple) else (a,))]
    return [x for x in flat if isinstance(x, torch.Tensor)]


def _factor_of(name: str, args: Any) -> float:
    """Return the number a product was multiplied with, or 1 for anything else."""
    if name not in _DIVISIONS | _FACTORS or len(args) < 2:
        return 1.0
    other = args[1] if isinstance(args[0], torch.Tensor) and args[0].dim() else args[0]
    if isinstance(other, torch.Tensor):
        if other.numel() != 1:
            return 1.0
        other = other.item()
    try:
        factor = 1.0 / float(other) if name in _DIVISIONS else float(other)
    except (TypeError, ValueError, ArithmeticError):
        factor = math.nan
    if not math.isfinite(factor):
        raise InputError(f"its attention calls {name} with {str(other)[:40]}: no finite number")
    return factor


def _read_product(name: str, args: Any, kwargs: dict[str, Any]) -> _Product | None:
    """Bring a product to the form (…, L, E)·(…, E, S)."""
    operands = _operands(args) + _operands(kwargs.values())
    if name == "baddbmm":
        if len(operands) < 3:
            return None
        return _Product(operands[1], operands[2], float(kwargs.get("alpha", 1)))
    if len(operands) != 2:
        return None
    left, right = operands
    if name != "einsum":
        return _Product(left, right)
    equation = str(args[0]).replace(" ", "")
    inputs, arrow, out = equation.partition("->")
    first, _, second = inputs.partition(",")
    summed = (set(first) & set(second)) - set(out)
    rows, columns = set(first) - set(second), set(second) - set(first)
    if not (arrow and len(summed) == len(rows) == len(columns) == 1) or "." in equation:
        return None
    batch = "".join(c for c in out if c in set(first) & set(second))
    shared, row, column = summed.pop(), rows.pop(), columns.pop()
    left = left.permute([first.index(c) for c in batch + row + shared])
    right = right.permute([second.index(c) for c in batch + shared + column])
    return _Product(left, right, labels=f"{batch}{row}{column}>{out}")


def _to_record(
    call: int,
    module: torch.nn.Module,
    softmax: _Softmax,
    values: _Product,
    result: torch.Tensor,
    n_batch: int,
) -> Record:
    """Build the record: q, k, v from the products, bias and mask from what entered the softmax."""
    owner = type(module).__name__
    product = softmax.product
    logits = _straighten(softmax.logits, product.labels).detach()
    output = _straighten(result, values.labels).detach()
    q = _fold(product.left.detach(), n_batch, owner)
    k = _fold(product.right.detach(), n_batch, owner).mT
    v = _fold(values.right.detach(), n_batch, owner)
    if k.shape[1] != v.shape[1]:
        widest = max(k.shape[1], v.shape[1])
        k, v = (t.expand(-1, widest, -1, -1) for t in (k, v))
    logits, output = (_fold(t, n_batch, owner) for t in (logits, output))
    n_heads = q.shape[1]
    fits = logits.shape == (n_batch, n_heads, q.shape[2], k.shape[2]) and n_heads % k.shape[1] == 0
    if not fits or q.shape[-1] != k.shape[-1] or softmax.dim not in (-1, softmax.logits.dim() - 1):
        raise InputError(
            f"{owner} computes attention in pieces ({tuple(logits.shape)} scores from q "
            f"{tuple(q.shape)}, k {tuple(k.shape)}): its q and k cannot be read"
        )
    scores = (q @ k.repeat_interleave(n_heads // k.shape[1], 1).mT) * softmax.factor
    seen = logits > _HIDDEN_BELOW
    bias = torch.where(seen, logits - scores, 0).float()
    scale_of = float(torch.where(seen, logits, 0).abs().max())
    is_nothing = float(bias.abs().max()) <= 1e-5 * max(1.0, scale_of)
    return Record(
        call=call,
        module=module,
        q=q,
        k=k,
        v=v,
        scale=softmax.factor,
        mask=seen,
        bias=None if is_nothing else bias,
        output=output,
    )


def _straighten(values: torch.Tensor, labels: str) -> torch.Tensor:
    """Bring an einsum's result to (batch…, row, column)."""
    if not labels:
        return values
    wanted, _, given = labels.partition(">")
    return values.permute([given.index(c) for c in wanted])


def _fold(values: torch.Tensor, n_batch: int, owner: str) -> torch.Tensor:
    """Bring (B·H, ·, ·) or (B, H, ·, ·) to four axes."""
    if values.dim() == 4:
        return values
    if values.dim() != 3 or values.shape[0] % n_batch:
        shape = tuple(values.shape)
        raise InputError(f"{owner} computes attention in {shape}: which heads is not known here")
    return values.reshape(n_batch, values.shape[0] // n_batch, *values.shape[1:])


def check_length(n_tokens: int, name: str) -> None:
    """Refuse a text too long for a model whose own eager attention must run."""
    if n_tokens > MAX_TOKENS:
        raise InputError(
            f"{n_tokens} tokens, but {name} does not use the library's attention interface, so "
            f"every cell must be held: at most {MAX_TOKENS}, which is {math.ceil(MAX_TOKENS**2)} "
            "cells a head"
        )
