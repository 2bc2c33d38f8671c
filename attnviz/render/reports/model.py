"""What a trained model is, as tables: sizes, tokenizer, and what each layer's attention is like.

What lives here: ``attnviz model show``. What does not: reading files (``sources.models.card``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnviz.render.shapes import Column, Document, Label, Shape, Table, Text
from attnviz.render.units import say_bytes

_SIZES = (
    ("layers", "n_layers"),
    ("encoder layers", "n_encoder_layers"),
    ("heads", "n_heads"),
    ("key/value heads", "n_kv_heads"),
    ("d_model", "d_model"),
    ("d_k, width of q and k", "d_k"),
    ("width of v", "d_v"),
    ("positions", "max_positions"),
    ("softcap", "softcap"),
    ("vocabulary", "vocab_size"),
    ("parameters", "n_parameters"),
    ("bytes", "size_bytes"),
)


def view(card: Mapping[str, Any]) -> Document:
    """Show the fields of a ``ModelCard`` as a mapping, with who runs the model and what that holds."""
    sizes = tuple((what, _number(card[name])) for what, name in _SIZES if card[name] is not None)
    about = [
        ("architecture", card["architecture"]),
        ("types", ", ".join(f"{kind} ({_number(n)})" for kind, n in card["dtypes"].items())),
        ("tokenizer", card["tokenizer"] or "none"),
        ("it adds", card["tokenizer_adds"]),
        ("files", ", ".join(card["files"])),
        ("run by", card["run_by"]),
        ("a run reads", f"{say_bytes(card['size_bytes'])} of weights, once"),
        ("it holds", f"{say_bytes(card['held_bytes'])} of them at a time"),
    ]
    shapes: list[Shape] = [
        Text((Label(card["name"]), f" · {card['kind']} · sha256 {card['sha256']}"), "title"),
        Table(
            "model",
            (Column("what", "text"), Column("value", "label")),
            tuple((what, Label(value)) for what, value in about if value),
        ),
        Table("sizes", (Column("what", "text"), Column("number", "text")), sizes),
    ]
    if card["layers"]:
        shapes.append(_layers(card["layers"]))
    shapes += [Text((Label(notice),), "notice") for notice in card["notices"]]
    return Document(tuple(shapes), {"schema": "attnviz.model/1", **card}, title="model")


def _layers(layers: Sequence[Mapping[str, Any]]) -> Table:
    """Put layers of one kind into one row."""
    alike: dict[tuple[str, str, str], list[int]] = {}
    for layer in layers:
        window = layer["window"]
        if not layer["has_attention"]:
            sees = "no attention"
        elif window is None:
            sees = "all it may"
        else:
            sees = f"{window} keys"
        base = "" if layer["rotary_base"] is None else f"{layer['rotary_base']:g}"
        alike.setdefault((layer["kind"], sees, base), []).append(layer["layer"])
    with_attention = [layer["layer"] for layer in layers if layer["has_attention"]]
    counted = "all" if len(with_attention) == len(layers) else f"{len(with_attention)}"
    return Table(
        "layers",
        (
            Column("layers", "text"),
            Column("kind", "label"),
            Column("a query sees", "text"),
            Column("rotary base", "text"),
        ),
        tuple(
            (ranges(numbers), Label(kind), sees, base)
            for (kind, sees, base), numbers in alike.items()
        ),
        formula=f"{counted} of {len(layers)} have attention, as far as the files say",
    )


def ranges(numbers: Sequence[int]) -> str:
    """Return rising numbers as ranges.

    Examples
    --------
    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
