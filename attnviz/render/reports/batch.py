"""A batch for people: what it will cost, how far it is, and how its figures are spread.

What lives here: the records of ``--dry-run``, ``--status`` and ``--report`` → tables. What does
not: making those records (``runs``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnviz.render.shapes import Column, Document, Label, Table, Text
from attnviz.render.units import say_bytes, say_time
from attnviz.rounding import bound

_MEANS = ("distance", "first_share", "self_share", "previous_share", "next_share",
          "special_share", "top_share")  # fmt: skip
_BARS = " ▁▂▃▄▅▆▇█"


def plan(facts: Mapping[str, Any]) -> Document:
    """Show what ``--dry-run`` found."""
    tried = facts["tried"]
    free = facts["free_bytes"]
    rows: list[tuple[str, Any]] = [
        ("texts", f"{facts['n_texts']:,}"),
        ("shards", f"{facts['n_shards']:,} of {facts['shard_size']:,} texts"),
        ("rows of figures", f"about {facts['rows']:,}"),
        ("time", f"about {say_time(facts['seconds'])} with {_count(facts['workers'], 'worker')}"),
        ("disk", f"about {say_bytes(facts['bytes'])} as {facts['format']}"
         + ("" if free is None else f", {say_bytes(free)} free")),
        ("memory", f"about {say_bytes(facts['memory_bytes'])} for {_count(facts['workers'], 'worker')}"),
        ("measured on", f"{_count(tried['texts'], 'text')}, {tried['tokens']:,} tokens: "
         f"{tried['seconds']:.3f} s, {tried['failed']} failed, {tried['skipped']} skipped"),
    ]  # fmt: skip
    inputs = Table(
        "inputs",
        (Column("name", "label"), Column("format", "text"), Column("texts", "int")),
        tuple((Label(one["name"]), one["format"], one["rows"]) for one in facts["inputs"]),
    )
    return Document((_source(facts["source"]), inputs, _table("dry run: nothing is written", rows)),
                    facts, title="batch plan")  # fmt: skip


def status(facts: Mapping[str, Any]) -> Document:
    """Show what ``--status`` found."""
    n_gone = facts["done"] + facts["failed"] + facts["skipped"]
    rows: list[tuple[str, Any]] = [
        ("state", facts["state"]),
        ("shards", f"{facts['shards']:,} of {facts['n_shards']:,}"),
        ("texts", f"{n_gone:,} of {facts['n_texts']:,}"),
        ("done", f"{facts['done']:,}"),
        ("failed", f"{facts['failed']:,}" + (": see errors.jsonl" if facts["failed"] else "")),
        ("skipped", f"{facts['skipped']:,}"),
        ("rows of figures", f"{facts['rows']:,}"),
    ]
    if facts["parity"] is not None:
        rows.append(("parity", f"equal to the model's own (within {bound(facts['parity'], 1e-5)})"))
    options = Table(
        "options",
        (Column("name", "text"), Column("value", "label")),
        tuple((name, Label(str(value))) for name, value in facts["settings"].items()),
    )
    title = f"batch {facts['state']}"
    return Document(
        (_source(facts["source"]), _table(title, rows), options), facts, title="batch status"
    )


def report(facts: Mapping[str, Any]) -> Document:
    """Show how the figures of every head are spread over the texts."""
    state = facts["status"]
    words = (
        f"{state['done']:,} of {state['n_texts']:,} texts done, {state['failed']:,} failed, "
        f"{state['skipped']:,} skipped; {state['rows']:,} rows of figures"
    )
    low, high = facts["ranges"].get("entropy", (0.0, 0.0))
    heads = [row for row in facts["heads"] if row["texts"]]
    entropy = Table(
        "entropy of every head, bits",
        (
            Column("head", "text"),
            *(Column(name) for name in ("mean", "5 %", "25 %", "median", "75 %", "95 %")),
            Column("spread", "text"),
        ),
        tuple(
            (
                _name(row),
                row["entropy"]["mean"],
                *row["entropy"]["quantiles"],
                sparkline(row["entropy"]["histogram"]),
            )
            for row in heads
        ),
        notes=(f"spread: share of texts in 16 bins from {low:.3g} to {high:.3g} bits",),
    )
    means = Table(
        "means over the texts",
        (Column("head", "text"), *(Column(name.replace("_", " ")) for name in _MEANS)),
        tuple(
            (_name(row), *(None if row[n] is None else row[n]["mean"] for n in _MEANS))
            for row in heads
        ),
        notes=("distance in tokens; shares of attention from 0 to 1",),
    )
    shapes = (Text(("a batch, head by head",), "title"), _source(state["source"]), Text((words,)))
    return Document((*shapes, entropy, means), facts, title="batch report")


def sparkline(counts: Sequence[int]) -> str:
    """Return a histogram as one line of blocks.

    Examples
    --------
    >>> sparkline([0, 1, 4, 8])
    ' ▁▄█'
    """
    top = max(counts, default=0) or 1
    last = len(_BARS) - 1
    return "".join(_BARS[-(-count * last // top)] for count in counts)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _name(row: Mapping[str, Any]) -> str:
    return f"L{row['layer']}.H{row['head']}"


def _source(source: Mapping[str, Any]) -> Text:
    n_layers, n_heads = len(source["layers"]), len(source["heads"])
    return Text(
        (
            f"{source['kind']} ",
            Label(source["name"]),
            f", {_count(n_layers, 'layer')} × {_count(n_heads, 'head')}, {source['device']}",
        ),
        "note",
    )


def _table(title: str, rows: Sequence[tuple[str, Any]]) -> Table:
    return Table(title, (Column("what", "text"), Column("found", "label")),
                 tuple((name, Label(value)) for name, value in rows))  # fmt: skip
