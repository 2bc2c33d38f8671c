"""Parquet (extra ``parquet``): the records of a trace as columns, provenance in the schema.

One row per (layer, head, query, key), or per (layer, head, token, dimension) of a vector stage,
or per row of a table. What does not live here: one row per head of a batch (``runs``).
"""

from __future__ import annotations

import io
import json
from typing import Any

from attnviz.errors import UsageError
from attnviz.render.export import json_ready, provenance, records
from attnviz.render.screen import Screen
from attnviz.render.shapes import Document

SUFFIXES = (".parquet",)
IS_BINARY = True


def render(document: Document, screen: Screen) -> bytes:
    """Write the records behind a document; read them with pandas, polars or DuckDB.

    Raises
    ------
    UsageError
        pyarrow is not installed, or tables of different columns.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UsageError(
            "Parquet needs pyarrow: pip install 'attnviz[parquet]', or choose .csv or .npz"
        ) from None
    columns: dict[str, list[Any]] = {}
    for n, record in enumerate(records(document)):
        if n == 0:
            columns = {name: [] for name in record}
        if list(record) != list(columns):
            raise UsageError("this result has tables of different columns: choose .csv or .json")
        for name, value in record.items():
            columns[name].append(_plain(value))
    if not columns:
        raise UsageError("this result has no records: choose .json or .md")
    facts = json.dumps(provenance(document), ensure_ascii=True, sort_keys=True)
    table = pa.table(columns).replace_schema_metadata({"attnviz": facts})
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, str):  # Parquet text is UTF-8: half characters are spelled out
        return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return json_ready(value)
