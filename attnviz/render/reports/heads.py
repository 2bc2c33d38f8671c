"""What every head does, as a ranking and as a map of layers and heads.

What lives here: which heads are named, and in what words. What does not: the scores (``core``).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnviz.core.measures.patterns import PATTERNS, HeadReport
from attnviz.errors import UsageError
from attnviz.registry import no_such_choice
from attnviz.render.shapes import Column, Document, Heatmap, Label, Matrix, Shape, Table, Text
from attnviz.render.views.walk import checks_line, headline
from attnviz.rounding import by_size

NAMES = tuple(PATTERNS)
N_TOP, N_TOP_OF_ONE = 3, 20
CLEAR = 0.2
"""A head is named after a pattern from this excess on, if its interval leaves the null."""
SECOND = 0.6
"""Share of the first pattern's excess from which a second one is named."""

EVEN = 0.95
"""A head without a pattern is called uniform from this share of the largest entropy on."""
_SHORT = {
    "previous": "prev", "next": "next", "self": "self", "first": "1st", "special": "spec",
    "same": "same", "induction": "ind", "local": "near", "rare": "rare", "uniform": "even",
    "mixed": "·",
}  # fmt: skip
DATA_COLUMNS = (
    Column("pattern", "text"), Column("layer", "int"), Column("head", "int"), Column("score"),
    Column("low"), Column("high"), Column("null"), Column("excess"), Column("n_samples", "int"),
)  # fmt: skip


def view(report: HeadReport, *, pattern: str | None = None, top: int | None = None) -> Document:
    """Rank heads by every pattern, or by one, and show on a map what each does most.

    Parameters
    ----------
    pattern
        Rank and map all heads by this one alone.
    top
        How many heads of each pattern are listed: 3, or 20 of one pattern, where None.

    Raises
    ------
    UsageError
        No such pattern.
    """
    if pattern is not None and pattern not in report.patterns:
        raise UsageError(no_such_choice("pattern", pattern, report.patterns))
    shapes: list[Shape] = [headline(report), _about(report)]
    names = report.patterns if pattern is None else (pattern,)
    shapes.append(_ranking(report, names, top or (N_TOP if pattern is None else N_TOP_OF_ONE)))
    shapes.append(_map_of_names(report) if pattern is None else _map_of_one(report, pattern))
    shapes.extend(_words(report, names))
    if report.checks:
        shapes.append(Text((checks_line(report),), role="check"))
    return Document(tuple(shapes), report, title="heads", data=_data(report))


def names_of_heads(report: HeadReport) -> list[list[str]]:
    """Return what each head does most, (layers, heads) names; ``mixed`` where nothing stands out."""
    return [[found[0] for found in row] for row in clear_names(report)]


def clear_names(report: HeadReport) -> list[list[list[str]]]:
    """Return the patterns that stand out in each head, (layers, heads), the largest excess first.

    A second one is named where its excess is at least ``SECOND`` of the first's: induction is
    measured on other texts than the rest, and a head may do both.
    """
    order = [n for n in report.patterns if n not in ("uniform", "positional")]
    places = [report.patterns.index(n) for n in order]
    gains = np.nan_to_num(report.excess[places], nan=-1.0)
    clear = np.nan_to_num(report.low[places], nan=-1.0) > np.nan_to_num(
        report.null[places], nan=1.0
    )
    gains = np.where(clear | (report.n_texts == 1), gains, -1.0)
    even = report.score[report.patterns.index("uniform")] >= EVEN

    def names(i: int, j: int) -> list[str]:
        best = [int(n) for n in by_size(gains[:, i, j])]
        least = max(CLEAR, SECOND * float(gains[best[0], i, j]))
        found = [order[n] for n in best[:2] if gains[n, i, j] >= least]
        return found or ["uniform" if even[i, j] else "mixed"]

    return [[names(i, j) for j in range(len(report.heads))] for i in range(len(report.layers))]


