"""A streamed text as plain data: JSON values (``attnviz.summary/1``) and named arrays.

What lives here: ``Summary`` → mapping, → arrays with provenance. What does not: dense traces and
views' own numbers (``export``), or the syntax of a format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnviz.core.stream.summary import LayerSummary, Summary, distance_profile, strongest_links
from attnviz.records import Tokens

SUMMARY_SCHEMA = "attnviz.summary/1"
N_LINKS = 100
"""Links listed per head."""


def summary_to_dict(
    summary: Summary, figures: Iterator[dict[str, Any]], source: dict[str, Any]
) -> dict[str, Any]:
    """Return figures, links and maps as JSON values.

    The text itself is left out (it may be of any length): its hash and its sizes say which it
    was. ``figures`` holds one record per head.
    """
    tokens = summary.tokens
    return {
        "schema": SUMMARY_SCHEMA,
        "text_sha256": _hash(tokens),
        "n_characters": len(tokens.text),
        "n_tokens": len(tokens),
        "source": source,
        "device": summary.run.device,
        "dtype": summary.run.dtype,
        "version": summary.run.version,
        "overrides": dict(summary.run.overrides),
        "heads": [
            {**next(figures), **_details(summary, part, place)}
            for part in summary.by_layer
            for place in range(len(part.heads))
        ],
        "checks": {name: float(value) for name, value in summary.checks.items()},
        "notices": list(summary.notices),
    }


def _details(summary: Summary, part: LayerSummary, place: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if part.link_keys_HLN is not None:
        found["links"] = [
            {
                "query": query,
                "query_label": summary.tokens.labels[query],
                "key": key,
                "key_label": summary.keys.labels[key],
                "weight": weight,
            }
            for query, key, weight in strongest_links(part, part.heads[place], N_LINKS)
        ]
    if part.distance_HD is not None:
        edges, shares_HB = distance_profile(part)
        found["distance_from"] = edges.tolist()
        found["distance_share"] = shares_HB[place].tolist()
    for name, maps in (("map_mean", part.map_mean_HRR), ("map_max", part.map_max_HRR)):
        if maps is not None:
            found[name] = maps[place].tolist()
    return found


def summary_arrays(summary: Summary) -> dict[str, Any]:
    """Return every figure by name, (layers, heads, …), and the tokens' ids and places."""
    tokens = summary.tokens
    spans = [(-1, -1) if span is None else span for span in tokens.spans]
    return {
        **summary.to_numpy(),
        "layers": np.array(summary.layers),
        "heads": np.array(summary.heads),
        "token_ids": np.array(tokens.ids, np.int64),
        "token_spans": np.array(spans, np.int64).reshape(-1, 2),
    }


def _hash(tokens: Tokens) -> str:
    return hashlib.sha256(tokens.text.encode("utf-8", "surrogatepass")).hexdigest()
