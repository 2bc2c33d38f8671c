"""Several texts as one rectangle of ids, and where each one's real tokens are.

What lives here: padding, and whether a model takes it. What does not: masks, which the model makes
from these places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnviz.errors import InputError
from attnviz.records import Tokens
from attnviz.sources.models.loading import Loaded
from attnviz.sources.models.planning import TOLERANCE, switch


@dataclass(frozen=True, slots=True)
class Padded:
    """B rows of ids of one length.

    Parameters
    ----------
    ids
        With padding.
    real
        Half-open range of each row's real tokens.
    """

    ids: list[list[int]]
    real: list[tuple[int, int]]

    @property
    def places(self) -> list[tuple[int, int]] | None:
        """``real``, or None where nothing is padded."""
        return (
            None if all(end - first == len(self.ids[0]) for first, end in self.real) else self.real
        )


def pad(texts: Sequence[Tokens], pad_id: int, side: str) -> Padded:
    """Pad texts to the longest, on the ``right`` or the ``left``.

    Examples
    --------
    >>> def text(*ids):
    ...     return Tokens("", ids, ids, ids, ids, ids)
    >>> pad([text(5, 6, 7), text(8)], 0, "left")
    Padded(ids=[[5, 6, 7], [0, 0, 8]], real=[(0, 3), (2, 3)])
    """
    longest = max(len(tokens) for tokens in texts)
    starts = [longest - len(tokens) if side == "left" else 0 for tokens in texts]
    ids = [
        [pad_id] * start + list(tokens.ids) + [pad_id] * (longest - start - len(tokens))
        for tokens, start in zip(texts, starts)
    ]
    return Padded(ids, [(start, start + len(tokens)) for tokens, start in zip(texts, starts)])


def check_known(loaded: Loaded, tokens: Tokens) -> None:
    """Refuse an id that a model has no vector for: its tokenizer is another model's.

    Raises
    ------
    InputError
        Names the token and both numbers.
    """
    table = getattr(_find_table(loaded), "num_embeddings", None)
    place = max(range(len(tokens)), key=lambda i: tokens.ids[i])
    if isinstance(table, int) and tokens.ids[place] >= table:
        raise InputError(
            f"the token {tokens.pieces[place]!r} has the id {tokens.ids[place]}, but the model has "
            f"vectors for {table}: its tokenizer belongs to another model"
        )


def _find_table(loaded: Loaded) -> Any:
    """Return the table of word vectors; None for a model that has none, or does not say."""
    for part in (loaded.body, loaded.model):
        try:
            return part.get_input_embeddings()
        except (NotImplementedError, AttributeError):
            continue
    return None


def takes_padding(loaded: Loaded) -> bool:
    """True where a short text's final states are those of its own run, padded or not."""
    limit = max(2, min(int(getattr(loaded.config, "vocab_size", 0) or 64), 90))
    long, short = ([1 + (7 * i + n) % (limit - 1) for i in range(n)] for n in (11, 7))
    pad_id = getattr(loaded.config, "pad_token_id", None) or 0
    kind = "encoder_last_hidden_state" if loaded.is_encoder_decoder else "last_hidden_state"
    switch(loaded.model, "eager")
    found = []
    for rows, real in (
        ([short], None),
        ([long, short + [pad_id] * (len(long) - len(short))], [(0, len(long)), (0, len(short))]),
    ):
        decoder = [[0]] * len(rows) if loaded.is_encoder_decoder else None
        try:
            with torch.inference_mode():
                outputs = loaded.forward(rows, real=real, decoder_ids=decoder)
        except InputError:
            return False
        states = getattr(outputs, kind, None)
        if not isinstance(states, torch.Tensor):
            return False
        found.append(states[-1, : len(short)].float())
    size = max(1.0, float(found[0].abs().max()))
    return float((found[0] - found[1]).abs().max()) <= 10 * TOLERANCE[loaded.dtype] * size
