"""Text that a model writes itself: going on from a prompt, and a decoder's side of a translation.

What lives here: writing with the model's own kernel, and labels for what was written. What
does not: attention, which is captured in one pass over the whole text afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from attnviz.errors import InputError, UsageError
from attnviz.records import Tokens
from attnviz.sources.models.capture.state import unchanged
from attnviz.sources.models.guarding import guard_run
from attnviz.sources.models.loading import Loaded
from attnviz.sources.models.planning import switch
from attnviz.sources.models.tokenizer import ModelTokenizer
from attnviz.sources.models.written import append
from attnviz.sources.text.tokenize import clean

MAX_DECODER_TOKENS = 32
"""How much a model writes where nobody gives the decoder's text."""


def write_on(
    loaded: Loaded,
    ids: Sequence[int],
    n_new: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    tell: Callable[[int], None] | None = None,
) -> list[int]:
    """Let a model write: the ids after the prompt, or after the decoder's start.

    Parameters
    ----------
    ids
        The prompt, or the encoder's text.
    n_new
        At most so many; fewer where the model ends.
    temperature
        0 takes the likeliest token each time; above 0 tokens are drawn, the same for one seed.
    tell
        Told each new id as it is written.
    """
    switch(loaded.model, "sdpa")
    inputs = torch.tensor([list(ids)], device=loaded.device)
    options: dict[str, Any] = {}
    if not loaded.is_encoder_decoder:
        options["pad_token_id"] = getattr(loaded.config, "pad_token_id", None) or 0
    if temperature > 0:
        options.update(temperature=temperature, top_k=0, top_p=1.0)
    if tell is not None:
        options["streamer"] = _Listener(tell, skip=1)
    with unchanged(loaded.model), torch.inference_mode(), torch.random.fork_rng():
        torch.manual_seed(seed)
        made = guard_run(
            type(loaded.model).__name__,
            lambda: loaded.model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=n_new,
                do_sample=temperature > 0,
                num_beams=1,
                logits_processor=[_check_scores],
                **options,
            ),
        )
    first = 1 if loaded.is_encoder_decoder else len(ids)
    return [int(i) for i in made[0, first:].tolist()]


def _check_scores(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Refuse to write by scores that are none; words that are forbidden have −Inf.

    Raises
    ------
    InputError
        NaN or +Inf, or no word at all: the largest of them would be whatever stands first.
    """
    if not bool(torch.isfinite(scores.max())):  # NaN is the largest where there is one
        raise InputError(
            f"the model gives NaN or Inf as a word's score after {ids.shape[1]} tokens: what it would "
            "write next is not known; try --dtype float32"
        )
    return scores


def go_on(
    loaded: Loaded,
    tokenizer: ModelTokenizer,
    tokens: Tokens,
    n_new: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    tell: Callable[[Tokens], None] | None = None,
) -> Tokens:
    """Return a prompt's tokens and what the model writes behind them.

    Parameters
    ----------
    temperature
        0 is greedy; above 0 tokens are drawn, the same for one seed.
    tell
        Told the text so far after every new token.
    """
    ids: list[int] = []

    def heard(i: int) -> None:
        ids.append(i)
        if tell is not None:
            tell(append(tokenizer, tokens, ids))
            switch(loaded.model, "sdpa")  # whoever was told may have run the model in between

    made = write_on(loaded, tokens.ids, n_new, temperature=temperature, seed=seed,
                    tell=None if tell is None else heard)  # fmt: skip
    return append(tokenizer, tokens, made)


class _Listener:
    """What the library calls with the prompt's ids first, then with every new id."""

    def __init__(self, tell: Callable[[int], None], *, skip: int) -> None:
        self.tell, self.skip = tell, skip

    def put(self, value: torch.Tensor) -> None:
        if self.skip:
            self.skip -= 1
            return
        for i in value.flatten().tolist():
            self.tell(int(i))

    def end(self) -> None:
        """Nothing is kept."""


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
