"""A trace without its attention sinks: the first token and special ones left out, rows rescaled.

What a head does beside its sink is hidden where the sink takes most of the weight. Rows sum to 1
again, so how much weight remained is said along with them.

Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnviz.core.measures.flow import kept_share, sinks_of, without_sinks
from attnviz.errors import UsageError
from attnviz.records import Trace

RULE = "the first token and special tokens left out, rows rescaled to sum to 1"


def drop_sinks(trace: Trace) -> Trace:
    """Return a trace of rescaled weights only; ``run.overrides`` says how much weight remained.

    Raises
    ------
    UsageError
        No weights in it, or no other token.

    Examples
    --------
    >>> from attnviz.runs.explain import explain
    >>> found = drop_sinks(explain("A cute teddy bear"))
    >>> float(found.stages["weights"][0, 0, :, 0].max()), found.run.overrides["kept_weight"] < 1
    (0.0, True)
    """
    if "weights" not in trace.stages:
        raise UsageError("--no-sinks is for weights, which this result does not have")
    is_sink = sinks_of(trace.keys)
    if is_sink.all():
        raise UsageError("--no-sinks leaves no token of this text: give a longer one")
    weights = np.asarray(trace.stages["weights"])
    kept = float(kept_share(weights, is_sink).mean())
    overrides = {**trace.run.overrides, "no_sinks": RULE, "kept_weight": kept}
    return replace(
        trace,
        about=replace(trace.about, run=replace(trace.run, overrides=overrides)),
        stages={"weights": without_sinks(weights, is_sink)},
        visible=np.asarray(trace.visible, bool) & ~is_sink,
        x=None,
        inputs={},
        ranking=(),
        asked=None,
        value_norms=None,
    )
