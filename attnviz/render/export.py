"""Results as plain data, for every format a program reads: JSON values, records, arrays.

A ``Trace`` or a streamed ``Summary`` becomes a mapping (its schema), one record per pair or per
vector entry, or named arrays with provenance. The syntax of a format is the format's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np

from attnviz.core.measures.compare import Comparison
from attnviz.core.measures.flow import RolloutRows
from attnviz.core.measures.patterns import HeadReport
from attnviz.core.stream.summary import (
    LayerSummary,
    Rectangle,
    Summary,
    distance_profile,
    strongest_links,
)
from attnviz.errors import UsageError
from attnviz.records import STAGES, Tokens, Trace
from attnviz.render.shapes import Document, Label, Table

TRACE_SCHEMA = "attnviz.trace/1"
VIEW_SCHEMA = "attnviz.view/1"
HEADS_SCHEMA = "attnviz.heads/1"
COMPARE_SCHEMA = "attnviz.compare/1"
SUMMARY_SCHEMA = "attnviz.summary/1"
N_LINKS = 100
"""Links listed per head of a summary."""

Sourced: TypeAlias = Trace | RolloutRows | HeadReport | Summary | Rectangle | Comparison
"""Results that say where they come from."""

_SOURCE = ("kind", "name", "sha256", "origin", "seed", "tokenizer", "tokenizer_sha256",
           "n_layers", "n_heads", "n_kv_heads", "d_model", "d_k", "d_v")  # fmt: skip
_PAIRS = ("scores", "scaled", "bias", "capped", "masked", "weights")


def trace_to_dict(trace: Trace, stages: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a trace as JSON values: numbers at full precision, null where a score is hidden."""
    wanted = [name for name in STAGES if name in trace.stages and (not stages or name in stages)]
    data: dict[str, Any] = {
        "schema": TRACE_SCHEMA,
        "text": trace.tokens.text,
        "source": source_to_dict(trace),
        "device": trace.run.device,
        "dtype": trace.run.dtype,
        "core": trace.run.core,
        "version": trace.run.version,
        "overrides": dict(trace.run.overrides),
        "scale": list(trace.scale),
        "softcap": list(trace.softcap),
        "tokens": tokens_to_list(trace.tokens),
        "key_tokens": None if trace.key_tokens is None else tokens_to_list(trace.key_tokens),
        "layers": list(trace.layers),
        "heads": list(trace.heads),
        "x": None if trace.x is None or (stages and "x" not in stages) else _values(trace.x),
        "visible": np.asarray(trace.visible).tolist(),
        "stages": {name: _values(trace.stages[name]) for name in wanted},
        "sink_share": None if trace.sink_share is None else _values(trace.sink_share),
        "rows_without_keys": [list(place) for place in trace.rows_without_keys],
        "checks": {name: float(value) for name, value in trace.checks.items()},
        "notices": list(trace.notices),
    }
    inputs = [name for name in trace.inputs if not stages or name in stages]
    if inputs:
        data["inputs"] = {name: _values(trace.inputs[name]) for name in inputs}
    if trace.ranking or trace.asked is not None:
        data["asked"] = trace.asked
    if trace.ranking:
        data["ranking"] = [asdict(choice) for choice in trace.ranking]
    return data


def provenance(document: Document) -> dict[str, Any]:
    """Return where a document's numbers come from, small enough for a file's metadata.

    Version, source by name and hash, tokenizer, seed, device and precision, what is shown and
    what was overridden; no text, user name, host name or path.
    """
    from attnviz import __version__

    facts: dict[str, Any] = {"version": __version__, "view": document.title}
    trace = document.record
    if not isinstance(trace, Sourced):
        return facts
    source = source_to_dict(trace)
    kept = ("kind", "name", "sha256", "origin", "seed", "tokenizer", "tokenizer_sha256")
    return {
        **facts,
        "source": {key: source[key] for key in kept if source[key] not in (None, "")},
        "device": trace.run.device,
        "dtype": trace.run.dtype,
        "layers": list(trace.layers),
        "heads": list(trace.heads),
        "stages": list(document.stages),
        "overrides": json_ready(dict(trace.run.overrides)),
    }


