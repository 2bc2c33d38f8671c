"""Is it the model's own? Parity for every answer, and a comparison with the model left untouched.

The numbers compared come from the core that is at work; the file is read a second time, by another
reader than the one that loaded the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from attnviz.errors import UsageError
from attnviz.records import Array, LayerHeads, Tokens
from attnviz.rounding import worse
from attnviz.sources import Verification
from attnviz.sources.models.capture.interface import NAME, capture
from attnviz.sources.models.capture.lazy_bias import lazy_position_bias
from attnviz.sources.models.loading import load
from attnviz.sources.models.planning import (
    TOLERANCE,
    hidden_difference,
    reported_weights,
    switch,
)
from attnviz.sources.models.verify_file import file_difference

if TYPE_CHECKING:
    from attnviz.sources.models.source import TransformersSource

MAX_TOKENS = 2048
"""Eager attention holds layers × heads × L × L: longer texts are not verified."""


def verify(
    source: TransformersSource,
    tokens: Tokens,
    trace_heads: Callable[[LayerHeads], Mapping[str, Array]],
) -> Verification:
    """Load the model anew, run it untouched, and compare weights and final states.

    Parameters
    ----------
    source
        The opened model.
    tokens
        From its ``tokenize``.
    trace_heads
        Of the core at work: a layer → its stages, ``weights`` (H, L, S) among them.

    Raises
    ------
    UsageError
        A text too long to hold the model's own weights.

    Notes
    -----
    Holds layers · heads · L² numbers, and the model twice.
    """
    if len(tokens) > MAX_TOKENS:
        raise UsageError(
            f"--verify holds every weight of every layer: at most {MAX_TOKENS} tokens, not "
            f"{len(tokens)}"
        )
    loaded = source.loaded
    fresh = load(source.folder_files, device=loaded.device, dtype=loaded.dtype)
    ids: list[tuple[int, ...]] = [tokens.ids]
    decoder = [source.queries(tokens).ids] if loaded.is_encoder_decoder else None
    if decoder is not None and source.which == "encoder":
        decoder = [tokens.ids[:1]]
    with torch.inference_mode():
        eager = fresh.forward(ids, decoder_ids=decoder, output_attentions=True)
        theirs = reported_weights(eager).get(source.which, [])
        switch(fresh.model, "sdpa")
        untouched = fresh.forward(ids, decoder_ids=decoder)
        ours = _final_states(source, ids, decoder)
    found: dict[int, float] = {}

    def compare(heads: LayerHeads) -> None:
        own = theirs[source.layers.index(heads.layer)][0].double().cpu()
        weights = torch.as_tensor(trace_heads(heads)["weights"]).double().cpu()
        if heads.sinks is not None and float((own.sum(-1) - 1).abs().max()) < 1e-3:
            weights = weights / weights.sum(-1, keepdim=True)  # reported without the sink's share
        found[heads.layer] = worse(found.get(heads.layer, 0.0), float((own - weights).abs().max()))

    if theirs:
        source.run(tokens, source.layers, compare)
    difference = hidden_difference(untouched, ours)
    return Verification(
        found,
        difference,
        TOLERANCE[loaded.dtype],
        file_difference(source.info.name, source.files, loaded),
    )


def _final_states(source: TransformersSource, ids: Any, decoder: Any) -> Any:
    loaded = source.loaded
    if source.plan.route == "tap":
        switch(loaded.model, "eager")
        return loaded.forward(ids, decoder_ids=decoder)
    switch(loaded.model, NAME)
    with lazy_position_bias(loaded.body), capture(lambda _: None):
        return loaded.forward(ids, decoder_ids=decoder)
