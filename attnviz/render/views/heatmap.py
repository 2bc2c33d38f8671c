"""One stage as colours: token × token (or token × dimension), one panel per layer and head.

What lives here: which matrices share a picture and its scale. What does not: drawing (``formats``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attnviz.core.measures.flow import kept_share, sinks_of, without_sinks
from attnviz.errors import UsageError
from attnviz.records import Array, Tokens, Trace
from attnviz.registry import no_such_choice
from attnviz.render.overview import choice
from attnviz.render.pooling import symmetric_limits
from attnviz.render.shapes import Document, Heatmap, Label, Matrix
from attnviz.render.titles import title_of
from attnviz.render.views.walk import headline

STAGES = ("scores", "scaled", "bias", "capped", "masked", "weights", "output", "q", "k", "v")
DARK = 0.25
"""Below this share of the scale the largest number is named: the picture shows little of it."""
_VECTORS = ("q", "k", "v", "output")
_VALUE_NAMES = {"weights": "weight", "scores": "score", "scaled": "scaled score",
                "capped": "capped score", "masked": "score", "bias": "bias"}  # fmt: skip


def view(trace: Trace, *, stage: str = "weights", most: float | None = None) -> Document:
    """Show one stage of every layer and head of a trace on a shared scale.

    Parameters
    ----------
    trace
        A dense trace.
    stage
        One of ``STAGES``. Weights run from 0 to 1, everything else is centred on 0.
    most
        End of the colour scale, above 0, in place of 1 or of the largest magnitude.

    Raises
    ------
    UsageError
        A stage that does not exist, or that this source (or a mean of heads) does not have.
    """
    panels = stage_panels(trace, stage)
    is_weights = stage == "weights"
    largest = symmetric_limits(panels)[1]
    end = most or (1.0 if is_weights else largest)
    shape = Heatmap(
        title_of(trace, stage),
        panels,
        (0.0 if is_weights else -end, end),
        value_name=_VALUE_NAMES.get(stage, stage),
        scale="weights" if is_weights else "diverging",
        notes=tuple(_scale_notes(largest, end, is_chosen=most is not None)),
        n_columns=len(trace.heads) if len(trace.layers) > 1 else 0,
    )
    return Document(
        (headline(trace), *choice(trace), shape), trace, title="heatmap", stages=(stage,)
    )


def without_sinks_view(document: Document) -> Document:
    """Add the same weights without the first token and special tokens, rescaled, below the raw ones."""
    trace, raw = document.record, document.shapes[-1]
    assert isinstance(raw, Heatmap)
    special = sinks_of(trace.keys)
    kept = np.mean([kept_share(np.asarray(panel.values), special) for panel in raw.panels])
    panels = tuple(
        replace(
            panel,
            values=without_sinks(np.asarray(panel.values), special),
            hidden=np.broadcast_to(special, np.shape(panel.values))
            | (False if panel.hidden is None else panel.hidden),
        )
        for panel in raw.panels
    )
    note = (
        "without the first token and special tokens; the rest of each row, "
        f"{100 * kept:.0f} % of its weight on average, is scaled to sum to 1"
    )
    rest = replace(
        raw,
        title=f"{raw.title} · no sinks, {100 * kept:.0f} % of weight",
        panels=panels,
        notes=(note,),
    )
    return replace(document, shapes=(*document.shapes, rest))


def _scale_notes(largest: float, end: float, *, is_chosen: bool) -> Iterator[str]:
    if largest > end:
        yield f"the scale ends at {end:g}; what is beyond has its last colour: up to {largest:.3g}"
    elif largest < DARK * end and not is_chosen:
        yield f"the largest is {largest:.3g}: --max {_round_up(largest):g} spreads the colours"


def _round_up(number: float) -> float:
    """Return the next number of one digit: 0.0213 → 0.03."""
    if number <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(number))
    return float(f"{math.ceil(number / power) * power:.1g}")


def stage_panels(trace: Trace, stage: str) -> tuple[Matrix, ...]:
    """Return a stage as one matrix per layer and head, titled ``L5.H3``."""
    if stage not in STAGES:
        raise UsageError(no_such_choice("stage", stage, STAGES))
    if stage not in trace.stages:
        have = ", ".join(name for name in STAGES if name in trace.stages)
        raise UsageError(f"there is no stage '{stage}' here: this result has {have}")
    owner = trace.keys if stage in ("k", "v") else trace.tokens
    columns = () if stage in _VECTORS else plain_labels(trace.keys)
    return tuple(
        Matrix(
            f"L{layer}.H{head}",
            np.asarray(trace.stages[stage][i, j]),
            plain_labels(owner),
            columns,
            hidden=_hidden(trace, i, j, stage),
            scale="weights" if stage == "weights" else "diverging",
            row_axis="token" if stage in _VECTORS else "query",
            column_axis="dimension" if stage in _VECTORS else "key",
        )
        for i, layer in enumerate(trace.layers)
        for j, head in enumerate(trace.heads)
    )


def plain_labels(tokens: Tokens) -> tuple[Label, ...]:
    """Return tokens as they are called, without their numbers."""
    return tuple(Label(label) for label in tokens.labels)


def _hidden(trace: Trace, i: int, j: int, stage: str) -> Array | None:
    if stage not in ("masked", "weights"):
        return None
    hidden = ~np.asarray(trace.visible[i, j], bool)
    return hidden if bool(hidden.any()) else None
