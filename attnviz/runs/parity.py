"""Are the numbers the model's own? Parity with every answer, and the comparison on request.

What lives here: turning differences into checks and errors. What does not: running a model
untouched (``sources.models.verify``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnviz.errors import CheckFailed, UsageError
from attnviz.records import Array, LayerHeads
from attnviz.runs.opening import Opened


def parity_of(
    narrowed: Sequence[tuple[LayerHeads, Sequence[int]]], output: Array
) -> dict[str, float]:
    """Return the largest difference from what the model itself computed per head.

    Parameters
    ----------
    narrowed
        Layers with the places of the shown heads in them.
    output : (layers, heads, L, F)

    Returns
    -------
    dict
        ``parity``; empty where a layer's source does not say what it computed.
    """
    if any(layer.own_output is None for layer, _ in narrowed):
        return {}
    worst = 0.0
    for (layer, places), ours in zip(narrowed, output, strict=True):
        own: Any = layer.own_output
        if not isinstance(own, np.ndarray):
            own = own.detach().to("cpu").double().numpy()
        worst = max(worst, float(np.abs(own[list(places)] - ours).max(initial=0.0)))
    return {"parity": worst}


def verify_model(opened: Opened) -> dict[str, float]:
    """Run the model untouched and compare all its weights and its final states.

    Returns
    -------
    dict
        ``verified_weights`` (absent where the model reports none of its own), ``verified_states``
        and the ``tolerance`` of both.

    Raises
    ------
    CheckFailed
        More than the tolerance.
    UsageError
        Not a trained model.
    """
    if opened.model is None:
        raise UsageError("--verify compares with a model run untouched: give one with --model")
    from attnviz.sources.models.verify import verify

    found = verify(opened.model, opened.tokens, opened.computing.trace_heads)
    if not found.holds:
        listed = sorted(found.weights.items(), key=lambda pair: -pair[1])
        worst = [f"weights of layer {listed[0][0]} by {listed[0][1]:.1e}"] if listed else []
        parts = " and ".join([*worst, f"final states by {found.hidden:.1e}"])
        raise CheckFailed(
            f"{opened.source.info.name} differs from the model run untouched: {parts}; "
            f"at most {found.tolerance:.0e} is allowed"
        )
    checks = {"verified_states": found.hidden, "tolerance": found.tolerance}
    if found.weights:
        checks["verified_weights"] = max(found.weights.values())
    return checks
