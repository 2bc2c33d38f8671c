"""The walk: tokens → x → q, k, v → scores → scaled → masked → weights → output, with formulas.

What lives here: which tables a trace is shown as, and the words around them. What does not:
the numbers (``core``) and how a table is drawn (``formats``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from attnviz.core.reference import entropy_bits, softmax, softmax_gradient_norm
from attnviz.records import RunInfo, SourceInfo, Tokens, Trace
from attnviz.render import answer, overview
from attnviz.render.formulas import STEPS, step_formula, vector_formula
from attnviz.render.shapes import Column, Document, Label, Matrix, Shape, Table, Text
from attnviz.rounding import bound, check_floors, largest

SHOWN = ("tokens", "x", "q_projected", "q_normed", "q", "k_projected", "k_normed", "k", "v",
         "scores", "scaled", "bias", "capped", "masked", "weights", "output")  # fmt: skip
_VECTORS = ("q", "k", "v")
_MAX_SENTENCES = 40
_CELL = 9


def view(trace: Trace, *, stages: Sequence[str] = (), queries: Sequence[int] = ()) -> Document:
    """Show every stage of every head of a trace, in the order it is computed.

    Parameters
    ----------
    trace
        A dense trace.
    stages
        Names out of ``SHOWN``; all that exist where empty.
    queries
        Only the rows of these queries, of the stages that have a row per query; all where empty.
    """
    shapes = [*_steps(trace, tuple(stages) or SHOWN, queries)]
    if not stages:
        shapes.extend(closing(trace))
    return Document(tuple(shapes), trace, title="walk", stages=tuple(stages))


def view_screen(trace: Trace) -> Document:
    """Show every stage once and end in the answer, for a person before a terminal."""
    shapes = (*_steps(trace, SHOWN, (), is_once=True), *answer.shapes(trace))
    return Document(shapes, trace, title="walk")


def view_answer(trace: Trace) -> Document:
    """Show nothing but the answer: where each token looks."""
    return Document(answer.shapes(trace), trace, title="walk")


def count_lines(trace: Trace, width: int) -> int:
    """Return about how many lines ``view_screen`` takes at a width of so many columns."""
    n_queries, n_keys = len(trace.tokens), len(trace.keys)
    blocks = -(-_CELL * n_keys // max(_CELL, width - _CELL))
    return len(trace.layers) * len(trace.heads) * n_queries * (5 + 3 * blocks)


def _steps(
    trace: Trace, wanted: Sequence[str], queries: Sequence[int], *, is_once: bool = False
) -> Iterator[Shape]:
    yield headline(trace)
    yield from origin_note(trace)
    yield from overview.shapes(trace)
    if "tokens" in wanted:
        yield token_table(trace.tokens, "Tokens", queries)
        if trace.key_tokens is not None:
            yield token_table(trace.key_tokens, "Tokens along the keys")
    for i in range(len(trace.layers)):
        if "x" in wanted and trace.x is not None:
            yield _rows_of(_x_matrix(trace, i), queries)
        for j in range(len(trace.heads)):
            yield from _head_shapes(trace, i, j, wanted, queries, is_once=is_once)


def _rows_of(matrix: Matrix, queries: Sequence[int]) -> Matrix:
    """Return a matrix without the rows of other queries."""
    rows = list(queries)
    if not rows:
        return matrix
    return replace(
        matrix,
        values=np.asarray(matrix.values)[rows],
        row_labels=tuple(matrix.row_labels[row] for row in rows),
        hidden=None if matrix.hidden is None else np.asarray(matrix.hidden)[rows],
    )


def labels_of(tokens: Tokens) -> tuple[Label, ...]:
    """Return what tokens are called on an axis: ``bear``, or ``7:bear`` where a label repeats."""
    if len(set(tokens.labels)) == len(tokens.labels):
        return tuple(Label(label) for label in tokens.labels)
    return tuple(Label(f"{i}:{label}") for i, label in enumerate(tokens.labels))


def token_table(tokens: Tokens, title: str, only: Sequence[int] = ()) -> Table:
    """Show tokens with ids and their exact place in the source text; all, or only some."""
    rows = []
    for i in only or range(len(tokens)):
        span = tokens.spans[i]
        place = f"{span[0]}–{span[1]}" if span is not None else "added"
        source = tokens.text[span[0] : span[1]] if span is not None else ""
        piece = tokens.pieces[i]
        rows.append((i, Label(tokens.labels[i]), tokens.ids[i], place, Label(source), Label(piece)))
    columns = (
        Column("#", "int"),
        Column("token", "label"),
        Column("id", "int"),
        Column("characters", "text"),
        Column("source", "label"),
        Column("piece", "label"),
    )
    n_shown = 4
    if any(str(row[4]).casefold() != str(row[1]).casefold() for row in rows):
        n_shown = 5
    if any(str(row[5]).casefold() != str(row[1]).casefold() for row in rows):
        n_shown = 6
    return Table(
        title,
        columns[:n_shown],
        tuple(row[:n_shown] for row in rows),
        formula=f"{len(tokens)} tokens from {len(tokens.text)} characters",
        n_keys=2,
    )


class Sourced(Protocol):
    """Any result that says where it comes from."""

    @property
    def source(self) -> SourceInfo: ...
    @property
    def run(self) -> RunInfo: ...


def headline(trace: Sourced) -> Text:
    """Say where the weights come from, their sizes and hash, and where they were computed."""
    source, run = trace.source, trace.run
    if source.kind == "given":
        what = f", d_k {source.d_k}" if source.d_k else ", weights alone"
        sizes = f" ({source.n_layers} × {source.n_heads} layers and heads{what}) · {run.dtype}"
        return Text(("given: ", Label(source.name), sizes), role="title")
    seed = f", seed {source.seed}" if source.seed is not None else ""
    heads = "" if source.n_heads == 1 else f", {source.n_heads} heads"
    groups = (
        f" on {source.n_kv_heads} key/value heads" if source.n_kv_heads != source.n_heads else ""
    )
    return Text(
        (
            f"{source.kind}: ",
            Label(source.name),
            f" (d_model {source.d_model}, d_k {source.d_k}{heads}{groups}{seed}; "
            f"sha256 {source.sha256[:12]}) · {run.device}, {run.dtype}, {run.core}",
        ),
        role="title",
    )


def origin_note(trace: Trace) -> tuple[Text, ...]:
    """Say in one line what the weights are and what they can show, where the source knows."""
    return (Text((Label(trace.source.origin),), role="note"),) if trace.source.origin else ()


def head_name(trace: Trace, layer: int, head: int) -> str:
    """Return `` L5.H3`` for the places in a trace; nothing where there is only one head."""
    if trace.source.n_layers == 1 and trace.source.n_heads == 1:
        return ""
    return f" L{trace.layers[layer]}.H{trace.heads[head]}"


def _x_matrix(trace: Trace, i: int) -> Matrix:
    assert trace.x is not None
    x_LD = np.asarray(trace.x[i])
    return Matrix(
        "x" if len(trace.layers) == 1 else f"x L{trace.layers[i]}",
        x_LD,
        labels_of(trace.tokens),
        formula=f"x: one vector of d_model = {x_LD.shape[1]} numbers per token, "
        f"{len(x_LD)} × {x_LD.shape[1]}",
        is_vectors=True,
        row_axis="token",
        column_axis="dimension",
    )


def _head_shapes(
    trace: Trace, i: int, j: int, wanted: Sequence[str], queries: Sequence[int], *, is_once: bool
) -> Iterator[Shape]:
    where = head_name(trace, i, j)
    for name in wanted:
        rows = () if name.startswith(("k", "v")) else queries
        if name in trace.inputs:
            yield _rows_of(_step_matrix(trace, i, j, name, where), rows)
        if name in ("tokens", "x") or name not in trace.stages:
            continue
        if name == "masked" and bool(trace.visible[i, j].all()):
            continue
        yield _rows_of(stage_matrix(trace, i, j, name, where), rows)
        if name == "weights" and not is_once:
            yield _rows_of(_percentages(trace, i, j, where), rows)
    if "scale" in trace.run.overrides and "weights" in wanted:
        yield _scale_comparison(trace, i, j, where, queries)


def stage_matrix(trace: Trace, i: int, j: int, name: str, where: str | None = None) -> Matrix:
    """Return one stage of one head as a Matrix with its formula in real numbers."""
    values = np.asarray(trace.stages[name][i, j])
    suffix = head_name(trace, i, j) if where is None else where
    if name in (*_VECTORS, "output"):
        owner = trace.tokens if name in ("q", "output") else trace.keys
        return Matrix(
            _TITLES[name] + suffix,
            values,
            labels_of(owner),
            formula=formula_of(trace, i, name, j),
            is_vectors=True,
            row_axis="token",
            column_axis="dimension",
        )
    return Matrix(
        _TITLES[name] + suffix,
        values,
        labels_of(trace.tokens),
        labels_of(trace.keys),
        formula=formula_of(trace, i, name),
        notes=_notes_of(trace, i, j, name),
        hidden=~np.asarray(trace.visible[i, j]) if name in ("masked", "weights") else None,
        scale="weights" if name == "weights" else "diverging",
    )


def _step_matrix(trace: Trace, i: int, j: int, name: str, where: str) -> Matrix:
    return Matrix(
        STEPS[name] + where,
        np.asarray(trace.inputs[name][i, j]),
        labels_of(trace.tokens if name.startswith("q") else trace.keys),
        formula=step_formula(trace, name),
        is_vectors=True,
        row_axis="token",
        column_axis="dimension",
    )


_TITLES = {
    "q": "q, queries",
    "k": "k, keys",
    "v": "v, values",
    "scores": "scores",
    "scaled": "scaled",
    "bias": "bias",
    "capped": "capped",
    "masked": "masked",
    "weights": "weights",
    "output": "output z",
}


def formula_of(trace: Trace, i: int, name: str, j: int = 0) -> str:
    """Return a stage's formula with this trace's real shapes and numbers."""
    n_queries, n_keys = trace.stages["weights"].shape[-2:]
    d_k, d_v = trace.source.d_k, trace.source.d_v
    if name in _VECTORS:
        return vector_formula(trace, i, j, name)
    if name == "scores":
        return f"scores = q·kᵀ: ({n_queries} × {d_k})·({d_k} × {n_keys}) = {n_queries} × {n_keys}"
    if name == "scaled":
        return scale_formula(trace.scale[i], d_k)
    if name == "capped":
        cap = trace.softcap[i]
        return f"capped = {cap:g} · tanh(scaled / {cap:g})"
    if name == "bias":
        return "bias: a score for the distance, added before the softmax"
    if name == "masked":
        rule = trace.run.overrides.get("mask", "")
        return "masked: −∞ where a query may not look" + (f" ({rule})" if rule else "")
    entering = "masked" if not bool(trace.visible.all()) else "scaled"
    if trace.softcap[i] is not None and entering == "scaled":
        entering = "capped"
    if name == "weights" and trace.heads == ("mean",):
        return "weights: the mean over all heads, each softmax(scaled)"
    if name == "weights":
        return f"weights = softmax({entering}): exp of each, divided by the sum of its row"
    return (
        f"z = weights·v = Σ weightⱼ·vⱼ: ({n_queries} × {n_keys})·({n_keys} × {d_v}) "
        f"= {n_queries} × {d_v}"
    )


def scale_formula(scale: float, d_k: int) -> str:
    """Return how scores become scaled: the divisor by name where it is √d_k.

    Examples
    --------
    >>> scale_formula(0.125, 64)
    'scaled = scores / √d_k = scores / √64 = scores / 8'
    """
    root = d_k**0.5
    if abs(scale * root - 1) < 1e-12:
        exact = f"{root:g}" if root == round(root) else f"{root:.6g}"
        return f"scaled = scores / √d_k = scores / √{d_k} = scores / {exact}"
    if scale == 1:
        return f"scaled = scores, not divided (√d_k would be √{d_k} = {root:.6g})"
    return f"scaled = scores · {scale:.6g} (√d_k would divide by √{d_k} = {root:.6g})"


def _notes_of(trace: Trace, i: int, j: int, name: str) -> tuple[str, ...]:
    if name != "weights":
        return ()
    notes = []
    if not bool(trace.visible[i, j].all()):
        counts = trace.visible[i, j].sum(axis=-1)
        shown = ", ".join(str(int(n)) for n in counts[:24]) + (", …" if len(counts) > 24 else "")
        notes.append(f"· is a hidden key: weight exactly 0. Keys each query may see: {shown}")
    if trace.sink_share is not None:
        share = np.asarray(trace.sink_share[i, j])
        notes.append(
            "rows sum to 1 − the share of a learned sink: "
            + ", ".join(f"{100 * s:.1f} %" for s in share[:24])
        )
    return tuple(notes)


def _percentages(trace: Trace, i: int, j: int, where: str) -> Matrix:
    return Matrix(
        "weights in per cent" + where,
        np.asarray(trace.stages["weights"][i, j]),
        labels_of(trace.tokens),
        labels_of(trace.keys),
        formula="each row: where this query looks, 100 % in all",
        hidden=~np.asarray(trace.visible[i, j]),
        unit="percent",
        scale="weights",
    )


def _scale_comparison(
    trace: Trace, i: int, j: int, where: str, queries: Sequence[int] = ()
) -> Table:
    """Show what the division is for: rows with the source's own scale and with the asked one."""
    own, asked = float(trace.run.overrides["source_scale"]), trace.scale[i]
    scores = np.asarray(trace.stages["scores"][i, j])
    visible = np.asarray(trace.visible[i, j])
    sides = []
    for scale in (own, asked):
        weights, _ = softmax(np.where(visible, scores * scale, -np.inf)[None])
        sides.append(
            (entropy_bits(weights[0]), weights[0].max(axis=-1), softmax_gradient_norm(weights[0]))
        )
    rows = tuple(
        (Label(label), *(float(side[n][row]) for n in range(3) for side in sides))
        for row, label in enumerate(trace.tokens.labels)
        if not queries or row in queries
    )
    names = (f"÷ {1 / own:.4g}", f"· {asked:g}")
    columns = [Column("query", "label")]
    for what in ("entropy", "largest", "‖J‖"):
        columns += [Column(f"{what} {name}") for name in names]
    return Table(
        "What the division is for" + where,
        tuple(columns),
        rows,
        formula=f"own scale {own:.6g} = 1/{1 / own:.6g} beside {asked:.6g}; "
        "entropy in bits, largest weight, and the size of the softmax's gradient J = diag(w) − w·wᵀ",
        notes=(
            "Large scores make one weight nearly 1: the entropy falls to 0 and so does the "
            "gradient, so nothing more can be learned. Dividing by √d_k keeps scores near 1.",
        ),
    )


