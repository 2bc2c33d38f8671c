"""The answer of a walk, for one screen: where each token looks, as a numbered heatmap and in words.

What lives here: what is said and of which cells. What does not: drawing (``terminal.heatmap``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnviz.records import Array, Trace
from attnviz.render.pooling import pool
from attnviz.render.shapes import Column, Heatmap, Label, Matrix, Shape, Table, Text
from attnviz.render.titles import name_of, what_if
from attnviz.render.tokens import fit, visible
from attnviz.rounding import bound, by_size, check_floors, largest

_MOST_ROWS, _POOLED_ROWS = 40, 12
_MOST_HEADS = 8
_N_LINKS = 9
_NAME = 12
_CHECKS = {
    "row_sum_error": "row sums",
    "loop_error": "loop",
    "parity": "the model's output",
    "verified_weights": "the model's weights",
}


def shapes(trace: Trace) -> tuple[Shape, ...]:
    """Return the answer of a dense trace: what was computed, and where each token looks.

    One head is a heatmap in per cent with a remark beside each row. A long text is pooled, and
    its strongest links are listed. Several heads are a table: a column each, up to 8 of them.
    """
    if len(trace.layers) * len(trace.heads) > 1:
        return (_table(trace),)
    weights = np.asarray(trace.stages["weights"][0, 0])
    if max(weights.shape) <= _MOST_ROWS:
        return (_heatmap(trace, weights),)
    return _pooled(trace, weights)


def _line(trace: Trace) -> str:
    """Return in one line what was computed: source, head, scale, what-if, checks."""
    source = trace.source
    is_one = len(trace.layers) * len(trace.heads) == 1
    parts = [name_of(source)]
    if is_one and source.n_layers * source.n_heads > 1:
        parts.append(f"L{trace.layers[0]}.H{trace.heads[0]}")
    if "scaled" in trace.stages:
        parts.append(f"scores {_scale(trace.scale[0])}")
    parts += [word for word in what_if(trace.run.overrides) if not word.startswith("scale")]
    return " · ".join((*parts, *_checks(trace)))


def _scale(scale: float) -> str:
    """Return what scores are multiplied by, as people say it: ``/ 8`` for 0.125."""
    divisor = 1 / scale
    return f"/ {divisor:.4g}" if scale < 1 else "not scaled" if scale == 1 else f"· {scale:.4g}"


def _checks(trace: Trace) -> Iterator[str]:
    """Yield the checks that every trace comes with, each with its bound, as one part of the line."""
    floors = check_floors(trace.run.dtype, n_keys=len(trace.keys), d_k=trace.source.d_k)
    done = [
        f"{words} ±{bound(trace.checks[name], floors[name])}"
        for name, words in _CHECKS.items()
        if name in trace.checks
    ]
    if done:
        yield f"checked: {', '.join(done)}"


def _heatmap(trace: Trace, weights: Array) -> Heatmap:
    visible_cells = np.asarray(trace.visible[0, 0], bool)
    panel = Matrix(
        "weights in per cent",
        weights,
        tuple(Label(label) for label in trace.tokens.labels),
        tuple(Label(label) for label in trace.keys.labels),
        hidden=None if visible_cells.all() else ~visible_cells,
        unit="percent",
        scale="weights",
    )
    remarks = tuple(_remark(trace, weights, row) for row in range(len(weights)))
    return Heatmap(_line(trace), (panel,), (0.0, 1.0), remarks=remarks)


def _remark(trace: Trace, weights: Array, row: int) -> Text:
    """Say where a query looks most: teddy → bear 99.8 %."""
    name = Label(_short(trace.tokens.labels[row]))
    if not weights[row].any():
        return Text((name, " → no key"))
    best = int(largest(weights[row]))
    is_self = trace.key_tokens is None and best == row
    target = "itself" if is_self else Label(_short(trace.keys.labels[best]))
    return Text((name, " → ", target, f" {100 * weights[row, best]:.1f} %"))


def _short(label: str) -> str:
    return fit(visible(label), _NAME)


def _pooled(trace: Trace, weights: Array) -> tuple[Shape, ...]:
    """Return a map of a few cells, and the strongest links apart from those to first and special tokens."""
    side = -(-max(weights.shape) // _POOLED_ROWS)
    hidden = ~np.asarray(trace.visible[0, 0], bool)
    values, masked = pool(weights, hidden, (side, side))
    rows, columns = (
        tuple(Label(f"{at}:{labels[at]}") for at in range(0, len(labels), side))
        for labels in (trace.tokens.labels, trace.keys.labels)
    )
    panel = Matrix("weights in per cent", values, rows, columns, hidden=masked if masked.any() else None,
                   unit="percent", scale="weights")  # fmt: skip
    special = np.array(trace.keys.special, bool)
    special[0] = True
    kept = np.where(special | hidden, 0.0, weights)
    found: dict[tuple[str, str], Text] = {}
    for row in map(int, by_size(kept.max(axis=1), len(kept))):
        pair = trace.tokens.labels[row], trace.keys.labels[int(largest(kept[row]))]
        if kept[row].any():
            found.setdefault(pair, Text((f"{row}:", *_remark(trace, kept, row).parts)))
        if len(found) == _N_LINKS:
            break
    note = "strongest links, those to the first token and to special tokens left out:"
    shape = Heatmap(_line(trace), (panel,), (0.0, float(values.max()) or 1.0), notes=(note,) if found else (),
                    pooled=side, remarks=tuple(found.values()))  # fmt: skip
    return (shape,)


def _table(trace: Trace) -> Table:
    """Return a row per query and a column per head: the key it looks at most, and how much."""
    places = [(i, j) for i in range(len(trace.layers)) for j in range(len(trace.heads))]
    shown = places[:_MOST_HEADS]
    weights = np.asarray(trace.stages["weights"])
    rows = []
    for query, label in enumerate(trace.tokens.labels[:_MOST_ROWS]):
        cells = []
        for i, j in shown:
            row = weights[i, j, query]
            best = int(largest(row))
            cells.append(
                Label(
                    f"{_short(trace.keys.labels[best])} {100 * row[best]:.0f}" if row.any() else "·"
                )
            )
        rows.append((Label(label), *cells))
    heads = tuple(Column(f"L{trace.layers[i]}.H{trace.heads[j]}", "label") for i, j in shown)
    notes = []
    if len(shown) < len(places):
        notes.append(
            f"{len(places) - len(shown)} more heads: attnviz view grid shows all, --head one"
        )
    if len(trace.tokens) > _MOST_ROWS:
        notes.append(f"{len(trace.tokens) - _MOST_ROWS} more queries: --full shows all")
    return Table(_line(trace), (Column("query", "label"), *heads), tuple(rows),
                 formula="the key each query looks at most, in per cent", notes=tuple(notes))  # fmt: skip
