"""A page of attention that was given as weights alone: maps instead of q and k."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from attnviz.errors import ResourceError, UsageError
from attnviz.records import Array, LayerHeads, MaskRule, Trace
from attnviz.render.page.encode import (
    PAGE_SCHEMA,
    PageData,
    source_to_dict,
    to_base64,
    tokens_to_dict,
)  # fmt: skip
from attnviz.render.page.numbers import BUDGET_MB, MAX_TOKENS, SHELL_BYTES
from attnviz.render.page.rules import describe_mask

Kind: TypeAlias = Literal["float64", "float32", "uint16", "uint8"]
_BYTES: dict[Kind, int] = {"float64": 8, "float32": 4, "uint16": 2, "uint8": 1}


def encode_maps(trace: Trace, *, budget_mb: float = BUDGET_MB, compact: bool = False) -> PageData:
    """Encode the weights of a trace that has neither q nor k.

    Floats where they fit into the budget, else whole numbers n of 16 or 8 bits, a weight being
    (n / most)²: the square root spends the steps on small weights. The largest error is in the header.

    Raises
    ------
    ResourceError
        Too large even in 8 bits.
    UsageError
        Numbers that are no weights (negative, above 1, NaN) and are too many to be kept as floats.
    """
    weights = np.asarray(trace.stages["weights"])
    if max(weights.shape[2:]) > MAX_TOKENS:
        raise ResourceError(
            f"{max(weights.shape[2:])} tokens are too many for a page: at most {MAX_TOKENS}"
        )
    kind = _choose(weights, budget_mb, compact=compact)
    blocks: dict[str, str] = {}
    layers = []
    worst = 0.0
    for place, maps in enumerate(weights):
        stored = _store(maps, kind)
        worst = max(worst, float(np.nanmax(np.abs(_read(stored) - maps), initial=0.0)))
        blocks[f"given-{place}"] = to_base64(stored)
        mask = describe_mask(_dummy(trace, place))
        facts: dict[str, Any] = {
            "layer": trace.layers[place], "name": "", "scale": 1.0, "softcap": None, "sinks": None,
            "d_k": 0, "d_v": 0, "mask": mask.facts, "bias": None,
            "blocks": {"given": f"given-{place}"},
        }  # fmt: skip
        if mask.arrays:
            blocks[f"mask-{place}"] = to_base64(mask.arrays["mask"])
            facts["blocks"]["mask"] = f"mask-{place}"
        layers.append(facts)
    header = {
        "schema": PAGE_SCHEMA,
        "text": trace.tokens.text,
        "tokens": tokens_to_dict(trace.tokens),
        "key_tokens": None if trace.key_tokens is None else tokens_to_dict(trace.key_tokens),
        "heads": list(trace.heads),
        "kv_index": list(range(len(trace.heads))),
        "numbers": kind,
        "source_numbers": str(weights.dtype),
        "has_values": False,
        "holds": "weights",
        "weight_error": worst,
        "start": {"query": None},
        "source": source_to_dict(trace),
        "run": {
            "version": trace.run.version, "device": trace.run.device, "dtype": trace.run.dtype,
            "core": trace.run.core, "overrides": dict(trace.run.overrides),
        },
        "notices": list(trace.about.notices),
        "layers": layers,
    }  # fmt: skip
    return PageData(header, blocks)


def _choose(weights: Array, budget_mb: float, *, compact: bool) -> Kind:
    room = budget_mb * 1e6 - SHELL_BYTES
    own: Kind = "float64" if weights.dtype == np.float64 else "float32"
    is_plain = bool((weights >= 0).all() and (weights <= 1).all())
    kinds: tuple[Kind, ...] = (
        ("uint16", "uint8") if compact and is_plain else (own, "float32", "uint16", "uint8")
    )
    for kind in kinds:
        if weights.size * _BYTES[kind] * 4 / 3 <= room:
            if kind.startswith("uint") and not is_plain:
                raise UsageError(
                    "negative weights, NaN and weights above 1 are kept as floats, and these are "
                    f"{weights.size * 4 / 3 * 4 / 1e6:.0f} MB: choose fewer layers or heads"
                )
            return kind
    raise ResourceError(
        f"{weights.size / 1e6:.0f} million weights take {weights.size * 4 / 3 / 1e6:.0f} MB even in "
        f"8 bits: at most {budget_mb:g} MB; choose fewer layers, fewer heads or a shorter text"
    )


def _store(maps: Array, kind: Kind) -> Array:
    if kind.startswith("float"):
        return np.asarray(maps, kind)
    most = np.iinfo(kind).max
    return np.rint(np.sqrt(maps) * most).astype(kind)


def _read(stored: Array) -> Array:
    if stored.dtype.kind == "f":
        return stored
    share: Array = stored / np.float64(np.iinfo(stored.dtype).max)
    return share * share


def _dummy(trace: Trace, place: int) -> LayerHeads:
    """Return a layer that has nothing but its mask."""
    visible = np.asarray(trace.visible[place])
    n_heads, n_queries, n_keys = visible.shape
    return LayerHeads(
        q=np.zeros((n_heads, n_queries, 1), np.float32),
        k=np.zeros((n_heads, n_keys, 1), np.float32),
        v=np.zeros((n_heads, n_keys, 1), np.float32),
        scale=1.0,
        visible=MaskRule() if bool(visible.all()) else MaskRule(cells=visible),
        layer=trace.layers[place],
    )