def closing(trace: Trace) -> Iterator[Text]:
    """Yield the line of checks, and the plain sentences: where each query looks most."""
    yield Text((checks_line(trace),), role="check")
    several = len(trace.layers) * len(trace.heads) > 1
    for i in range(len(trace.layers)):
        for j in range(len(trace.heads)):
            if several:
                yield Text((f"L{trace.layers[i]}.H{trace.heads[j]}:",), role="plain")
            yield from look_sentences(trace, i, j)


def checks_line(result: Any) -> str:
    """Say what was checked, each within a bound; files hold the exact differences.

    Parameters
    ----------
    result
        Anything with ``checks``, ``run``, ``source``, and ``keys`` where it is about one text.
    """
    names = {
        "row_sum_error": "rows sum to 1",
        "loop_error": "matrix form = token-by-token loop",
        "parity": "output = the model's own",
        "verified_weights": "weights = the untouched model's",
        "verified_states": "final states = the untouched model's",
    }
    floors = check_floors(
        result.run.dtype, n_keys=len(getattr(result, "keys", ())), d_k=result.source.d_k
    )
    parts = [
        f"{words} (within {bound(result.checks[key], floors[key])})"
        for key, words in names.items()
        if key in result.checks
    ]
    return "checks: " + " · ".join(parts)


def look_sentences(trace: Trace, i: int, j: int) -> Iterator[Text]:
    """Yield, for each query, which key it looks at most."""
    weights = np.asarray(trace.stages["weights"][i, j])
    names, keys = trace.tokens.labels, trace.keys.labels
    for row in range(min(len(weights), _MAX_SENTENCES)):
        if not weights[row].any():
            yield Text(
                (
                    f'{row} "',
                    Label(names[row]),
                    '" may look at no key: its weights and output are 0.',
                )
            )
            continue
        best = int(largest(weights[row]))
        is_self = trace.key_tokens is None and best == row
        target = ("itself",) if is_self else ('"', Label(keys[best]), '"')
        yield Text(
            (
                f'{row} "',
                Label(names[row]),
                '" looks most at ',
                *target,
                f" ({100 * weights[row, best]:.1f} %).",
            )
        )
    if len(weights) > _MAX_SENTENCES:
        yield Text((f"… and {len(weights) - _MAX_SENTENCES} more queries.",))
