"""Are the numbers the model's own? Parity with every answer, and the comparison on request.

What lives here: turning differences into checks and errors. What does not: running a model
untouched (``sources.models.verify``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnviz.errors import CheckFailed
from attnviz.records import Array, LayerHeads
from attnviz.rounding import worse
from attnviz.runs.run import Run
from attnviz.sources import Source


def parity_of(
    source: Source, narrowed: Sequence[tuple[LayerHeads, Sequence[int]]], output: Array
) -> dict[str, float]:
    """Return the largest difference from what the model itself computed per head.

    Parameters
    ----------
    source
        What the layers come from; it says how far they may be off.
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
        own = own[list(places)]
        check_equal(source, layer.layer, own, ours)
        worst = worse(worst, float(np.abs(own - ours).max(initial=0.0)))
    return {"parity": worst}


def check_equal(source: Source, layer: int, own: Array, ours: Array) -> None:
    """Refuse an output that is not the model's own: wrong numbers are never shown.

    Parameters
    ----------
    own, ours : (heads, L, F)
        What the model computed, and what follows from its q, k and v here.

    Raises
    ------
    CheckFailed
        They differ by more than the source's tolerance, relative to the largest number above 1, or
        one of them is not finite.
    """
    tolerance = source.tolerance
    size = float(np.abs(own).max(initial=1.0))
    differs = float(np.abs(own - ours).max(initial=0.0)) / size
    if not differs <= tolerance:
        raise CheckFailed(
            f"layer {layer} of {source.info.name}: output not equal to the model's own; it differs by "
            f"{differs:.1e} of the largest number, at most {tolerance:.0e} is allowed"
        )


def verify_model(run: Run) -> dict[str, float]:
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
    found = run.source.verify(run.tokens, run.computing.trace_heads)
    if not found.holds:
        listed = sorted(found.weights.items(), key=lambda pair: -pair[1])
        worst = [f"weights of layer {listed[0][0]} by {listed[0][1]:.1e}"] if listed else []
        of_file = [f"parameters from the file's by {found.file:.1e}"] if found.file else []
        parts = " and ".join([*worst, f"final states by {found.hidden:.1e}", *of_file])
        raise CheckFailed(
            f"{run.source.info.name} differs from the model run untouched: {parts}; "
            f"at most {found.tolerance:.0e} is allowed"
        )
    checks = {
        "verified_states": found.hidden,
        "verified_file": found.file,
        "tolerance": found.tolerance,
    }
    if found.weights:
        checks["verified_weights"] = worse(*found.weights.values())
    return checks
