"""Two runs side by side: two texts, two heads, two layers, two models or weight files.

What lives here: which runs, and which rows and keys stand against each other. What does not: the
measures (``core.compare``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnviz.core.measures.compare import Comparison, align_positions, align_words, compare_traces
from attnviz.errors import UsageError
from attnviz.records import Tokens, Trace
from attnviz.runs.drop_sinks import drop_sinks
from attnviz.runs.explain import explain
from attnviz.runs.request import find_tokens

ALIGNMENTS = ("word", "position")


def compare(
    text: str,
    other: str | None = None,
    *,
    token: str | Sequence[str] | None = None,
    align: str = "word",
    no_sinks: bool = False,
    with_head: str | int | None = None,
    with_layer: str | int | None = None,
    with_weights: str | None = None,
    with_model: str | None = None,
    **options: Any,
) -> Comparison:
    """Compare the same word in two texts, or two heads, layers, models or weight files on one text.

    Parameters
    ----------
    text, other
        Two texts; or one, and one of the ``with_`` options.
    token
        Compare the rows of this word only (or of these); of two texts it must stand in both.
    align
        Keys stand against each other by ``word`` (the same word, in order) or by ``position``.
    no_sinks
        Compare weights without the first token and special tokens, rows rescaled.
    with_head, with_layer
        The other side: another head or layer of the same source.
    with_weights, with_model
        The other side: another source, same layer and head.
    options
        As of ``explain``.

    Returns
    -------
    Comparison

    Raises
    ------
    UsageError
        Nothing to compare with, more than one thing, a word that is not in both texts, or sides
        of different numbers of heads.
    InputError
        A text, file or model that cannot be read.

    Examples
    --------
    >>> found = compare("the bear ate honey", "I cannot bear the noise", token="bear")
    >>> found.weights_a.shape  # layers, heads, rows compared, keys of either text
    (1, 1, 1, 7)
    >>> bool(found.x_cosine[0, 0] > 0.999 and found.z_cosine[0, 0, 0] < 0.1)
    True
    """
    if align not in ALIGNMENTS:
        raise UsageError(f"--align {align} does not exist: choose from {', '.join(ALIGNMENTS)}")
    changes = _other_side(
        other=other, head=with_head, layer=with_layer, weights=with_weights, model=with_model
    )
    wanted = [token] if isinstance(token, str) else list(token or ())
    a = explain(text, token=wanted[0] if wanted else None, **options)
    settings = {**options, **_same_place(a, options)}
    settings.update({k: v for k, v in changes.items() if k != "text"})
    if "model" in changes:
        settings["weights"] = "sample"
    elif "weights" in changes:
        settings["model"] = None
    b = explain(changes.get("text", text), **settings)
    if a.stages["weights"].shape[:2] != b.stages["weights"].shape[:2]:
        raise UsageError(
            f"the sides differ: {len(a.layers)} × {len(a.heads)} layers and heads against "
            f"{len(b.layers)} × {len(b.heads)}; choose one with --layer N --head N"
        )
    if no_sinks:
        a, b = drop_sinks(a), drop_sinks(b)
    keys = _align(a.keys, b.keys, align)
    rows = _rows(a.tokens, b.tokens, wanted, align)
    return compare_traces(a, b, rows, keys, names=_names(a, b, changes))


def _other_side(*, other: str | None, **changes: Any) -> dict[str, Any]:
    given = {name: value for name, value in changes.items() if value is not None}
    if other is not None:
        given["text"] = other
    if not given:
        raise UsageError(
            "nothing to compare with: give a second text, or one of --with-head, --with-layer, "
            "--with-weights, --with-model"
        )
    if len(given) > 1 and set(given) != {"head", "layer"}:
        names = " and ".join("a second text" if n == "text" else f"--with-{n}" for n in given)
        raise UsageError(f"{names} are given: compare one thing at a time")
    return given


def _same_place(a: Trace, options: dict[str, Any]) -> dict[str, Any]:
    """Where the first side chose a layer and head itself, the second looks at the same ones."""
    if not a.ranking:
        return {}
    found: dict[str, Any] = {"head": str(a.heads[0])}
    if a.source.is_model:
        found["layer"] = str(a.layers[0])
    return found


def _align(a: Tokens, b: Tokens, align: str) -> list[tuple[int | None, int | None]]:
    if align == "position":
        return align_positions(len(a), len(b))
    return align_words(_words(a), _words(b))


def _words(tokens: Tokens) -> list[str]:
    return [label.strip().lstrip("␣·") or label for label in tokens.labels]


def _rows(a: Tokens, b: Tokens, wanted: Sequence[str], align: str) -> list[tuple[int, int]]:
    if wanted:
        return [(find_tokens(a, [w])[0], find_tokens(b, [w])[0]) for w in wanted]
    pairs = _align(a, b, align)
    left, right = _words(a), _words(b)
    both = [(i, j) for i, j in pairs if i is not None and j is not None]
    if align == "word":
        both = [(i, j) for i, j in both if left[i].casefold() == right[j].casefold()]
    if not both:
        raise UsageError("the texts have no word in common: compare them with --align position")
    return both


def _names(a: Trace, b: Trace, changes: dict[str, Any]) -> tuple[str, str]:
    if "text" in changes:
        return "A", "B"
    if "head" in changes or "layer" in changes:
        return _place(a), _place(b)
    return a.source.name, b.source.name


def _place(trace: Trace) -> str:
    layers = f"L{trace.layers[0]}" if len(trace.layers) == 1 else f"{len(trace.layers)} layers"
    heads = f"H{trace.heads[0]}" if len(trace.heads) == 1 else f"{len(trace.heads)} heads"
    return f"{layers}.{heads}"
