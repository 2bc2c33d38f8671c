"""Text that a model writes itself: going on from a prompt, and a decoder's side of a translation.

What lives here: greedy writing with the model's own kernel, and labels for what was written. What
does not: attention, which is captured in one pass over the whole text afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from attnviz.errors import UsageError
from attnviz.records import Tokens
from attnviz.sources.models.loading import Loaded
from attnviz.sources.models.planning import switch
from attnviz.sources.models.tokenizer import ModelTokenizer
from attnviz.sources.tokenize import clean

MAX_DECODER_TOKENS = 32
"""How much a model writes where nobody gives the decoder's text."""


def write_on(loaded: Loaded, ids: Sequence[int], n_new: int) -> list[int]:
    """Let a model write greedily: the ids after the prompt, or after the decoder's start.

    Parameters
    ----------
    ids
        The prompt, or the encoder's text.
    n_new
        At most so many; fewer where the model ends.
    """
    switch(loaded.model, "sdpa")
    inputs = torch.tensor([list(ids)], device=loaded.device)
    options: dict[str, Any] = {}
    if not loaded.is_encoder_decoder:
        options["pad_token_id"] = getattr(loaded.config, "pad_token_id", None) or 0
    with torch.inference_mode():
        made = loaded.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=n_new,
            do_sample=False,
            num_beams=1,
            **options,
        )
    first = 1 if loaded.is_encoder_decoder else len(ids)
    return [int(i) for i in made[0, first:].tolist()]


def decoder_tokens(
    loaded: Loaded, tokenizer: ModelTokenizer, tokens: Tokens, target: str | None
) -> Tokens:
    """Return the decoder's tokens: its start token, then a given text or what the model writes.

    Raises
    ------
    UsageError
        No text given, and a model that cannot write.
    """
    config = loaded.config
    start = getattr(config, "decoder_start_token_id", None)
    start = int(start if start is not None else getattr(config, "bos_token_id", None) or 0)
    word = tokenizer.tokenizer.id_to_token(start) or str(start)
    begin = Tokens("", (start,), (word,), (word,), (None,), (True,))
    if target is None:
        if not loaded.model.can_generate():
            raise UsageError(
                "this model writes nothing itself: give the decoder's text with --decoder-text"
            )
        return append(tokenizer, begin, write_on(loaded, tokens.ids, MAX_DECODER_TOKENS))
    text, notices = clean(target)
    given = tokenizer.tokenize(text)
    kept = slice(1 if given.ids[:1] == (start,) else 0, None)
    return Tokens(
        text=given.text,
        ids=begin.ids + given.ids[kept],
        pieces=begin.pieces + given.pieces[kept],
        labels=begin.labels + given.labels[kept],
        spans=(*begin.spans, *given.spans[kept]),
        special=begin.special + given.special[kept],
        notices=(*notices, *given.notices),
    )


def append(tokenizer: ModelTokenizer, tokens: Tokens, ids: Sequence[int]) -> Tokens:
    """Put tokens that a model wrote behind others, labelled by the text they stand for."""
    library, family = tokenizer.tokenizer, tokenizer.family
    pieces = [library.id_to_token(i) or str(i) for i in ids]
    special = [i in family.special_ids for i in ids]
    labels: list[str] = []
    spans: list[tuple[int, int] | None] = []
    text, done = tokens.text, ""
    for at, (piece, is_special) in enumerate(zip(pieces, special)):
        whole = library.decode(list(ids[: at + 1]), skip_special_tokens=False)
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
