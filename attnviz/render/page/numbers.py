"""In which numbers a page carries q, k and v, and what that does to the weights.

What lives here: the choice between float64, float32 and int16, the rounding, its largest effect
on a weight, and the size of a page. What does not: the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from attnviz.core.reference import cap, hide, softmax
from attnviz.errors import ResourceError
from attnviz.records import Array, LayerHeads, LayerStack, SourceInfo
from attnviz.render.page.rules import visible_rows

Numbers: TypeAlias = Literal["float64", "float32", "int16"]

BUDGET_MB = 64.0
MAX_TOKENS = 2048
VALUES_BUDGET_BYTES = 8_000_000
FLOAT64_BUDGET_BYTES = 1_000_000
_BYTES = {"float64": 8.0, "float32": 4.0, "int16": 2.0}
SHELL_BYTES = 96_000
_TOKEN_BYTES = 160
_FLOAT64_MAX_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a page's size depends on: counts of layers, heads, tokens, and widths."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_queries: int
    n_keys: int
    d_k: int
    d_v: int


def sizes_of(stack: LayerStack) -> Sizes:
    """Return the sizes of gathered layers."""
    first = stack.layers[0]
    return Sizes(
        len(stack.layers),
        first.n_heads,
        first.n_kv_heads,
        first.n_queries,
        first.n_keys,
        first.d_k,
        first.d_v,
    )


def sizes_before(
    info: SourceInfo, *, layers: Sequence[int], heads: Sequence[int], n_tokens: int
) -> Sizes:
    """Return the sizes a page will have, known before anything is computed."""
    group = info.n_heads // info.n_kv_heads
    n_kv = len({head // group for head in heads})
    return Sizes(len(layers), len(heads), n_kv, n_tokens, n_tokens, info.d_k, info.d_v)


def page_bytes(sizes: Sizes, numbers: Numbers, *, with_values: bool = False) -> int:
    """Predict the size of a page without masks or biases that are no rule.

    Examples
    --------
    >>> page_bytes(Sizes(12, 12, 12, 128, 128, 64, 64), "float32") // 1_000_000
    12
    """
    rows_q, rows_k = sizes.n_heads * sizes.n_queries, sizes.n_kv_heads * sizes.n_keys
    width = _BYTES[numbers]
    per_row = 4.0 if numbers == "int16" else 0.0
    total = (rows_q + rows_k) * (sizes.d_k * width + per_row) + rows_k * max(4.0, width)
    if with_values:
        total += rows_k * (sizes.d_v * width + per_row)
    tokens = _TOKEN_BYTES * max(sizes.n_queries, sizes.n_keys)
    return round(sizes.n_layers * total * 4 / 3) + SHELL_BYTES + tokens


def choose_numbers(stack: LayerStack, *, compact: bool) -> tuple[Numbers, bool]:
    """Choose the numbers of a page, and whether it carries the values whole.

    int16 where ``compact``; float64 where the source has float64 and the page stays below 1 MB;
    float32 otherwise. The values v come along while the page stays below 8 MB; above it only
    their lengths, which is what a share of z needs.
    """
    sizes = sizes_of(stack)
    numbers: Numbers = "int16" if compact else "float32"
    is_double = all(a.dtype == np.float64 for h in stack.layers for a in (h.q, h.k))
    if not compact and is_double:
        whole = page_bytes(sizes, "float64", with_values=True) - SHELL_BYTES
        numbers = "float64" if whole <= FLOAT64_BUDGET_BYTES else "float32"
    return numbers, page_bytes(sizes, numbers, with_values=True) <= VALUES_BUDGET_BYTES


def check_budget(sizes: Sizes, *, compact: bool, budget_mb: float) -> None:
    """Refuse a page that would be too large, saying what would fit.

    Raises
    ------
    ResourceError
        More tokens than a page can draw, or more megabytes than the budget.
    """
    n_tokens = max(sizes.n_queries, sizes.n_keys)
    if n_tokens > MAX_TOKENS:
        raise ResourceError(
            f"{n_tokens} tokens are too many for a page: at most {MAX_TOKENS}; shorten the text, "
            "or use attnviz summary for any length"
        )
    numbers: Numbers = "int16" if compact else "float32"
    budget = round(budget_mb * 1e6)
    size = page_bytes(sizes, numbers)
    if size <= budget:
        return
    choices = []
    small = page_bytes(sizes, "int16")
    if not compact and small <= budget:
        choices.append(f"--compact ({small / 1e6:.1f} MB)")
    group = sizes.n_heads // sizes.n_kv_heads
    fits = _most(lambda n: page_bytes(replace(sizes, n_layers=n), numbers), sizes.n_layers, budget)
    if fits and sizes.n_layers > 1:
        choices.append(f"fewer layers (--layer, {fits} of {sizes.n_layers} fit)")
    fits = _most(
        lambda n: page_bytes(replace(sizes, n_heads=n, n_kv_heads=-(-n // group)), numbers),
        sizes.n_heads,
        budget,
    )
    if fits and sizes.n_heads > 1:
        choices.append(f"fewer heads (--head, {fits} of {sizes.n_heads} fit)")
    fits = _most(
        lambda n: page_bytes(replace(sizes, n_queries=n, n_keys=n), numbers), n_tokens, budget
    )
    if fits:
        choices.append(f"a shorter text ({fits} of {n_tokens} tokens fit)")
    choices.append(f"--budget {size / 1e6 + 0.5:.0f}")
    raise ResourceError(
        f"the page would take {size / 1e6:.1f} MB: at most {budget_mb:g} MB; choose "
        + ", ".join(choices[:-1])
        + f" or {choices[-1]}"
    )


def _most(size_of: Callable[[int], int], count: int, budget: int) -> int:
    """Return the largest n ≤ count whose page fits."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size_of(middle) <= budget else (low, middle - 1)
    return low