def view_to_dict(document: Document) -> dict[str, Any]:
    """Return a view's own numbers as JSON values, with where they come from."""
    trace = document.record
    if isinstance(trace, Summary):
        return dict(json_ready(summary_to_dict(trace, _rows_of(document), source_to_dict(trace))))
    facts = provenance(document)
    schema = VIEW_SCHEMA
    if isinstance(trace, HeadReport):
        schema = HEADS_SCHEMA
        facts["n_texts"], facts["n_tokens"] = trace.n_texts, trace.n_tokens
        facts["checks"] = json_ready(dict(trace.checks))
    if isinstance(trace, Comparison):
        schema = COMPARE_SCHEMA
        facts["largest_bits"] = trace.largest_bits
        facts["sides"] = [_side(name, t) for name, t in zip(trace.names, (trace.a, trace.b))]
    if isinstance(trace, Trace | RolloutRows):
        facts["text"] = trace.tokens.text
        facts["tokens"] = tokens_to_list(trace.tokens)
        facts["checks"] = json_ready(dict(getattr(trace, "checks", {})))
    facts["notices"] = list(getattr(trace, "notices", ()))
    return {"schema": schema, **facts, "records": json_ready(list(_rows_of(document)))}


def _side(name: str, trace: Trace) -> dict[str, Any]:
    return {
        "name": name,
        "text": trace.tokens.text,
        "tokens": tokens_to_list(trace.tokens),
        "source": source_to_dict(trace),
        "layers": list(trace.layers),
        "heads": list(trace.heads),
        "checks": json_ready(dict(trace.checks)),
    }


def source_to_dict(trace: Sourced) -> dict[str, Any]:
    """Return where the numbers came from: names, hashes and sizes, never a path."""
    return {name: getattr(trace.source, name) for name in _SOURCE}


def tokens_to_list(tokens: Tokens) -> list[dict[str, Any]]:
    """Return tokens as JSON values."""
    return [
        {
            "index": i,
            "id": tokens.ids[i],
            "label": tokens.labels[i],
            "piece": tokens.pieces[i],
            "start": None if span is None else span[0],
            "end": None if span is None else span[1],
            "special": tokens.special[i],
        }
        for i, span in enumerate(tokens.spans)
    ]


def records(document: Document) -> Iterator[dict[str, Any]]:
    """Yield one flat record per (layer, head, query, key), or per entry of a vector stage.

    A document that shows only vector stages (``--stage q``) gives one record per (layer, head,
    token, dimension), a view its own numbers, a result that is no trace the rows of its tables.
    The last columns of a trace's records say where it comes from.
    """
    origin = _origin_columns(document.record)
    for record in _bare_records(document):
        yield {**record, **origin}


def _bare_records(document: Document) -> Iterator[dict[str, Any]]:
    trace = document.record
    if document.data is not None:
        yield from _rows_of(document)
        return
    if not isinstance(trace, Trace):
        for table in (s for s in document.shapes if isinstance(s, Table)):
            names = [str(column.name) or "share" for column in table.columns]
            for row in table.rows:
                yield {"table": table.title, **dict(zip(names, row, strict=True))}
        return
    shown = document.stages
    pairs = [name for name in _PAIRS if name in trace.stages and (not shown or name in shown)]
    if pairs:
        yield from _pair_records(trace, pairs)
        return
    for name in shown:
        if name in trace.stages or name in trace.inputs:
            yield from _vector_records(trace, name)


def _rows_of(document: Document) -> Iterator[dict[str, Any]]:
    assert document.data is not None
    names = [str(column.name) for column in document.data.columns]
    for row in document.data.rows:
        yield dict(zip(names, row, strict=True))


def _origin_columns(record: Any) -> dict[str, Any]:
    if not isinstance(record, Sourced):
        return {}
    source, run = record.source, record.run
    return {
        "source": Label(source.name),
        "source_sha256": source.sha256,
        "tokenizer_sha256": source.tokenizer_sha256 or None,
        "seed": source.seed,
        "device": run.device,
        "dtype": run.dtype,
        "version": run.version,
    }