def _about(report: HeadReport) -> Text:
    n = report.n_texts
    texts = f"{n} text{'s' if n != 1 else ''}, {report.n_tokens} tokens"
    induction = report.n_samples[report.patterns.index("induction")]
    is_random = report.source.n_vocab > 1 and induction
    if report.run.overrides.get("no_sinks"):
        texts += ", without the first token and special tokens"
    note = (
        f"; induction on {induction} sequences of random tokens written twice" if is_random else ""
    )
    return Text((f"averages over {texts}{note}",), role="note")


def _ranking(report: HeadReport, names: tuple[str, ...], top: int) -> Table:
    rows = [row for name in names for row in _ranked(report, name, top)]
    columns = (
        Column("pattern", "text"), Column("head", "text"), Column("score"), Column("95 % low"),
        Column("high"), Column("null"), Column("excess"),
        *(() if report.rest is None else (Column("weight left"),)),
    )  # fmt: skip
    return Table(
        "which head does what",
        columns,
        tuple(rows),
        formula="score: weight on the pattern's keys · null: the same with shuffled keys · "
        "excess = (score − null) / (1 − null)"
        + ("" if report.rest is None else " · weight left, once the sinks are out"),
        n_keys=2,
    )


def _ranked(report: HeadReport, name: str, top: int) -> Iterator[tuple[object, ...]]:
    place = report.patterns.index(name)
    by = report.score if name == "uniform" else report.excess
    flat = np.nan_to_num(by[place], nan=-np.inf).ravel()
    for rank in by_size(flat, top):
        i, j = divmod(int(rank), len(report.heads))
        if not np.isfinite(flat[rank]):
            return
        numbers = (report.score, report.low, report.high, report.null, report.excess)
        values = [float(a[place, i, j]) for a in numbers]
        if name == "uniform":
            values[3:] = ["", ""]  # type: ignore[list-item]
        rest = () if report.rest is None else (float(report.rest[i, j]),)
        yield (name, f"L{report.layers[i]}.H{report.heads[j]}", *values, *rest)


def _map_of_names(report: HeadReport) -> Table:
    names = clear_names(report)
    columns = (Column("layer", "text"), *(Column(f"H{head}", "text") for head in report.heads))
    rows = tuple(
        (f"L{layer}", *("+".join(_SHORT[name] for name in found) for found in row))
        for layer, row in zip(report.layers, names, strict=True)
    )
    return Table(
        "what each head does most",
        columns,
        rows,
        formula=f"the pattern of the largest excess, from {CLEAR:g} on, outside its interval: "
        f"a second one from {SECOND:g} of it on; "
        "1st token, spec(ial), prev(ious), near (local), ind(uction), even (uniform); · nothing "
        "stands out",
    )


def _map_of_one(report: HeadReport, pattern: str) -> Heatmap:
    place = report.patterns.index(pattern)
    values = report.score[place] if pattern == "uniform" else report.excess[place]
    panel = Matrix(
        pattern,
        np.asarray(values),
        tuple(Label(f"L{layer}") for layer in report.layers),
        tuple(Label(f"H{head}") for head in report.heads),
        hidden=np.isnan(values) if np.isnan(values).any() else None,
        row_axis="layer",
        column_axis="head",
    )
    return Heatmap(
        f"{pattern}: excess of every head",
        (panel,),
        (0.0, 1.0),
        value_name="score" if pattern == "uniform" else "excess",
    )


def _words(report: HeadReport, names: tuple[str, ...]) -> Iterator[Text]:
    for name in names:
        yield Text((f"{name}: {PATTERNS[name].formula}",), role="note")


def _data(report: HeadReport) -> Table:
    rows = tuple(
        (name, layer, head, *(_finite(a[p, i, j]) for a in
          (report.score, report.low, report.high, report.null, report.excess)),
         report.n_samples[p], *(() if report.rest is None else (float(report.rest[i, j]),)))
        for p, name in enumerate(report.patterns)
        for i, layer in enumerate(report.layers)
        for j, head in enumerate(report.heads)
    )  # fmt: skip
    left = () if report.rest is None else (Column("weight_left"),)
    return Table("heads", (*DATA_COLUMNS, *left), rows)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
