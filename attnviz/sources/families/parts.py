"""The steps between attentions, as a textbook writes them: linear maps, norms, activations, heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]

# erf(x) ≈ x · P(x²) / Q(x²) on [-4, 4], 2e-7 at most: Eigen, generic_fast_erf_float
_ERF_P = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_Q = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip
_BLOCK = 1 << 16


def linear(x_LD: Floats, weight_XD: Floats, bias_X: Floats | None = None) -> Floats:
    """Compute x·Wᵀ (+ b), W as ``torch.nn.Linear`` stores it: (out, in)."""
    y_LX: Floats = x_LD @ weight_XD.T
    if bias_X is not None:
        y_LX += bias_X
    return y_LX


def layer_norm(
    x: Floats, weight: Floats | None, bias: Floats | None = None, *, eps: float
) -> Floats:
    """Compute (x − mean) / √(variance + eps) · weight + bias along the last axis.

    Ba et al. 2016, "Layer Normalization", equation (4).
    """
    mean = np.full(x.shape[-1], 1 / x.shape[-1], np.float32)
    y: Floats = x - (x @ mean)[..., None]
    y *= (1 / np.sqrt(_square(y) + np.float32(eps)))[..., None]
    if weight is not None:
        y *= weight
    if bias is not None:
        y += bias
    return y


def _square(x: Floats) -> Floats:
    """Compute the mean of x² along the last axis; no array of squares is made."""
    total: Floats = np.einsum("...i,...i->...", x, x)
    return total / np.float32(x.shape[-1])


def rms_norm(x: Floats, weight: Floats, *, eps: float) -> Floats:
    """Compute x / √(mean x² + eps) · weight along the last axis.

    Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation (4).
    """
    y: Floats = x * (1 / np.sqrt(_square(x) + np.float32(eps)))[..., None]
    y *= weight
    return y


def to_heads(flat_LX: Floats, n_heads: int) -> Floats:
    """Cut (L, heads · width), head after head, into (heads, L, width); a view."""
    return flat_LX.reshape(len(flat_LX), n_heads, -1).transpose(1, 0, 2)


def erf(x: Floats) -> Floats:
    """Compute the error function in float32.

    Examples
    --------
    >>> bool(abs(erf(np.array([1.0], np.float32))[0] - math.erf(1.0)) < 2e-7)
    True
    """
    y: Floats = np.clip(x, -4, 4)
    square = y * y
    y *= _polynomial(square, _ERF_P)
    y /= _polynomial(square, _ERF_Q)
    return y


def _polynomial(x: Floats, terms: tuple[float, ...]) -> Floats:
    y: Floats = x * np.float32(terms[0])
    y += np.float32(terms[1])
    for term in terms[2:]:
        y *= x
        y += np.float32(term)
    return y


def gelu(x: Floats) -> Floats:
    """Compute x · Φ(x), Φ the normal distribution: Hendrycks and Gimpel 2016, "GELUs"."""
    y = erf(x * np.float32(math.sqrt(0.5)))
    y += 1
    y *= x
    y *= np.float32(0.5)
    return y


def gelu_tanh(x: Floats) -> Floats:
    """Compute GELU by its tanh approximation, as GPT-2 and Gemma do."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * (x * x * x))
    y: Floats = np.float32(0.5) * x * (1 + np.tanh(inner))
    return y


def quick_gelu(x: Floats) -> Floats:
    """Compute x · sigmoid(1.702 x)."""
    return x * _sigmoid(np.float32(1.702) * x)


def silu(x: Floats) -> Floats:
    """Compute x · sigmoid(x): Elfwing et al. 2017; "swish"."""
    return x * _sigmoid(x)


def relu(x: Floats) -> Floats:
    """Compute max(x, 0)."""
    return np.maximum(x, 0)


def _sigmoid(x: Floats) -> Floats:
    shrunk: Floats = np.exp(-np.maximum(x, np.float32(-88)))
    y: Floats = np.float32(1) / (np.float32(1) + shrunk)
    return y


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": silu,
    "swish": silu,
    "relu": relu,
}
"""By the library's names (``transformers.activations.ACT2FN``)."""


def activate(name: str, x: Floats) -> Floats:
    """Apply an activation in place, in pieces that stay in the cache."""
    function: Any = ACTIVATIONS[name]
    flat = x.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        flat[start : start + _BLOCK] = function(flat[start : start + _BLOCK])
    return x


def softmax(scores: Floats) -> Floats:
    """Compute the softmax along the last axis, in place; −∞ counts nothing."""
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return scores