def arrays(document: Document) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arrays of a trace by stage name, and its provenance as strings."""
    trace = document.record
    about = json.dumps(json_ready(provenance(document)), ensure_ascii=True, sort_keys=True)
    if isinstance(trace, Summary):
        return summary_arrays(trace), {"attnviz": about}
    if document.data is not None:
        return _columns_of(document.data), {"attnviz": about}
    if not isinstance(trace, Trace):
        raise UsageError("this result has no arrays: choose .json, .csv or .md")
    shown = document.stages
    found = {
        name: np.ascontiguousarray(values, dtype=np.float64)
        for name, values in trace.stages.items()
        if name in STAGES and (not shown or name in shown)
    }
    if trace.x is not None and (not shown or "x" in shown):
        found["x"] = np.ascontiguousarray(trace.x, dtype=np.float64)
    for name, values in trace.inputs.items():
        if not shown or name in shown:
            found[name] = np.ascontiguousarray(values, dtype=np.float64)
    found["visible"] = np.ascontiguousarray(trace.visible)
    facts = trace_to_dict(trace, stages=("none",))
    for bulky in ("visible", "x", "stages", "sink_share", "ranking"):
        facts.pop(bulky, None)
    return found, {"attnviz": json.dumps(facts, ensure_ascii=True, sort_keys=True)}


def _columns_of(table: Table) -> dict[str, Any]:
    """Return the columns of numbers of a view's own data; NaN where there is none."""
    columns = zip(table.columns, zip(*table.rows, strict=True), strict=False)
    return {
        str(column.name): np.asarray([np.nan if v is None else v for v in values])
        for column, values in columns
        if column.kind not in ("text", "label")
    }


def _pair_records(trace: Trace, pairs: list[str]) -> Iterator[dict[str, Any]]:
    for i, layer in enumerate(trace.layers):
        for j, head in enumerate(trace.heads):
            for query in range(len(trace.tokens)):
                for key in range(len(trace.keys)):
                    record: dict[str, Any] = {
                        "layer": layer,
                        "head": head,
                        "query": query,
                        "query_label": Label(trace.tokens.labels[query]),
                        "key": key,
                        "key_label": Label(trace.keys.labels[key]),
                        "visible": bool(trace.visible[i, j, query, key]),
                    }
                    for name in pairs:
                        record[name] = _number(trace.stages[name][i, j, query, key])
                    yield record


def _vector_records(trace: Trace, name: str) -> Iterator[dict[str, Any]]:
    owner = trace.tokens if name.startswith("q") or name == "output" else trace.keys
    values = trace.stages[name] if name in trace.stages else trace.inputs[name]
    for i, layer in enumerate(trace.layers):
        for j, head in enumerate(trace.heads):
            for row in range(values.shape[2]):
                for column in range(values.shape[3]):
                    yield {
                        "layer": layer,
                        "head": head,
                        "stage": name,
                        "token": row,
                        "label": Label(owner.labels[row]),
                        "dimension": column,
                        "value": _number(values[i, j, row, column]),
                    }


def _number(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None


def _values(values: Any) -> Any:
    """Nested lists with None for what is not finite: JSON has no NaN and no infinity."""
    numbers = np.asarray(values, dtype=np.float64)
    if np.isfinite(numbers).all():
        return numbers.tolist()
    whole = numbers.astype(object)
    whole[~np.isfinite(numbers)] = None
    return whole.tolist()


def json_ready(value: Any) -> Any:
    """Return a record that is no trace as JSON values (numpy scalars and arrays included)."""
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    if isinstance(value, np.ndarray):
        return _values(value) if value.dtype.kind == "f" else value.tolist()
    if isinstance(value, np.floating | float):
        return _number(value)
    if isinstance(value, np.integer):
        return int(value)
    return value


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
        "text_sha256": hashlib.sha256(tokens.text.encode("utf-8", "surrogatepass")).hexdigest(),
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
