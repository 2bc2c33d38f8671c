"""All heads of a model on one screen, and why one of them was chosen.

What lives here: words and a table made from a trace's ranking. What does not: the ranking
(``core.choose``), or the walk of the chosen head (``walk``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnviz.records import HeadChoice, Trace
from attnviz.render.shapes import Column, Label, Shape, Table, Text
from attnviz.rounding import by_size

N_RUNNERS_UP = 4
MAX_LAYERS = 48
_LEAST = 0.1
_NOTHING = 0.02
_WIDE = 9
MAX_WITH_LINKS, MAX_SPACED, MAX_ACROSS = 16, 32, 64
"""Heads up to which a row has room for its link, for blanks, and for one column."""


def shapes(trace: Trace) -> tuple[Shape, ...]:
    """Return the table of layers × heads, then the choice; nothing where the choice was the user's."""
    if not trace.ranking:
        return choice(trace)
    return (*heads_table(trace), *choice(trace))


def choice(trace: Trace) -> tuple[Text, ...]:
    """Say which head was chosen, why, and which came next; and whether words were pooled."""
    rule = trace.run.overrides.get("words")
    told = (Text((str(rule),), role="note"),) if rule else ()
    if not trace.ranking:
        return told
    best, *rest = trace.ranking
    link = _link(trace, best)
    numbers = [_share(n) for n in (best.weight, best.distance_habit, best.key_habit)]
    at_distance = f"{numbers[1]} at that distance and " if trace.key_tokens is None else ""
    found = Text(
        (
            f"head auto chose L{best.layer}.H{best.head}: ",
            *link,
            f" has {numbers[0]}; its other tokens give {at_distance}{numbers[2]} to that key",
        ),
        role="notice",
    )
    runners: list[str | Label] = []
    for other in rest[:N_RUNNERS_UP]:
        lead = ", " if runners else "runners-up: "
        runners += [f"{lead}L{other.layer}.H{other.head} ", *_link(trace, other)]
        runners.append(f" {_share(other.weight)}")
    if runners:
        return (*told, found, Text(tuple(runners), role="note"))
    return (*told, found)


def heads_table(trace: Trace) -> Iterator[Table]:
    """Yield one row per layer: for each head a digit, how far its best link exceeds its habits."""
    by_layer: dict[int, dict[int, HeadChoice]] = {}
    for found in trace.ranking:
        by_layer.setdefault(found.layer, {})[found.head] = found
    if len(trace.ranking) == 1:
        return
    heads = sorted({found.head for found in trace.ranking})
    layers = sorted(by_layer)
    shown = sorted(
        layers[n] for n in by_size([_best(by_layer[n]).telling for n in layers], MAX_LAYERS)
    )
    notes = []
    if len(shown) < len(layers):
        notes.append(f"{len(layers) - len(shown)} layers whose best head tells less are left out")
    about = "any token" if trace.asked is None else f"token {trace.asked}"
    gap = " " if len(heads) <= MAX_SPACED else ""
    parts = [heads[i : i + MAX_ACROSS] for i in range(0, len(heads), MAX_ACROSS)]
    has_links = len(heads) <= MAX_WITH_LINKS
    yield Table(
        f"{len(layers)} layers × {len(heads)} heads",
        (
            Column("layer", "text"),
            *(Column(_ruler(part, len(gap)), "text") for part in parts),
            *(_LINK_COLUMNS if has_links else ()),
        ),
        tuple(
            (
                f"{'→' if layer == trace.ranking[0].layer else ' '} L{layer}",
                *(gap.join(_digit(by_layer[layer].get(h)) for h in part) for part in parts),
                *(_link_cells(trace, _best(by_layer[layer])) if has_links else ()),
            )
            for layer in shown
        ),
        formula=f"how far a head's strongest link from {about} exceeds the head's habits, in "
        "tenths (· is less than one)",
        notes=tuple(notes),
    )


_LINK_COLUMNS = (Column("best", "text"), Column("weight", "text"), Column("its link", "label"))


def _link_cells(trace: Trace, found: HeadChoice) -> tuple[str, str, Label]:
    """Return a head, its weight and its link, short enough for one screen; blank where it has none."""
    if found.telling < _NOTHING:
        return "", "", Label("")
    names = trace.tokens.labels[found.query], trace.keys.labels[found.key]
    link = " → ".join(name if len(name) <= _WIDE else f"{name[: _WIDE - 1]}…" for name in names)
    return f"H{found.head}", _share(found.weight), Label(link)


def _best(of_layer: dict[int, HeadChoice]) -> HeadChoice:
    return max(of_layer.values(), key=lambda found: found.telling)


def _ruler(heads: Sequence[int], gap: int) -> str:
    """Return head numbers above their digits, every fifth or tenth named."""
    step = 1 + gap
    line = [" "] * (step * len(heads) + 3)
    for place, head in enumerate(heads):
        if head % (10 // step) == 0:
            for offset, char in enumerate(str(head)):
                line[step * place + offset] = char
    return "".join(line).rstrip() or str(heads[0])


def _digit(found: HeadChoice | None) -> str:
    if found is None or found.telling < _LEAST:
        return "·"
    return str(min(9, int(10 * found.telling)))


def _share(number: float) -> str:
    return f"{number:.2f}".removeprefix("0")


def _link(trace: Trace, found: HeadChoice) -> tuple[str | Label, ...]:
    return (
        f"{found.query}:",
        Label(trace.tokens.labels[found.query]),
        f" → {found.key}:",
        Label(trace.keys.labels[found.key]),
    )
