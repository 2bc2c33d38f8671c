"""``--verify`` of the light engine: this very text through the library's model, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attnviz.errors import UsageError
from attnviz.records import Array, LayerHeads, Tokens
from attnviz.sources import Verification
from attnviz.sources.families.proof import TOLERANCE
from attnviz.sources.families.source import LightSource
from attnviz.sources.families.twin import library_twin
from attnviz.sources.models.library import require
from attnviz.sources.models.verify import MAX_TOKENS


def verify_light(
    source: LightSource,
    tokens: Tokens,
    trace_heads: Callable[[LayerHeads], Mapping[str, Array]],
) -> Verification:
    """Compare all weights and the final states with the library's own eager attention.

    Parameters
    ----------
    trace_heads
        Of the core at work: a layer → its stages, ``weights`` (H, L, S) among them.

    Raises
    ------
    UsageError
        A text too long to hold the model's own weights, or no library to compare with.

    Notes
    -----
    Holds layers · heads · L² numbers, and the model in the library.
    """
    require("transformers", "torch")
    if len(tokens) > MAX_TOKENS:
        raise UsageError(
            f"--verify holds every weight of every layer: at most {MAX_TOKENS} tokens, not "
            f"{len(tokens)}"
        )
    engine = source.engine
    twin = library_twin(engine, source.files, source.config, n_layers=engine.family.n_layers)
    theirs, states = twin(tokens.ids)
    found: dict[int, float] = {}

    def consume(_: Sequence[int], heads: LayerHeads) -> None:
        ours = np.asarray(trace_heads(heads)["weights"], np.float64)
        found[heads.layer] = float(np.abs(ours - theirs[heads.layer]).max())

    ours = engine.states(tokens.ids, source.layers, consume)
    away = float(np.abs(ours - states).max() / max(1.0, float(np.abs(states).max())))
    return Verification(found, away, TOLERANCE)
