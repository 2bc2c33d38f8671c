"""The tables a batch writes, as bytes: Parquet where pyarrow is there, else JSON lines.

What lives here: the columns with their meaning, and figures → bytes that depend on the numbers
alone. What does not: where the bytes go (``shards``), computing (``work``).
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from attnviz.core.measures.figures import Figures
from attnviz.errors import UsageError
from attnviz.registry import no_such_choice

FORMATS = ("parquet", "jsonl")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its type as Arrow names it, and what it means, with the unit."""

    name: str
    type: str
    meaning: str


HEADS = (
    Column("text_id", "int64", "place of the text over all inputs, from 0; bad lines count too"),
    Column("input", "string", "name of the file; `-` is standard input"),
    Column("line", "int64", "line of that file, from 1, as `grep -n ''` shows it"),
    Column("n_tokens", "int32", "tokens of the text, special ones included"),
    Column("layer", "int32", "layer, from 0"),
    Column("head", "int32", "query head, from 0"),
    Column("entropy", "float32", "mean Shannon entropy of the rows, in bits"),
    Column(
        "distance",
        "float32",
        "mean distance between key and query, weighted by attention, in tokens",
    ),
    Column("first_share", "float32", "mean weight on the first token"),
    Column("self_share", "float32", "mean weight of a token on itself"),
    Column("previous_share", "float32", "mean weight on the token before; null for one token"),
    Column("next_share", "float32", "mean weight on the token after; null for one token"),
    Column(
        "special_share",
        "float32",
        "mean weight on all special tokens ([CLS], [SEP], BOS, …) together",
    ),
    Column("sink_share", "float32", "mean weight that went to a learned sink; 0 where none"),
    Column("top_key", "int32", "token that receives most attention"),
    Column("top_share", "float32", "its share of all attention of this head"),
    Column("query", "int32", "strongest pair: the token that looks"),
    Column("key", "int32", "strongest pair: the token looked at"),
    Column("weight", "float32", "strongest pair: the weight"),
    Column("query_token", "string", "label of that query"),
    Column("key_token", "string", "label of that key"),
    Column("link_queries", "list<int32>", "strongest links by falling weight: the queries"),
    Column("link_keys", "list<int32>", "strongest links: the keys"),
    Column("link_weights", "list<float32>", "strongest links: the weights"),
)
"""One row per text, layer and head; tokens are counted from 0."""

TEXTS = (
    Column("text_id", "int64", "as in heads"),
    Column("input", "string", "as in heads"),
    Column("line", "int64", "as in heads"),
    Column("n_tokens", "int32", "as in heads"),
    Column("text", "string", "the text; half surrogates are replaced by U+FFFD"),
    Column("tokens", "list<string>", "label of every token; query and key count in it from 0"),
    Column("notices", "list<string>", "what the text lost on the way to its tokens"),
)
"""One row per text."""

