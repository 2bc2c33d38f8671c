"""The steps of a model between x and q, k: projected, normed, turned; and how q, k came about.

What lives here: the words and matrices for a trace's ``inputs``. What does not: finding the steps
(``sources.models.steps``, which proves them).
"""

from __future__ import annotations

import numpy as np

from attnviz.records import Array, Trace

STEPS = {
    "q_projected": "q_projected, x·W_Q",
    "q_normed": "q_normed, after the norm",
    "k_projected": "k_projected, x·W_K",
    "k_normed": "k_normed, after the norm",
}
"""Every step by name, with its title."""

_SAME = 1e-4


def step_formula(trace: Trace, name: str) -> str:
    """Return what a step is, with this trace's shapes."""
    letter = name[0]
    n_rows, width = np.asarray(trace.inputs[name]).shape[-2:]
    if name.endswith("_projected"):
        return f"{name} = {_product(trace, letter, n_rows, width)}"
    return f"{name} = the model's own norm of {letter}_projected, token by token"


def vector_formula(trace: Trace, i: int, j: int, name: str) -> str:
    """Return how q, k or v came about: x·W, or the last step before it and what was done to that.

    Parameters
    ----------
    i, j
        Places of the layer and the head in the trace.
    name
        ``q``, ``k`` or ``v``.
    """
    values = np.asarray(trace.stages[name][i, j])
    n_rows, width = values.shape
    for step in (f"{name}_normed", f"{name}_projected"):
        if step in trace.inputs:
            return f"{name} = {step}{_change(np.asarray(trace.inputs[step][i, j]), values)}"
    if trace.source.is_model and trace.x is None:
        return f"{name}, as the model hands it to its attention: {n_rows} × {width}"
    return f"{name} = {_product(trace, name, n_rows, width)}"


def _product(trace: Trace, letter: str, n_rows: int, width: int) -> str:
    if trace.source.is_model and trace.x is None:
        return f"as the model's own projection gives it: {n_rows} × {width}"
    d_model = trace.source.d_model
    sizes = f"({n_rows} × {d_model})·({d_model} × {width}) = {n_rows} × {width}"
    if trace.key_tokens is not None and letter != "q":
        return f"y·W_{letter.upper()}, y what the encoder gives: {sizes}"
    return f"x·W_{letter.upper()}: {sizes}"


def _change(before: Array, after: Array) -> str:
    """Say what turns one into the other, from the numbers: a factor, a rotation, or neither."""
    if before.shape != after.shape:
        return ", changed by the model's own next step"
    size = float(np.abs(after).max(initial=0.0)) or 1.0
    factor = float((before * after).sum() / ((before * before).sum() or 1.0))
    if np.abs(before * factor - after).max(initial=0.0) <= _SAME * size:
        return f" · {factor:.6g}"
    lengths = [np.sqrt((part * part).sum(axis=-1)) for part in (before, after)]
    ratio = float(lengths[1].sum() / (lengths[0].sum() or 1.0))
    if np.abs(lengths[0] * ratio - lengths[1]).max(initial=0.0) <= _SAME * lengths[1].max():
        kept = "lengths stay" if abs(ratio - 1) <= _SAME else f"lengths grow by {ratio:.6g}"
        return f", turned by rotary positions: {kept}"
    return ", changed by the model's own next step"
