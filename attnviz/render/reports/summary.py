"""Texts of any length: figures per head, strongest links in context, and the pooled map.

What lives here: which figures are shown and in what words. What does not: how they were computed
(``core.stream``), or their files (``render.export``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attnviz.core.measures.flow import HONEST
from attnviz.core.stream.summary import (
    LayerSummary,
    Rectangle,
    Summary,
    distance_profile,
    first_share,
    mean_distance,
    mean_entropy,
    share_at,
    sink_share,
    strongest_links,
)
from attnviz.records import Tokens
from attnviz.render.shapes import Column, Document, Heatmap, Label, Matrix, Shape, Table, Text
from attnviz.render.titles import tail_of
from attnviz.render.views.walk import headline
from attnviz.rounding import bound, by_size, largest

POOLS = ("max", "mean")
_WIDE, _NARROW = 22, 10
"""Characters of context on each side of a token."""

_MOST_DETAILED = 4
_MOST_READ = 2000
_MOST_ROWS, _MOST_LAYERS = 32, 44


def view(
    summary: Summary, *, pool: str = "max", n_shown: int = 10, is_screen: bool = False
) -> Document:
    """Show a streamed text.

    Parameters
    ----------
    summary
        With the figures that ``runs.summaries`` asks for; what is missing is not shown.
    pool
        ``max`` keeps a single strong cell visible, ``mean`` shows how much there is.
    n_shown
        Links and keys listed per head; only for up to four heads.
    is_screen
        Show many heads by layer, for somebody who reads it.
    """
    heads = [(part, place) for part in summary.by_layer for place in range(len(part.heads))]
    is_short = len(heads) <= _MOST_DETAILED
    data = head_table(summary, raw=True)
    if is_screen and len(heads) > _MOST_ROWS:
        shapes: list[Shape] = [headline(summary), _size_of(summary), layer_table(summary)]
        return Document(tuple(shapes), summary, title="summary", data=data)
    shapes = [headline(summary), _size_of(summary), head_table(summary)]
    for part, place in heads if is_short else ():
        name = _name(part, place)
        if part.received_HS is not None:
            shapes.append(_received(summary.keys, part, place, name, n_shown))
        if part.link_keys_HLN is not None:
            shapes.append(_links(summary, part, place, name, n_shown))
        if part.distance_HD is not None:
            shapes.append(_distances(part, place, name))
    if summary.by_layer[0].map_max_HRR is not None:
        shapes.append(pooled_map(summary, pool=pool))
    return Document(tuple(shapes), summary, title="summary", data=data)


def view_map(summary: Summary, *, pool: str = "max", most: float | None = None) -> Document:
    """Show nothing but the pooled maps; ``most`` is the end of the colour scale."""
    shape = pooled_map(summary, pool=pool)
    if most is not None:
        shape = replace(shape, limits=(0.0, most))
    data = head_table(summary, raw=True)
    return Document((headline(summary), shape), summary, title="heatmap", data=data)


def view_rectangle(found: Rectangle) -> Document:
    """Show the exact weights of some queries on some keys as a map, one panel per head."""
    rows, keys = (
        tuple(Label(label) for label in tokens.labels[slice(*span)])
        for tokens, span in ((found.tokens, found.rows), (found.keys, found.columns))
    )
    panels = tuple(
        Matrix(f"L{layer}.H{head}", found.weights_AHRC[i, j], rows, keys, scale="weights")
        for i, layer in enumerate(found.layers)
        for j, head in enumerate(found.heads)
    )
    place = f"queries {_range(found.rows)}, keys {_range(found.columns)}"
    shape = Heatmap(
        " · ".join(
            ["weights", place, *(p.title for p in panels if len(panels) == 1), tail_of(found)]
        ),
        panels,
        (0.0, _top(panels)),
        notes=("exact: each query's softmax runs over all keys of the text",),
    )
    columns = (
        Column("layer", "int"), Column("head", "int"), Column("query", "int"),
        Column("query_label", "label"), Column("key", "int"), Column("key_label", "label"),
        Column("weight"),
    )  # fmt: skip
    data = Table("rectangle", columns, tuple(_cells(found)))
    return Document((headline(found), shape), found, title="rectangle", data=data)


def head_table(summary: Summary, *, raw: bool = False) -> Table:
    """Return one row per head; ``raw`` with plain names and every column, for files."""
    names: list[Column] = [Column("layer", "int"), Column("head", "int")]
    figures = [list(_figures(summary, part, raw=raw)) for part in summary.by_layer]
    names += [column for column, _ in figures[0]]
    rows = []
    for part, found in zip(summary.by_layer, figures, strict=True):
        for place, head in enumerate(part.heads):
            rows.append((part.layer, head, *(values[place] for _, values in found)))
    notes = () if raw else _HEAD_NOTES
    return Table("heads", tuple(names), tuple(rows), notes=notes, n_keys=2)


def layer_table(summary: Summary) -> Table:
    """Return one row per layer: means over its heads, and the head that stands out in each figure."""
    names = ("bits", "distance", "first", "before")
    rows, columns = [], []
    for part in summary.by_layer[:_MOST_LAYERS]:
        found = {c.name: values for c, values in _figures(summary, part, raw=False)}
        cells: list[Any] = [part.layer]
        columns = [Column("layer", "int")]
        for name in names:
            if name not in found:
                continue
            numbers = np.asarray(found[name], float)
            best = int(largest(numbers if name != "bits" else -numbers))
            mean, top = (
                f"{100 * n:.0f} %" if name in ("first", "before") else f"{n:.2f}"
                for n in (float(numbers.mean()), float(numbers[best]))
            )
            cells.append(mean)
            columns.append(Column(name, "int"))
            if name != "distance":
                cells.append(f"H{part.heads[best]} {top}")
                columns.append(Column("least" if name == "bits" else "most", "text"))
        rows.append(tuple(cells))
    left = len(summary.by_layer) - len(rows)
    n_heads = sum(len(part.heads) for part in summary.by_layer)
    more = (f"{left} more layers; ",) if left else ("",)
    notes = (
        "bits: mean entropy of a query's weights; distance: mean tokens between query and key",
        "first, before: share of weight on the text's first token, on the token before",
        f"{more[0]}a row for each of the {n_heads} heads: -f csv; their maps: -o FILE.png",
    )
    return Table("layers", tuple(columns), tuple(rows), notes=notes,
                 formula="the mean over a layer's heads, and the head that stands out")  # fmt: skip


_HEAD_NOTES = (
    "bits: mean entropy of a query's weights; like n keys: 2^bits; distance: mean tokens between "
    "query and key",
    "itself, before, first: share of all weight on the token itself, the one before, the text's "
    "first; top share: what the most looked-at token receives",
)


def _figures(
    summary: Summary, part: LayerSummary, *, raw: bool
) -> Iterator[tuple[Column, tuple[Any, ...]]]:
    def column(name: str, plain: str, kind: Any, values: Any) -> tuple[Column, tuple[Any, ...]]:
        return Column(plain if raw else name, kind), tuple(values)

    if part.entropy_HL is not None:
        bits = mean_entropy(part).astype(float).tolist()
        yield column("bits", "entropy_bits", "number", bits)
        if not raw:
            yield column("like n keys", "", "int", [_rounded(2**one) for one in bits])
    if part.distance_HD is not None:
        far = mean_distance(part).tolist()
        yield (
            column("distance", "mean_distance", "number", far)
            if raw
            else column("distance", "", "int", [_rounded(one) for one in far])
        )
        yield column("itself", "self_share", "percent", share_at(part, 0).tolist())
        yield column("before", "previous_share", "percent", share_at(part, -1).tolist())
    if part.first_HL is not None:
        yield column("first", "first_share", "percent", first_share(part).astype(float).tolist())
    sinks = sink_share(part)
    if sinks is not None:
        yield column("sink", "sink_share", "percent", sinks.astype(float).tolist())
    if part.received_HS is not None:
        tops = largest(part.received_HS, axis=-1)
        shares = part.received_HS.max(-1) / np.maximum(part.received_HS.sum(-1), 1e-300)
        labels = [Label(summary.keys.labels[int(top)]) for top in tops]
        if raw:
            yield column("", "top_key", "int", tops.tolist())
        yield column("top key", "top_key_label", "label", labels)
        yield column("top share", "top_key_share", "percent", shares.tolist())


def _size_of(summary: Summary) -> Text:
    tokens, cross = summary.tokens, summary.key_tokens
    n_special = sum(tokens.special)
    parts = [f"{len(tokens.text):,} characters, {len(tokens):,} tokens"]
    parts += [f"{n_special} of them special"] if n_special else []
    parts += [f"looking at {len(cross):,} tokens of the other text"] if cross is not None else []
    if "parity" in summary.checks:
        parts.append(
            f"output equal to the model's own (within {bound(summary.checks['parity'], 1e-5)})"
        )
    return Text((", ".join(parts),))


def _received(tokens: Tokens, part: LayerSummary, place: int, name: str, n_shown: int) -> Table:
    assert part.received_HS is not None
    received = part.received_HS[place]
    best = by_size(received, n_shown)
    top = float(received[best[0]]) or 1.0
    rows = tuple(
        (int(at), context(tokens, int(at), _WIDE), float(received[at]), float(received[at] / top))
        for at in best
    )
    columns = (Column("#", "int"), Column("key", "label"), Column("received"), Column("", "bar"))
    note = f"{name}: received is summed over all queries; {received.sum():,.0f} in all"
    return Table(f"most looked at · {name}", columns, rows, notes=(note,), n_keys=2)


def _links(summary: Summary, part: LayerSummary, place: int, name: str, n_shown: int) -> Table:
    queries, keys = summary.tokens, summary.keys
    norms = None if part.value_norms_HS is None else part.value_norms_HS[place]
    rows = tuple(
        (
            query,
            context(queries, query, _NARROW),
            key,
            context(keys, key, _NARROW),
            weight,
            *(() if norms is None else (weight * float(norms[key]),)),
        )
        for query, key, weight in distinct_links(summary, part, part.heads[place], n_shown)
    )
    columns = (
        Column("#", "int"),
        Column("query", "label"),
        Column("# key", "int"),
        Column("key", "label"),
        Column("weight", "percent"),
        *(() if norms is None else (Column("‖w·v·W_O‖"),)),
    )
    note = "each pair of words once, at its strongest"
    return Table(f"strongest links · {name}", columns, rows, notes=(note, HONEST), n_keys=4)


def distinct_links(
    summary: Summary, part: LayerSummary, head: int, n: int
) -> list[tuple[int, int, float]]:
    """Return the n strongest links of one head, each pair of words once at its strongest."""
    queries, keys = summary.tokens.labels, summary.keys.labels
    found: dict[tuple[str, str], tuple[int, int, float]] = {}
    for query, key, weight in strongest_links(part, head, _MOST_READ):
        pair = (queries[query].casefold(), keys[key].casefold())
        if found.setdefault(pair, (query, key, weight)) and len(found) == n:
            break
    return list(found.values())


def _distances(part: LayerSummary, place: int, name: str) -> Table:
    edges, shares_HB = distance_profile(part)
    ends = [*edges[1:].tolist(), None]
    rows = tuple(
        (_bin(int(start), end), float(share), float(share))
        for start, end, share in zip(edges, ends, shares_HB[place], strict=True)
    )
    columns = (Column("tokens apart", "text"), Column("share", "percent"), Column("", "bar"))
    return Table(f"how far · {name}", columns, rows)


def _bin(start: int, end: int | None) -> str:
    if end is None:
        return f"{start:,} and more"
    return f"{start:,}" if end == start + 1 else f"{start:,} to {end - 1:,}"


def pooled_map(summary: Summary, *, pool: str = "max") -> Heatmap:
    """Return the pooled maps of all heads on one scale; thumbnails where there are many."""
    first = summary.by_layer[0]
    panels: list[Matrix] = []
    for part in summary.by_layer:
        maps = part.map_max_HRR if pool == "max" else part.map_mean_HRR
        assert maps is not None
        rows = _cell_labels(summary.tokens, maps.shape[-2])
        columns = _cell_labels(summary.keys, maps.shape[-1])
        panels += [
            Matrix(_name(part, place), one, rows, columns, scale="weights")
            for place, one in enumerate(maps)
        ]
    side = math.ceil(first.n_queries / len(panels[0].values))
    which = "largest" if pool == "max" else "mean"
    note = f"a cell of the map: the {which} of about {side} × {side} weights"
    is_one = len(panels) == 1
    return Heatmap(
        f"pooled weights ({pool})"
        + (f" · {panels[0].title}" if is_one else "")
        + f" · {tail_of(summary)}",
        tuple(panels),
        (0.0, _top(panels)),
        notes=(note,) if side > 1 else (),
        is_thumbnails=len(panels) > _MOST_DETAILED,
    )


def _cell_labels(tokens: Tokens, n_cells: int) -> tuple[Label, ...]:
    """Name every cell by its first token, with the token's number where cells hold several."""
    starts = [-(-cell * len(tokens) // n_cells) for cell in range(n_cells)]
    if n_cells == len(tokens):
        return tuple(Label(tokens.labels[at]) for at in starts)
    return tuple(Label(f"{at}:{tokens.labels[at]}") for at in starts)


def context(tokens: Tokens, at: int, reach: int) -> Label:
    """Return a token between brackets with whole words around it, ``reach`` characters at most.

    Examples
    --------
    >>> context(Tokens("a teddy bear", (0,), ("teddy",), ("teddy",), ((2, 7),), (False,)), 0, 9)
    'a [teddy] bear'
    """
    span, text = tokens.spans[at], tokens.text
    if span is None:
        return Label(f"[{tokens.labels[at]}]")
    start, end = span
    first, last = max(0, start - reach), min(len(text), end + reach)
    if first:
        first = max(text.find(" ", first, start), text.find("\n", first, start), first) + 1
    if last < len(text):
        last = max(text.rfind(" ", end, last), text.rfind("\n", end, last), end)
    before, after = "…" * (first > 0), "…" * (last < len(text))
    shown = f"{text[min(first, start) : start]}[{text[start:end]}]{text[end:last]}"
    return Label(before + " ".join(shown.split()) + after)


def _cells(found: Rectangle) -> Iterator[tuple[Any, ...]]:
    labels, key_labels = found.tokens.labels, found.keys.labels
    for i, j, row, column in np.ndindex(found.weights_AHRC.shape):
        query, key = found.rows[0] + row, found.columns[0] + column
        weight = float(found.weights_AHRC[i, j, row, column])
        where = (found.layers[i], found.heads[j])
        yield (*where, query, Label(labels[query]), key, Label(key_labels[key]), weight)


def _rounded(number: float) -> float | int:
    return round(number) if number >= 100 else round(number, 1)


def _name(part: LayerSummary, place: int) -> str:
    return f"L{part.layer}.H{part.heads[place]}"


def _range(span: tuple[int, int]) -> str:
    return f"{span[0]} to {span[1] - 1}"


def _top(panels: Any) -> float:
    top = max(float(np.max(panel.values, initial=0.0)) for panel in panels)
    return top if top > 0 else 1.0
