"""What a model wrote itself, as tokens with labels and places, behind those it was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from attnviz.records import Tokens
from attnviz.sources.models.guarding import guard
from attnviz.sources.models.tokenizer import ModelTokenizer


def append(tokenizer: ModelTokenizer, tokens: Tokens, ids: Sequence[int]) -> Tokens:
    """Put tokens that a model wrote behind others, labelled by the text they stand for."""
    library, family = tokenizer.tokenizer, tokenizer.family
    pieces = [library.id_to_token(i) or str(i) for i in ids]
    special = [i in family.special_ids for i in ids]
    labels: list[str] = []
    spans: list[tuple[int, int] | None] = []
    text, done = tokens.text, ""
    for at, (piece, is_special) in enumerate(zip(pieces, special)):
        read = partial(library.decode, list(ids[: at + 1]), skip_special_tokens=False)
        whole = guard("the tokenizer", read, hush=True)
        shown = whole[len(done) :] if whole.startswith(done) else piece
        done = whole
        if is_special:
            labels.append(piece)
            spans.append(None)
            continue
        label = f"␣{shown[1:]}" if shown[:1] == " " else shown
        labels.append(label or piece)
        spans.append((len(text), len(text) + len(shown)))
        text += shown
    return replace(
        tokens,
        text=text,
        ids=(*tokens.ids, *ids),
        pieces=(*tokens.pieces, *pieces),
        labels=(*tokens.labels, *labels),
        spans=(*tokens.spans, *spans),
        special=(*tokens.special, *special),
    )