def quantize(values: Array) -> tuple[Array, Array]:
    """Round each row to 16 bits with a step of its own: row ≈ step · int16.

    Closer than float16 for q and k: the step follows the row's largest entry, so all 16 bits
    serve (worst error of an entry: half a step, 1/65,534 of the row's largest).

    Parameters
    ----------
    values : (…, E)

    Returns
    -------
    int16 (…, E), float32 steps (…)

    Examples
    --------
    >>> quantize(np.array([[1.0, -0.5]]))[0]
    array([[ 32767, -16384]], dtype=int16)
    """
    top = np.abs(values).max(axis=-1, initial=0.0)
    steps = np.where(top > 0, top / 32767.0, 1.0).astype(np.float32)
    whole = np.rint(values / steps[..., None])
    return np.clip(whole, -32767, 32767).astype("<i2"), steps


def as_stored(values: Array, numbers: Numbers) -> Array:
    """Return the numbers a page will compute with, as float64, or float32 where that is exact."""
    if numbers == "int16":
        whole, steps = quantize(values)
        return whole.astype(np.float64) * steps[..., None].astype(np.float64)
    return np.asarray(values, numbers)


def weight_error(stack: LayerStack, numbers: Numbers) -> float:
    """Compute the largest difference of any weight between the given numbers and the stored ones.

    0 exactly where nothing is rounded. Computed in float64, in float32 above 4 million cells
    (which adds at most 2·10⁻⁶).

    Notes
    -----
    Two softmaxes of every head: time grows with layers · heads · L².
    """
    if numbers == "float64" or all(
        numbers == "float32" and a.dtype == np.float32 for h in stack.layers for a in (h.q, h.k)
    ):
        return 0.0
    cells = sum(h.n_heads * h.n_queries * h.n_keys for h in stack.layers)
    kind = np.float64 if cells <= _FLOAT64_MAX_CELLS else np.float32
    worst = 0.0
    for layer in stack.layers:
        q_HLE, k_KSE = (np.asarray(as_stored(a, numbers), kind) for a in (layer.q, layer.k))
        seen = visible_rows(layer, 0, layer.n_queries)
        bias = layer.bias(0, layer.n_queries) if callable(layer.bias) else layer.bias
        for head, group in enumerate(stack.kv_index):
            sides = [
                _weights(layer, head, q_LE, k_SE, seen, bias)
                for q_LE, k_SE in (
                    (np.asarray(layer.q[head], kind), np.asarray(layer.k[group], kind)),
                    (q_HLE[head], k_KSE[group]),
                )
            ]
            worst = max(worst, float(np.abs(sides[0] - sides[1]).max(initial=0.0)))
    return worst


def _weights(
    layer: LayerHeads, head: int, q_LE: Array, k_SE: Array, seen: Array, bias: Array | None
) -> Array:
    """Compute one head's weights in the precision of q: (L, S)."""
    scores = q_LE @ k_SE.T
    scores *= q_LE.dtype.type(layer.scale)
    if bias is not None:
        scores += np.asarray(bias, q_LE.dtype)[min(head, len(bias) - 1)]
    scores = cap(scores, layer.softcap)
    sinks = None if layer.sinks is None else np.asarray(layer.sinks[head : head + 1], q_LE.dtype)
    if not layer.visible.hides_nothing:
        scores = hide(scores, seen[min(head, len(seen) - 1)])
    return softmax(scores[None], sinks)[0][0]