_FIGURES = {
    "entropy": "entropy_H",
    "distance": "distance_H",
    "first_share": "first_H",
    "self_share": "self_H",
    "previous_share": "previous_H",
    "next_share": "next_H",
    "special_share": "special_H",
    "sink_share": "sink_H",
    "top_key": "received_key_H",
    "top_share": "received_H",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """One text, measured: a ``Figures`` of all heads per layer."""

    text_id: int
    input: str
    line: int
    text: str
    tokens: tuple[str, ...]
    key_tokens: tuple[str, ...]
    notices: tuple[str, ...]
    layers: tuple[Figures, ...]


def choose_format(name: str | None = None) -> str:
    """Return the asked-for table format; Parquet where pyarrow is installed, if none is.

    Raises
    ------
    UsageError
        Unknown, or Parquet without pyarrow.
    """
    has_pyarrow = find_spec("pyarrow") is not None
    if name is None:
        return "parquet" if has_pyarrow else "jsonl"
    if name not in FORMATS:
        raise UsageError(no_such_choice("--format", name, FORMATS))
    if name == "parquet" and not has_pyarrow:
        raise UsageError("--format parquet needs pyarrow: pip install 'attnviz[parquet]'")
    return name


def heads_columns(
    texts: Sequence[Measured], layers: Sequence[int], heads: Sequence[int]
) -> dict[str, Any]:
    """Return the columns of ``HEADS`` in order: numpy arrays and lists, a row per text and head."""
    n_layers = len(layers)
    n_each = n_layers * len(heads)
    n_rows = len(texts) * n_each
    found: dict[str, Any] = {
        "text_id": np.repeat(np.array([t.text_id for t in texts], np.int64), n_each),
        "input": _repeat([t.input for t in texts], n_each),
        "line": np.repeat(np.array([t.line for t in texts], np.int64), n_each),
        "n_tokens": np.repeat(np.array([len(t.tokens) for t in texts], np.int32), n_each),
        "layer": np.tile(np.repeat(np.array(layers, np.int32), len(heads)), len(texts)),
        "head": np.tile(np.array(heads, np.int32), len(texts) * n_layers),
    }
    parts = [figures for text in texts for figures in text.layers]
    n_held = len(parts[0].entropy_H) if parts else 0
    picked: Any = slice(None) if list(heads) == list(range(n_held)) else list(heads)
    types = {column.name: column.type for column in HEADS}
    for name, field in _FIGURES.items():
        values = [getattr(figures, field)[picked] for figures in parts]
        found[name] = np.concatenate([np.empty(0), *values]).astype(types[name])
    n_links = parts[0].link_keys_HN.shape[1] if parts else 1
    links = {}
    for name, field, kind in (
        ("link_queries", "link_queries_HN", np.int32),
        ("link_keys", "link_keys_HN", np.int32),
        ("link_weights", "link_weights_HN", np.float32),
    ):
        values = [getattr(figures, field)[picked] for figures in parts]
        links[name] = np.concatenate([np.empty((0, n_links)), *values]).astype(kind)
    found["query"] = links["link_queries"][:, 0]
    found["key"] = links["link_keys"][:, 0]
    found["weight"] = links["link_weights"][:, 0]
    for name, place, side in (
        ("query_token", "query", "tokens"), ("key_token", "key", "key_tokens"),
    ):  # fmt: skip
        labels: list[str | None] = []
        places = found[place].tolist()
        for i, text in enumerate(texts):
            own = getattr(text, side)
            labels += [own[p] if p >= 0 else None for p in places[i * n_each : (i + 1) * n_each]]
        found[name] = labels
    is_link = links["link_keys"] >= 0
    found |= {name: _Lists(values[is_link], is_link.sum(-1)) for name, values in links.items()}
    assert all(len(values) == n_rows for values in found.values())
    return {column.name: found[column.name] for column in HEADS}


def texts_columns(texts: Sequence[Measured]) -> dict[str, Any]:
    """Return the columns of ``TEXTS`` in order."""
    return {
        "text_id": np.array([t.text_id for t in texts], np.int64),
        "input": [t.input for t in texts],
        "line": np.array([t.line for t in texts], np.int64),
        "n_tokens": np.array([len(t.tokens) for t in texts], np.int32),
        "text": [t.text for t in texts],
        "tokens": [list(t.tokens) for t in texts],
        "notices": [list(t.notices) for t in texts],
    }


def _repeat(values: Sequence[str], n_each: int) -> list[str]:
    return [value for value in values for _ in range(n_each)]


class _Lists:
    """Lists of numbers, flat with their lengths."""

    def __init__(self, values: Any, lengths: Any) -> None:
        self.values, self.ends = values, np.concatenate([[0], np.cumsum(lengths)])

    def __len__(self) -> int:
        return len(self.ends) - 1

    def tolist(self) -> list[list[Any]]:
        flat = _plain(self.values)
        return [flat[a:b] for a, b in zip(self.ends[:-1], self.ends[1:], strict=True)]


def write_table(
    columns: Mapping[str, Any], about: Sequence[Column], *, format: str, schema: str
) -> bytes:
    """Return a table's bytes: one record per row, NaN as null.

    Parameters
    ----------
    columns
        Values by name.
    about
        Types and meanings of the same columns.
    schema
        Name and version of the schema, kept in the file's metadata (Parquet only).
    """
    if format == "jsonl":
        lists = [_plain(columns[column.name]) for column in about]
        names = [column.name for column in about]
        lines = (
            json.dumps(dict(zip(names, record, strict=True)), ensure_ascii=False, allow_nan=False)
            for record in zip(*lists, strict=True)
        )
        return "".join(f"{line}\n" for line in lines).encode(errors="replace")
    import pyarrow as pa
    import pyarrow.parquet as parquet

    fields = [
        pa.field(column.name, _arrow_type(pa, column.type), metadata={"meaning": column.meaning})
        for column in about
    ]
    arrays = [
        _arrow_array(pa, columns[f.name], f.type) for f in fields
    ]  # fmt: skip
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields, {"attnviz": schema}))
    out = io.BytesIO()
    parquet.write_table(table, out, compression="zstd")
    return out.getvalue()


def _arrow_type(pa: Any, name: str) -> Any:
    if name.startswith("list<"):
        return pa.list_(_arrow_type(pa, name[5:-1]))
    return getattr(pa, name)()


def _arrow_array(pa: Any, values: Any, kind: Any) -> Any:
    if isinstance(values, _Lists):
        flat = pa.array(values.values, kind.value_type)
        return pa.ListArray.from_arrays(pa.array(values.ends, pa.int32()), flat, type=kind)
    if isinstance(values, np.ndarray):
        return pa.array(values, kind, from_pandas=True)
    return pa.array(values, kind)


def _plain(values: Any) -> list[Any]:
    """Return Python values: float32 by its shortest decimal, NaN as None."""
    if isinstance(values, np.ndarray) and values.dtype == np.float32:
        numbers = [float(text) for text in values.astype("U")]
        return [None if number != number else number for number in numbers]
    if isinstance(values, np.ndarray | _Lists):
        return list(values.tolist())
    return list(values)
